#!/usr/bin/env python3
"""Writes the tiny GGUF models of tests/golden/models/gguf whose layers are recurrent or have latent attention.

usage: tiny_hybrid_gguf.py MODELS_DIR     (needs: pip install gguf safetensors numpy)

They hold the weights of the Hugging Face fixtures, unquantised, as llama.cpp's converter writes them: 1 added to the
norms of Qwen, rates of decay instead of their logarithms, value heads that share a key head apart.
"""
import json
import sys

import numpy as np
from gguf import GGMLQuantizationType as Q

from tiny_gguf import NAMES, add, finish, read_safetensors, writer

COMMON = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
QWEN = COMMON | {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}


def place(name):
    """The layer's number, or none, and the name in it."""
    if name in NAMES:
        return None, NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return int(layer), rest


def delta_parameters(w, c):
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    w.add_full_attention_interval(4)
    w.add_rope_freq_base(c["rope_parameters"]["rope_theta"])
    w.add_rope_dimension_count(int(c["head_dim"] * c["rope_parameters"]["partial_rotary_factor"]))


def tiled(values, c, axis, size):
    """Heads of `size` along an axis: those that share a key head lie apart instead of together."""
    shape, keys = values.shape, c["linear_num_key_heads"]
    split = shape[:axis] + (keys, c["linear_num_value_heads"] // keys, size) + shape[axis + 1:]
    return values.reshape(split).swapaxes(axis, axis + 1).reshape(shape)


def qwen_tensor(rest, values):
    if rest == "linear_attn.A_log":
        return -np.exp(values)
    if rest == "linear_attn.conv1d.weight":
        return values[:, 0]
    return values + 1 if rest.endswith("norm.weight") and rest != "linear_attn.norm.weight" else values


def qwen35(folder, out):
    c = json.load(open(f"{folder}/config.json"))
    w = writer(out, "qwen35", c)
    delta_parameters(w, c)
    dv = c["linear_value_head_dim"]
    before = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]  # rows of q and k
    for name, values in read_safetensors(f"{folder}/model.safetensors").items():
        layer, rest = place(name)
        if layer is None:
            add(w, rest, values + 1 if values.ndim == 1 else values, Q.F32 if values.ndim == 1 else Q.BF16)
            continue
        values, part = qwen_tensor(rest, values), rest.removeprefix("linear_attn.").split(".")[0]
        if part in ("in_proj_qkv", "conv1d"):
            values = np.concatenate([values[:before], tiled(values[before:], c, 0, dv)])
        elif part == "in_proj_z":
            values = tiled(values, c, 0, dv)
        elif part in ("in_proj_a", "in_proj_b", "A_log", "dt_bias"):
            values = tiled(values, c, 0, 1)
        elif part == "out_proj":
            values = tiled(values, c, 1, dv)
        add(w, f"blk.{layer}.{QWEN[rest]}", values, Q.F32 if values.ndim == 1 or part == "conv1d" else Q.BF16)
    finish(w)


def main():
    models = sys.argv[1]
    for name, write in (("qwen3_5", qwen35),):
        write(f"{models}/{name}", f"{models}/gguf/{name}.gguf")


if __name__ == "__main__":
    main()
