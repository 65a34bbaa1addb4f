#!/usr/bin/env python3
"""Writes what a GGUF file of Llama or Gemma 3 means as a folder in BF16, for measuring what quantising it anew costs.

usage: float_model.py FILE.gguf FOLDER     (needs: pip install gguf numpy; norms stay F32)

Numbers that a file's groups of 32 could hold would be found again by groups of 32. So hidden size, MLP and the heads'
values are permuted, from a fixed seed, in all tensors that they connect: the model's answers are the same, and no group
lies where one of the file's lay.
"""
import argparse
import json
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize

SEED = 7


def halves(w, heads):
    """Rows of pairs (2i, 2i + 1), as GGUF has q and k of Llama, become rows of halves (i, i + d/2)."""
    n, k = w.shape
    return w.reshape(heads, n // heads // 2, 2, k).swapaxes(1, 2).reshape(n, k)


def config(reader, arch, tensors):
    def value(key):
        field = reader.fields.get(f"{arch}.{key}")
        return None if field is None else field.contents()

    heads, hidden = value("attention.head_count"), value("embedding_length")
    c = {
        "vocab_size": len(tensors["token_embd.weight"]),
        "hidden_size": hidden,
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv"),
        "head_dim": value("attention.key_length") or hidden // heads,
        "rms_norm_eps": float(value("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": value("context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_theta": float(value("rope.freq_base") or 10000),
    }
    if arch == "llama":
        return c | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    return c | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": value("attention.sliding_window"),
        "sliding_window_pattern": 6,
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": c["head_dim"],
    }


def layer(c, tensors, i, hidden, rng):
    """The tensors of layer i by their Hugging Face names; `hidden` is the order of the hidden size."""
    gemma = c["model_type"] == "gemma3_text"
    heads, kv_heads, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    t = {name.removesuffix(".weight"): tensors[f"blk.{i}.{name}"] for name in sorted(
        name.split(".", 2)[2] for name in tensors if name.startswith(f"blk.{i}."))}  # fmt: skip
    q, k, v, o = t["attn_q"], t["attn_k"], t["attn_v"], t["attn_output"]
    if not gemma:
        q, k = halves(q, heads), halves(k, kv_heads)
    values, mlp = rng.permutation(size), rng.permutation(c["intermediate_size"])
    v = v.reshape(kv_heads, size, -1)[:, values].reshape(v.shape)
    o = o.reshape(-1, heads, size)[:, :, values].reshape(o.shape)
    out = {
        "self_attn.q_proj": q[:, hidden],
        "self_attn.k_proj": k[:, hidden],
        "self_attn.v_proj": v[:, hidden],
        "self_attn.o_proj": o[hidden],
        "mlp.gate_proj": t["ffn_gate"][mlp][:, hidden],
        "mlp.up_proj": t["ffn_up"][mlp][:, hidden],
        "mlp.down_proj": t["ffn_down"][hidden][:, mlp],
        "input_layernorm": t["attn_norm"][hidden],
    }
    if gemma:
        out |= {
            "self_attn.q_norm": t["attn_q_norm"],
            "self_attn.k_norm": t["attn_k_norm"],
            "post_attention_layernorm": t["post_attention_norm"][hidden],
            "pre_feedforward_layernorm": t["ffn_norm"][hidden],
            "post_feedforward_layernorm": t["post_ffw_norm"][hidden],
        }
    else:
        out["post_attention_layernorm"] = t["ffn_norm"][hidden]
    return {f"model.layers.{i}.{name}.weight": w for name, w in out.items()}


def bf16(values):
    """Rounded to nearest even, for finite values."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write(path, tensors):
    arrays = {n: bf16(a) if a.ndim == 2 else np.ascontiguousarray(a, dtype=np.float32) for n, a in tensors.items()}
    header, end = {}, 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": "BF16" if array.ndim == 2 else "F32",
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    reader = GGUFReader(options.file)
    arch = reader.fields["general.architecture"].contents()
    if arch not in ("llama", "gemma3"):
        parser.error(f"{options.file} is of the architecture {arch}, not llama or gemma3")
    given = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    c = config(reader, arch, given)
    rng = np.random.default_rng(SEED)
    hidden = rng.permutation(c["hidden_size"])
    tensors = {"model.embed_tokens.weight": given["token_embd.weight"][:, hidden]}
    tensors["model.norm.weight"] = given["output_norm.weight"][hidden]
    if "output.weight" in given:
        tensors["lm_head.weight"] = given["output.weight"][:, hidden]
    for i in range(c["num_hidden_layers"]):
        tensors |= layer(c, given, i, hidden, rng)
    if arch == "gemma3":  # GGUF has the 1 of 1 + w added
        tensors = {n: a - 1 if a.ndim == 1 else a for n, a in tensors.items()}
    options.folder.mkdir(parents=True, exist_ok=True)
    write(options.folder / "model.safetensors", tensors)
    (options.folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")


if __name__ == "__main__":
    main()
