#!/usr/bin/env python3
"""Writes the tiny GGUF models with experts of tests/golden/models/gguf.

usage: tiny_moe_gguf.py MODELS_DIR     (needs: pip install gguf safetensors numpy)

One holds the weights of the fixture qwen3_moe as a converter writes them, all experts of a matrix in one stack: its
answers are the fixture's own. One has random weights in K-quants, for tests that compare Quire with itself.
"""
import json
import os
import re
import sys

import numpy as np
from gguf import GGMLQuantizationType as Q

from tiny_gguf import add, finish, gguf_name, random_blocks, read_safetensors, writer

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
    random_model(f"{models}/gguf/random_qwen3_moe.gguf", 3)


if __name__ == "__main__":
    main()
