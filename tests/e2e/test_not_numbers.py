"""One number of a checkpoint that is none, where a function between could make it one again: nobody is answered."""
import json
import shutil
import struct

import pytest

from quire_server import ROOT, QuireServer

MODELS = ROOT / "tests" / "golden" / "models"
BODY = {"model": "m", "prompt": list(range(3, 40)), "max_tokens": 3, "temperature": 0, "logprobs": 1}
CASES = [
    ("qwen3_next", "model.layers.0.mlp.shared_expert_gate.weight"),
    ("qwen3_next", "model.layers.0.mlp.gate.weight"),
    ("qwen3_next", "model.layers.0.linear_attn.dt_bias"),
    ("qwen3_next", "model.layers.0.linear_attn.in_proj_ba.weight"),
    ("qwen3_5", "model.layers.0.linear_attn.in_proj_a.weight"),
    ("qwen3_5", "model.layers.0.linear_attn.in_proj_b.weight"),
    ("glm5_next", "model.language_model.layers.0.hc_attn_fn"),
    ("glm5_next", "model.language_model.layers.0.hc_ffn_base"),
    ("glm5_next", "model.language_model.layers.0.self_attn.f_a_proj.weight"),
    ("glm5_next", "model.language_model.layers.0.self_attn.dt_bias"),
    ("glm5_next", "model.language_model.layers.0.self_attn.g_b_proj.weight"),
    ("glm5_next", "model.language_model.layers.1.self_attn.indexer.index_kpool_compress_gate"),
    ("glm4_moe_lite", "model.layers.1.mlp.gate.weight"),
    ("glm4_moe_lite", "model.layers.1.mlp.gate.e_score_correction_bias"),
]
NAN = {"BF16": struct.pack("<H", 0x7FC0), "F32": struct.pack("<I", 0x7FC00000), "F16": struct.pack("<H", 0x7E00)}


def put_nans(file, tensor):
    """Makes every number of the tensor a NaN."""
    data = bytearray(file.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    entry = json.loads(data[8 : 8 + size])[tensor]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    nan = NAN[entry["dtype"]]
    data[begin:end] = nan * ((end - begin) // len(nan))
    file.write_bytes(data)


@pytest.mark.parametrize(("model", "tensor"), CASES)
def test_is_no_answer(model, tensor, tmp_path):
    folder = tmp_path / model
    shutil.copytree(MODELS / model, folder)
    put_nans(folder / "model.safetensors", tensor)
    with QuireServer(folder, "--served-model-name", "m") as server:
        status, _, answer = server.request("POST", "/v1/completions", BODY)
        assert status == 500, answer
        assert server.request("GET", "/health")[0] == 200
