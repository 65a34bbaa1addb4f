"""The golden files against the built server, through HTTP alone: architectures in fp32, then the profiles that serve.

QUIRE_GOLDEN_DIR names another folder of the same format.
"""
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

import comparison as c
import pytest
from conftest import golden_folder, real_model

from quire_server import ROOT, QuireServer

sys.path.insert(0, str(ROOT / "scripts"))
from fetch_model import MODELS  # noqa: E402

FOLDERS = sorted(path.parent for path in golden_folder().glob("*/golden.json"))
TINY = [folder for folder in FOLDERS if (folder / "config.json").exists()]
REAL = [folder for folder in FOLDERS if folder not in TINY]
LIMITS = ("--max-model-len", 4096, "--kv-cache-memory-bytes", 256 << 20)
# The fp32 profile has one plain kernel: its longest prompts would take minutes.
REAL_F32_PROMPT = 100


def golden(folder):
    return json.loads((folder / "golden.json").read_text())


def name_of(folder):
    return folder.name


def check(server, prompts, tolerance):
    result = c.Comparison(tolerance)
    with ThreadPoolExecutor(4) as pool:  # the answers are the same alone; together they come sooner
        choices = pool.map(lambda prompt: c.ask(server, prompt), prompts)
        for index, (prompt, choice) in enumerate(zip(prompts, choices)):
            c.compare(result, f"prompt {index} of {len(prompt['ids'])} tokens", prompt, choice)
    assert result.verdict() == []


def test_there_is_something_to_compare():
    assert FOLDERS, f"{golden_folder()} holds no golden file"


@pytest.mark.parametrize("folder", TINY, ids=name_of)
def test_architecture_in_fp32(folder):
    with QuireServer(folder, "--dtype", "float32", *LIMITS) as server:
        check(server, golden(folder)["prompts"], c.TINY_F32)


@pytest.mark.parametrize("folder", TINY, ids=name_of)
def test_bf16_and_no_influence_of_neighbours(folder):
    expected = golden(folder)
    prompts = expected["prompts"]
    with QuireServer(folder, "--dtype", "bfloat16", *LIMITS) as server:
        check(server, prompts, c.tiny_bf16(expected))
        alone = [c.ask(server, prompt) for prompt in prompts]
        with ThreadPoolExecutor(2 * len(prompts)) as pool:
            together = list(pool.map(lambda prompt: c.ask(server, prompt), 2 * prompts))
        assert together == 2 * alone


def model_of(folder):
    """The fetched file whose SHA-256 the golden file names."""
    wanted = golden(folder)["gguf_sha256"]
    names = [name for name, model in MODELS.items() if model.sha256 == wanted]
    assert names, f"{folder}: no known model has the SHA-256 {wanted}"
    return real_model(names[0])


@pytest.mark.parametrize("folder", REAL, ids=name_of)
def test_real_model_as_it_is_served(folder):
    expected = golden(folder)
    with QuireServer(model_of(folder), *LIMITS) as server:
        check(server, expected["prompts"], c.REAL_Q8)
        nll = c.nll(server, expected["nll"]["ids"])
        assert len(nll) == expected["nll"]["num_scored"]
        assert abs(statistics.fmean(nll) - expected["nll"]["mean_nll"]) <= c.Q8_NLL.get(folder.name, c.OTHER_Q8_NLL)


@pytest.mark.parametrize("folder", REAL, ids=name_of)
def test_real_model_in_fp32(folder):
    expected = golden(folder)
    prompts = [prompt for prompt in expected["prompts"] if len(prompt["ids"]) <= REAL_F32_PROMPT]
    with QuireServer(model_of(folder), "--dtype", "float32", *LIMITS) as server:
        check(server, prompts, c.REAL_F32)
        first = expected["nll"]["per_token_nll_first64"]
        assert c.nll(server, expected["nll"]["ids"][: len(first) + 1]) == pytest.approx(first, abs=c.REAL_F32.largest)
