"""The models under measurement: the real files that scripts/fetch_model.py gets, and random weights of published shapes."""
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / "tests" / "bench" / "peers"


@dataclass(frozen=True)
class Model:
    name: str
    title: str
    family: str
    form: str
    gguf: Path
    folder: Path | None = None  # the same shape in safetensors, BF16
    golden: str | None = None  # of tests/golden/models, where the weights are real
    context: int = 8192


SHAPES = {
    "qwen3-0.6b": ("Qwen3-0.6B shape", "qwen3", 40960),
    "gemma3-1b": ("Gemma-3-1B shape", "gemma3", 32768),
    "smollm2-135m": ("SmolLM2-135M shape", "llama", 8192),
}
FORMS = {"bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0, head Q8_0", "q4_k": "Q4_K_M"}
NAMES = ["smollm2", "gemma3", *(f"{shape}-{form}" for shape in SHAPES for form in FORMS)]


def last_line(command):
    return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]


def made(shape, form):
    """The path of random weights; made where they are not there yet."""
    environment = Path(last_line([PEERS / "install.sh", "models"]))
    programs = Path(last_line([ROOT / "tests" / "bench" / "build_llama_cpp.sh"]))
    command = [environment / "bin" / "python", PEERS / "make_models.py", shape, form]
    return Path(last_line([*command, "--folder", environment.parent / "made", "--quantize", programs / "llama-quantize"]))


def find(name, with_folders):
    """`with_folders`: whether an engine takes part that reads safetensors."""
    if name in ("smollm2", "gemma3"):
        file = Path(last_line([sys.executable, ROOT / "scripts" / "fetch_model.py", name]))
        if name == "gemma3":
            return Model(name, "Gemma-3-270M, Q4_K_M", "gemma3", "q4_k", file, golden="real_gemma3_270m", context=32768)
        folder = made("smollm2-135m", "safetensors") if with_folders else None
        return Model(name, "SmolLM2-135M-Instruct, Q4_1", "llama", "q4_1", file, folder, "real_smollm2")
    shape, _, form = name.rpartition("-")
    if shape not in SHAPES or form not in FORMS:
        raise ValueError(f"{name} is none of {', '.join(NAMES)}")
    title, family, context = SHAPES[shape]
    folder = made(shape, "safetensors") if with_folders and form == "bf16" else None
    return Model(name, f"{title}, {FORMS[form]}", family, form, made(shape, form), folder, context=context)
