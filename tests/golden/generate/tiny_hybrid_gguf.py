#!/usr/bin/env python3
"""Writes the tiny GGUF models of tests/golden/models/gguf whose layers are recurrent or have latent attention.

usage: tiny_hybrid_gguf.py MODELS_DIR     (needs: pip install gguf safetensors numpy)

They hold the weights of the Hugging Face fixtures, unquantised, as llama.cpp's converter writes them: 1 added to the
norms of Qwen, rates of decay instead of their logarithms, value heads that share a key head apart.
"""
import json
import sys

import gguf
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


QWEN_NEXT = QWEN | {
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
DEEPSEEK = COMMON | {
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "self_attn.kv_b_proj.weight": "attn_kv_b.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "self_attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    "self_attn.indexer.wk.weight": "indexer.attn_k.weight",
    "self_attn.indexer.weights_proj.weight": "indexer.proj.weight",
    "self_attn.indexer.k_norm.weight": "indexer.k_norm.weight",
    "self_attn.indexer.k_norm.bias": "indexer.k_norm.bias",
}


def kind_of(name, values):
    """Vectors, routers and convolutions stay fp32."""
    small = values.ndim == 1 or any(part in name for part in ("gate_inp", "conv1d", "indexer.proj"))
    return Q.F32 if small else Q.BF16


def stack_experts(w, tensors, layers, experts):
    """Adds the experts of every layer that has some, each of three matrices stacked; they leave `tensors`."""
    for layer in range(layers):
        for part, to in (("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down")):
            names = [f"model.layers.{layer}.mlp.experts.{e}.{part}.weight" for e in range(experts)]
            if names[0] in tensors:
                add(w, f"blk.{layer}.ffn_{to}_exps.weight", np.stack([tensors.pop(n) for n in names]), Q.BF16)


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
    qwen35_tensors(w, c, read_safetensors(f"{folder}/model.safetensors"))
    finish(w)


def qwen35moe(folder, out):
    c = json.load(open(f"{folder}/config.json"))["text_config"]
    w = writer(out, "qwen35moe", c)
    delta_parameters(w, c)
    expert_parameters(w, c)
    root, tensors = "model.language_model.", {}
    for name, values in read_safetensors(f"{folder}/model.safetensors").items():
        if name.startswith(root) or name == "lm_head.weight":
            tensors[name.replace(root, "model.")] = values
    stack_experts(w, tensors, c["num_hidden_layers"], c["num_experts"])
    qwen35_tensors(w, c, tensors)
    finish(w)


def expert_parameters(w, c):
    w.add_expert_count(c["num_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])


def qwen35_tensors(w, c, tensors):
    dv = c["linear_value_head_dim"]
    before = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]  # rows of q and k
    for name, values in tensors.items():
        layer, rest = place(name)
        if layer is None:
            add(w, rest, values + 1 if values.ndim == 1 else values, kind_of(rest, values))
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
        elif rest == "mlp.shared_expert_gate.weight":
            values = values[0]  # llama.cpp keeps no dimensions of one behind the last other
        add(w, f"blk.{layer}.{QWEN_NEXT[rest]}", values, kind_of(QWEN_NEXT[rest], values))


def qwen3next(folder, out):
    c = json.load(open(f"{folder}/config.json"))
    w = writer(out, "qwen3next", c)
    delta_parameters(w, c)
    expert_parameters(w, c)
    tensors = read_safetensors(f"{folder}/model.safetensors")
    stack_experts(w, tensors, c["num_hidden_layers"], c["num_experts"])
    keys, dk, dv = c["linear_num_key_heads"], c["linear_key_head_dim"], c["linear_value_head_dim"]
    v = c["linear_num_value_heads"] // keys * dv  # rows of a key head
    for name, values in tensors.items():
        layer, rest = place(name)
        if layer is None:
            add(w, rest, values + 1 if values.ndim == 1 else values, kind_of(rest, values))
        elif rest == "linear_attn.in_proj_qkvz.weight":
            parts = np.split(values.reshape(keys, -1, c["hidden_size"]), [dk, 2 * dk, 2 * dk + v], axis=1)
            flat = [part.reshape(-1, c["hidden_size"]) for part in parts]
            add(w, f"blk.{layer}.attn_qkv.weight", np.concatenate(flat[:3]), Q.BF16)
            add(w, f"blk.{layer}.attn_gate.weight", flat[3], Q.BF16)
        else:
            values = qwen_tensor(rest, values)
            if rest == "mlp.shared_expert_gate.weight":
                values = values[0]  # llama.cpp keeps no dimensions of one behind the last other
            add(w, f"blk.{layer}.{QWEN_NEXT[rest]}", values, kind_of(QWEN_NEXT[rest], values))
    finish(w)


def deepseek(folder, out, architecture, split=True):
    """`split`: keys and values of heads in two tensors, as newer files have them."""
    c = json.load(open(f"{folder}/config.json"))
    heads, nope, dv = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
    rank, turned = c["kv_lora_rank"], c["qk_rope_head_dim"]
    sizes = {"head_dim": rank + turned, "v_head_dim": rank} if split else {"head_dim": nope + turned}
    w = writer(out, architecture, c | {"num_key_value_heads": 1} | sizes)
    w.add_vocab_size(c["vocab_size"])
    w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(rank)
    if split:
        w.add_key_length_mla(nope + turned)
        w.add_value_length_mla(dv)
    w.add_leading_dense_block_count(1)
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_expert_group_count(c["n_group"])
    w.add_expert_group_used_count(c["topk_group"])
    rope = c["rope_parameters"]
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(turned)
    if rope["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if "index_topk" in c:
        w.add_indexer_head_count(c["index_n_heads"])
        w.add_indexer_key_length(c["index_head_dim"])
        w.add_indexer_top_k(c["index_topk"])
    if "indexer_types" in c:
        w.add_array(f"{architecture}.attention.indexer.types", [kind == "full" for kind in c["indexer_types"]])
    tensors = read_safetensors(f"{folder}/model.safetensors")
    layers = c["num_hidden_layers"]
    tensors = {n: t for n, t in tensors.items() if n in NAMES or int(n.split(".")[2]) < layers}
    stack_experts(w, tensors, layers, c["n_routed_experts"])
    for name, values in tensors.items():
        layer, rest = place(name)
        if layer is None:
            add(w, rest, values, kind_of(rest, values))
        elif split and rest == "self_attn.kv_b_proj.weight":
            k, v = np.split(values.reshape(heads, nope + dv, rank), [nope], axis=1)
            add(w, f"blk.{layer}.attn_k_b.weight", k.swapaxes(1, 2), Q.BF16)
            add(w, f"blk.{layer}.attn_v_b.weight", v, Q.BF16)
        else:
            add(w, f"blk.{layer}.{DEEPSEEK[rest]}", values, kind_of(DEEPSEEK[rest], values))
    finish(w)


def deepseek2(folder, out):
    deepseek(folder, out, "deepseek2")


def older_deepseek2(folder, out):
    deepseek(folder, out, "deepseek2", split=False)


def deepseek32(folder, out):
    deepseek(folder, out, "deepseek32")


def glm_dsa(folder, out):
    deepseek(folder, out, "glm-dsa")


def main():
    models = sys.argv[1]
    twins = (("qwen3_5", qwen35), ("qwen3_5_moe", qwen35moe), ("qwen3_next", qwen3next), ("glm4_moe_lite", older_deepseek2),
             ("deepseek_v3", deepseek2), ("deepseek_v32", deepseek32), ("glm_moe_dsa", glm_dsa))
    for name, write in twins:
        write(f"{models}/{name}", f"{models}/gguf/{name}.gguf")


if __name__ == "__main__":
    main()
