#!/usr/bin/env python3
"""Writes the tiny GGUF models of tests/golden/models/gguf.

usage: tiny_gguf.py MODELS_DIR     (needs: pip install gguf safetensors numpy)

Seven hold the weights of the Hugging Face fixtures, unquantised, as a converter writes them (q and k of Llama permuted,
Gemma's norms with the 1 added, llama3 rope as divisors): their answers are the fixtures' own. One has the matrices of a fixture in Q8_0, as the gguf package rounds
them: what quantising that fixture while loading must give. Two have random weights in
quantised formats, for tests that compare Quire with itself: every format that is read, in the places where files have it.
"""
import json
import os
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q


def read_safetensors(path):
    """All tensors of a bf16 or f32 file, as float32."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
        data = f.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data[begin:end], dtype=np.uint16 if entry["dtype"] == "BF16" else np.float32)
        values = (raw.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else raw
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def permute(w, heads):
    """Rows of halves (i, i + d/2) become rows of pairs (2i, 2i + 1)."""
    n, k = w.shape
    return w.reshape(heads, 2, n // heads // 2, k).swapaxes(1, 2).reshape(n, k)


NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LLAMA_NORM = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NORM = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name, gemma):
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    rest, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{(LAYER | (GEMMA_NORM if gemma else LLAMA_NORM))[rest]}.{kind}"


def writer(path, arch, c):
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(c["num_hidden_layers"])
    w.add_embedding_length(c["hidden_size"])
    if "intermediate_size" in c:  # else all layers have experts
        w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c.get("v_head_dim", c["head_dim"]))
    w.add_context_length(c["max_position_embeddings"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    return w


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama3_divisors(c):
    r, d = c["rope_parameters"], c["head_dim"]
    inverse = r["rope_theta"] ** (-np.arange(0, d, 2) / d)
    wavelength = 2 * np.pi / inverse
    low, high = r["original_max_position_embeddings"] / r["low_freq_factor"], r["original_max_position_embeddings"] / r["high_freq_factor"]
    between = max(r["high_freq_factor"] - r["low_freq_factor"], 1e-30)  # nothing is blended where they are the same
    smooth = (r["original_max_position_embeddings"] / wavelength - r["low_freq_factor"]) / between
    scaled = np.where(wavelength > low, inverse / r["factor"], np.where(wavelength < high, inverse, (1 - smooth) * inverse / r["factor"] + smooth * inverse))
    return (inverse / scaled).astype(np.float32)


def add(w, name, values, kind):
    values = np.ascontiguousarray(values, dtype=np.float32)
    if kind == Q.F32:
        w.add_tensor(name, values)
    else:
        w.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def add_rope(w, arch, c):
    rope = c["rope_parameters"]
    if arch == "gemma3":
        rope = rope["full_attention"]
    w.add_rope_freq_base(rope["rope_theta"])
    if arch == "gemma3":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    else:
        w.add_rope_dimension_count(int(c["head_dim"] * rope.get("partial_rotary_factor", 1)))
    if rope["rope_type"] == "llama3":
        add(w, "rope_freqs.weight", llama3_divisors(c), Q.F32)


def convert(folder, out, arch, kind=Q.BF16):
    c = json.load(open(f"{folder}/config.json"))
    c.setdefault("head_dim", c["hidden_size"] // c["num_attention_heads"])
    gemma = arch.startswith("gemma")
    w = writer(out, arch, c)
    if gemma:
        w.add_sliding_window(c["sliding_window"])
    if arch == "gemma2":
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    add_rope(w, arch, c)
    for name, values in read_safetensors(f"{folder}/model.safetensors").items():
        to = gguf_name(name, gemma)
        own = kind
        if arch in ("llama", "smollm3") and to.endswith(("attn_q.weight", "attn_k.weight")):
            values = permute(values, c["num_attention_heads" if "attn_q" in to else "num_key_value_heads"])
        if gemma and values.ndim == 1:
            values = values + 1
        # GGUF has no query_pre_attn_scalar: its effect is put into the norm, or into the matrix where there is none.
        if to.endswith("attn_q_norm.weight" if arch == "gemma3" else "attn_q.weight") and gemma:
            values = values * np.sqrt(c["head_dim"] / c["query_pre_attn_scalar"])
            own = Q.F32
        add(w, to, values, Q.F32 if values.ndim == 1 else own)
    finish(w)


def random_model(out, arch, kinds, seed):
    """kinds: a function of the tensor's name."""
    small = arch == "gemma3"  # K-quants need rows of 256
    c = {
        "num_hidden_layers": 7 if small else 3, "hidden_size": 128 if small else 256, "intermediate_size": 192 if small else 512,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32 if small else 64, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
    }
    rng = np.random.default_rng(seed)
    w = writer(out, arch, c)
    w.add_rope_freq_base(10000.0)
    if arch == "gemma3":
        w.add_sliding_window(40)
    h, f = c["hidden_size"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]

    def matrix(name, n, k):
        kind = kinds(name)
        values = (rng.standard_normal((n, k)) * 1.5 / np.sqrt(k)).astype(np.float32)
        try:
            add(w, name, values, kind)
        except NotImplementedError:  # the package only reads K-quants: any bytes are a tensor, with sane scales
            w.add_tensor(name, random_blocks(rng, n, k, kind), raw_dtype=kind)

    def norm(name, n):
        add(w, name, 1 + 0.1 * rng.standard_normal(n), Q.F32)

    matrix("token_embd.weight", 256, h)
    norm("output_norm.weight", h)
    for i in range(c["num_hidden_layers"]):
        p = f"blk.{i}."
        norm(p + "attn_norm.weight", h)
        matrix(p + "attn_q.weight", q, h)
        matrix(p + "attn_k.weight", kv, h)
        matrix(p + "attn_v.weight", kv, h)
        matrix(p + "attn_output.weight", h, q)
        norm(p + "ffn_norm.weight", h)
        matrix(p + "ffn_gate.weight", f, h)
        matrix(p + "ffn_up.weight", f, h)
        matrix(p + "ffn_down.weight", h, f)
        if arch == "gemma3":
            for n in ("attn_q_norm", "attn_k_norm"):
                norm(p + n + ".weight", c["head_dim"])
            for n in ("post_attention_norm", "post_ffw_norm"):
                norm(p + n + ".weight", h)
    finish(w)


def random_blocks(rng, n, k, kind):
    """Random K-quant blocks with scales that give weights of about 1/sqrt(k)."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (n, k // elements, size), dtype=np.uint8)
    half = lambda x: np.frombuffer(np.float16(x).tobytes(), dtype=np.uint8)
    if kind == Q.Q6_K:
        blocks[..., -2:] = half(1.2e-4)  # d, behind quants and int8 scales
    else:
        spread = 15 if kind == Q.Q4_K else 31
        blocks[..., 0:2] = half(0.25 / (63 * spread))
        blocks[..., 2:4] = half(0.12 / 63)
    return blocks.reshape(n, -1)


def main():
    models = sys.argv[1]
    os.makedirs(f"{models}/gguf", exist_ok=True)
    same = ("qwen2", "qwen3", "phi3", "smollm3", "gemma2", "gemma3")
    for name, arch in (("llama_untied", "llama"), *zip(same, same)):
        convert(f"{models}/{name}", f"{models}/gguf/{name}.gguf", arch)
    convert(f"{models}/qwen3", f"{models}/gguf/qwen3_q8_0.gguf", "qwen3", Q.Q8_0)
    layer = lambda name: int(name.split(".")[1]) if name.startswith("blk.") else 0
    plain = [Q.Q4_0, Q.Q4_1, Q.Q8_0, Q.Q5_0, Q.Q5_1, Q.F16, Q.BF16]

    def mixed(name):
        if name == "token_embd.weight":
            return Q.Q8_0
        if "attn_v" in name:  # another format than q and k, as converters choose
            return plain[(layer(name) + 2) % 5]
        return plain[(layer(name) + ("ffn_down" in name)) % len(plain)]

    def k_quants(name):
        if "attn_v" in name or "ffn_down" in name or name == "token_embd.weight":
            return Q.Q6_K
        return Q.Q5_K if layer(name) % 2 else Q.Q4_K

    random_model(f"{models}/gguf/random_gemma3_mixed.gguf", "gemma3", mixed, 1)
    random_model(f"{models}/gguf/random_llama_k.gguf", "llama", k_quants, 2)


if __name__ == "__main__":
    main()
