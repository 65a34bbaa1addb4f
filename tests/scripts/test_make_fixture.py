"""What tools/make_fixture.py takes and refuses, before it needs transformers; and what it does with numbers."""
import json
import subprocess
import sys

import make_fixture
import pytest
from quire_server import ROOT


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"hidden_size": 64}))
    return path


def test_takes_a_class_a_configuration_and_a_folder(config, tmp_path):
    options = make_fixture.parse(["LlamaForCausalLM", str(config), str(tmp_path / "out"), "--lengths", "3,40"])
    assert options.architecture == "LlamaForCausalLM"
    assert options.values == {"hidden_size": 64}
    assert options.lengths == [3, 40]
    assert (options.candidates, options.seed, options.gain) == (96, 1, 1.0)


@pytest.mark.parametrize("more", [["--lengths", "0"], ["--lengths", "1,x"], ["--lengths", ""], ["--candidates", "0"],
                                  ["--gain", "0"], ["--gain", "nan"], ["--seed", "one"], ["--unknown"]])
def test_refuses_values_that_make_no_sense(config, tmp_path, more, capsys):
    with pytest.raises(SystemExit) as refused:
        make_fixture.parse(["LlamaForCausalLM", str(config), str(tmp_path / "out"), *more])
    assert refused.value.code == 2
    assert more[0] in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "\xff"])
def test_refuses_a_configuration_that_is_no_object(config, tmp_path, text, capsys):
    config.write_bytes(text.encode("latin-1"))
    with pytest.raises(SystemExit) as refused:
        make_fixture.parse(["LlamaForCausalLM", str(config), str(tmp_path / "out")])
    assert refused.value.code == 2
    assert str(config) in capsys.readouterr().err


def test_does_not_write_over_a_model(config, tmp_path, capsys):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(SystemExit):
        make_fixture.parse(["LlamaForCausalLM", str(config), str(tmp_path)])
    assert "holds a model already" in capsys.readouterr().err


def test_help_needs_no_library():
    done = subprocess.run([sys.executable, "-S", str(ROOT / "tools/make_fixture.py"), "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "--candidates" in done.stdout
