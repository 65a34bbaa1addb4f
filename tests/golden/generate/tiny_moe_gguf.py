#!/usr/bin/env python3
"""Writes the tiny GGUF models with experts of tests/golden/models/gguf.

usage: tiny_moe_gguf.py MODELS_DIR     (needs: pip install gguf safetensors numpy)

Two hold the weights of the fixtures qwen3_moe and gpt_oss as a converter writes them, all experts of a matrix in one
stack: their answers are the fixtures' own. One holds those of llama4; the format says nothing of chunks and of queries
that grow, which are then those of the published models. One has random weights in K-quants, for tests that compare Quire
with itself.
"""
import json
import os
import re
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

from tiny_gguf import add, add_rope, finish, gguf_name, random_blocks, read_safetensors, writer

EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


def experts(w, c, count):
    w.add_expert_count(count)
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_rope_freq_base(c["rope_theta"])


def convert(folder, out):
    c = json.load(open(f"{folder}/config.json"))
    c["rope_theta"] = c["rope_parameters"]["rope_theta"]
    w = writer(out, "qwen3moe", c)
    experts(w, c, c["num_local_experts"])
    stacks = {}
    for name, values in read_safetensors(f"{folder}/model.safetensors").items():
        if match := EXPERT.fullmatch(name):
            layer, expert, matrix = match.groups()
            stacks.setdefault(f"blk.{layer}.ffn_{matrix}_exps.weight", {})[int(expert)] = values
        elif name.endswith("mlp.gate.weight"):
            add(w, f"blk.{name.split('.')[2]}.ffn_gate_inp.weight", values, Q.F32)
        else:
            add(w, gguf_name(name, False), values, Q.F32 if values.ndim == 1 else Q.BF16)
    for name, stack in stacks.items():
        add(w, name, np.stack([stack[e] for e in sorted(stack)]), Q.BF16)
    finish(w)


GPT_OSS = {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.router.weight": "ffn_gate_inp.weight",
    "mlp.router.bias": "ffn_gate_inp.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
}


def gpt_oss_tensors(name, values):
    """What becomes of a tensor: experts lie [in, out] in the fixture, gate and up in alternating columns."""
    if not name.startswith("model.layers."):
        return {gguf_name(name, False): values}
    _, _, layer, rest = name.split(".", 3)
    block = f"blk.{layer}."
    if rest.startswith("mlp.experts.gate_up_proj"):
        end = "bias" if rest.endswith("_bias") else "weight"
        parts = {f"{block}ffn_gate_exps.{end}": values[..., 0::2], f"{block}ffn_up_exps.{end}": values[..., 1::2]}
    elif rest in GPT_OSS:
        parts = {block + GPT_OSS[rest]: values}
    else:
        parts = {gguf_name(name.removesuffix(".bias"), False).removesuffix(".weight") + (".bias" if name.endswith(".bias") else ".weight"): values}
    return {to: v.swapaxes(1, 2) if v.ndim == 3 else v for to, v in parts.items()}


def convert_gpt_oss(folder, out):
    c = json.load(open(f"{folder}/config.json"))
    rope = c["rope_parameters"]
    w = writer(out, "gpt-oss", c)
    experts(w, c | {"moe_intermediate_size": c["intermediate_size"], "rope_theta": rope["rope_theta"]}, c["num_local_experts"])
    w.add_sliding_window(c["sliding_window"])
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(rope["factor"])
    w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    for name, values in read_safetensors(f"{folder}/model.safetensors").items():
        for to, part in gpt_oss_tensors(name, values).items():
            add(w, to, part, Q.F32 if to.endswith(".bias") or part.ndim == 1 or "ffn_gate_inp" in to else Q.BF16)
    finish(w)


def llama4(folder, out):
    c = json.load(open(f"{folder}/config.json"))
    w = writer(out, "llama4", c | {"intermediate_size": c["intermediate_size_mlp"]})
    w.add_expert_count(c["num_local_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["intermediate_size"])
    w.add_interleave_moe_layer_step(c["interleave_moe_layer_step"])
    add_rope(w, "llama4", c)
    for name, values in read_safetensors(f"{folder}/model.safetensors").items():
        rest = name.split("feed_forward.")[-1]
        layer = name.split(".")[2] if rest != name else None
        if rest == name:
            add(w, gguf_name(name, False), values, Q.F32 if values.ndim == 1 else Q.BF16)
        elif rest == "router.weight":
            add(w, f"blk.{layer}.ffn_gate_inp.weight", values, Q.F32)
        elif rest == "experts.gate_up_proj":
            for part, half in zip(("gate", "up"), np.split(values.swapaxes(1, 2), 2, axis=1)):
                add(w, f"blk.{layer}.ffn_{part}_exps.weight", half, Q.BF16)
        elif rest == "experts.down_proj":
            add(w, f"blk.{layer}.ffn_down_exps.weight", values.swapaxes(1, 2), Q.BF16)
        else:  # gate, up and down of the shared expert or of a dense layer
            part = rest.removeprefix("shared_expert.").removesuffix("_proj.weight")
            add(w, f"blk.{layer}.ffn_{part}{'_shexp' if rest.startswith('shared') else ''}.weight", values, Q.BF16)
    finish(w)


def random_model(out, seed):
    c = {
        "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "num_experts_per_tok": 3, "moe_intermediate_size": 256,
        "rope_theta": 10000.0,
    }
    count = 6
    rng = np.random.default_rng(seed)
    w = writer(out, "qwen3moe", c)
    experts(w, c, count)
    h, f = c["hidden_size"], c["moe_intermediate_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]

    def matrix(name, n, k, kind):
        w.add_tensor(name, random_blocks(rng, n, k, kind), raw_dtype=kind)

    def stack(name, n, k, kind):
        w.add_tensor(name, np.stack([random_blocks(rng, n, k, kind) for _ in range(count)]), raw_dtype=kind)

    def norm(name, n):
        add(w, name, 1 + 0.1 * rng.standard_normal(n), Q.F32)

    matrix("token_embd.weight", 256, h, Q.Q6_K)
    norm("output_norm.weight", h)
    for i in range(c["num_hidden_layers"]):
        p = f"blk.{i}."
        norm(p + "attn_norm.weight", h)
        for name, rows in (("attn_q", q), ("attn_k", kv)):
            matrix(p + name + ".weight", rows, h, Q.Q4_K)
            norm(p + name + "_norm.weight", c["head_dim"])
        matrix(p + "attn_v.weight", kv, h, Q.Q6_K)
        add(w, p + "attn_output.weight", rng.standard_normal((h, q)) / np.sqrt(q), Q.Q8_0)
        norm(p + "ffn_norm.weight", h)
        add(w, p + "ffn_gate_inp.weight", rng.standard_normal((count, h)) / np.sqrt(h), Q.F32)
        stack(p + "ffn_gate_exps.weight", f, h, Q.Q4_K)
        stack(p + "ffn_up_exps.weight", f, h, Q.Q5_K)
        stack(p + "ffn_down_exps.weight", h, f, Q.Q6_K)
    finish(w)


def main():
    models = sys.argv[1]
    os.makedirs(f"{models}/gguf", exist_ok=True)
    convert(f"{models}/qwen3_moe", f"{models}/gguf/qwen3_moe.gguf")
    convert_gpt_oss(f"{models}/gpt_oss", f"{models}/gguf/gpt_oss.gguf")
    llama4(f"{models}/llama4", f"{models}/gguf/llama4.gguf")
    random_model(f"{models}/gguf/random_qwen3_moe.gguf", 3)


if __name__ == "__main__":
    main()
