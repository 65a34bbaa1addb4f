"""Folders with a quantization_config as a user meets them: what inspect says, what a server answers, what is refused."""
import json
import shutil

import fp8_checkpoint
import pytest
from test_program import assert_one_clear_line, run
from tiny import FLAGS, ROOT

from quire_server import QuireServer

MODELS = ROOT / "tests" / "golden" / "models"
CASES = {
    "llama_awq": ("AWQ, 4 bits, with zero points, groups of 32", "q8"),
    "llama_gptq": ("GPTQ, 4 bits, with zero points, groups of 32", "q8"),
    "qwen3_packed": ("pack-quantized, 4 bits, with zero points, groups of 32", "q8"),
    "llama_w8a8": ("int-quantized, 8 bits, symmetric, a scale for each output", "q8"),
    "gemma3_fp8": ("float-quantized, blocks of 8 x 16", "bf16"),
    "gpt_oss_mxfp4": ("MXFP4", "q8"),
}


@pytest.mark.parametrize("name", CASES)
def test_inspect_says_how_the_file_keeps_its_matrices(name):
    method, profile = CASES[name]
    result = run("inspect", MODELS / name, "--kv-cache-memory-bytes", 1 << 20)
    assert result.returncode == 0, result.stderr
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert method in lines
    assert f"profile        {profile}" in lines
    size = (MODELS / name / "model.safetensors").stat().st_size / 2**20
    weights = next(line for line in lines if line.startswith("weights"))
    assert float(weights.split()[1]) == pytest.approx(size, abs=0.06)


# Its FP8 matrices are floats to online quantisation.
def test_fp8_is_quantised_online_and_then_is_another_model():
    fingerprints = set()
    for flags in ((), ("--quantization", "int8")):
        with QuireServer(MODELS / "gemma3_fp8", *FLAGS, *flags) as server:
            body = {"prompt": [5, 9, 20], "max_tokens": 4, "temperature": 0}
            status, _, reply = server.request("POST", "/v1/completions", body)
            assert status == 200, reply
            fingerprints.add(json.loads(reply)["system_fingerprint"])
    assert len(fingerprints) == 2


# Latents and their expansions, narrow queries, experts by groups and shared ones: all out of FP8.
@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_moe"])
def test_fp8_in_blocks_as_published_means_what_its_bf16_does(name, tmp_path):
    fp8, meant = tmp_path / "fp8", tmp_path / "meant"
    assert fp8_checkpoint.make(MODELS / name, fp8, meant) > 50
    ids = [token for prompt in json.loads((MODELS / name / "golden.json").read_text())["prompts"] for token in prompt["ids"]]
    for dtype in ("float32", "bfloat16"):
        answers = []
        for folder in (fp8, meant, MODELS / name):
            with QuireServer(folder, *FLAGS, "--dtype", dtype) as server:
                body = {"prompt": ids[:200], "max_tokens": 24, "temperature": 0, "logprobs": 20, "prompt_logprobs": 5, "ignore_eos": True}  # fmt: skip
                status, _, reply = server.request("POST", "/v1/completions", body)
                assert status == 200, reply
                answers.append(json.loads(reply)["choices"])
        assert answers[0] == answers[1]
        assert answers[0] != answers[2]  # the unrounded model


@pytest.mark.parametrize("command", ["serve", "inspect", "bench"])
def test_what_is_not_computed_is_refused_in_one_line(command, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(MODELS / "llama_awq", folder)
    config = json.loads((folder / "config.json").read_text())

    def changed(**changes):
        section = config["quantization_config"] | changes
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
        return run(command, folder)

    for hostile in ("awq\nnext", "\u202e\0awq", "x" * 100_000):
        result = changed(quant_method=hostile)
        assert_one_clear_line(result, "quantization_config/quant_method", "awq")
        assert len(result.stderr) < 5000 and "\u202e" not in result.stderr
    assert_one_clear_line(changed(version="gemv"), "quantization_config/version", "gemv", "gemm")
    assert_one_clear_line(changed(quant_method="bitsandbytes"), "quantization_config/quant_method", "compressed-tensors")
    assert_one_clear_line(changed(group_size=64), ".scales", "[1, 64] would fit", "groups of 64")
