"""What the Python tests share: where the program, the models and the golden data are.

./test sets QUIRE_BINARY and QUIRE_MODEL_DIR. A test that needs a real model is skipped where no folder of models is named.
"""
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from quire_server import ROOT  # noqa: E402


def golden_folder():
    return Path(os.environ.get("QUIRE_GOLDEN_DIR", ROOT / "tests" / "golden" / "models"))


def real_model(name):
    """The path of smollm2.gguf or gemma3.gguf."""
    folder = os.environ.get("QUIRE_MODEL_DIR")
    if not folder:
        pytest.skip("QUIRE_MODEL_DIR names no folder with the real models")
    path = Path(folder) / f"{name}.gguf"
    assert path.is_file(), f"{path} does not exist"
    return path
