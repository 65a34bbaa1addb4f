#!/usr/bin/env python3
"""Finds the steps of a golden answer at which rounding to bf16 says another token than fp32 does.

usage: bf16_flips.py FOLDER     (needs: numpy)

FOLDER holds SmolLM3, or a Llama that is spelled as one. Its forward pass, in numpy, rounds to bf16 what Quire's bf16
profile rounds: the inputs of matrices, keys, values and queries, and the weights of attention. Where it prefers another
token than the reference, the step goes into the prompt's `bf16_flips` in golden.json. Without any rounding it must give
the reference's log-probabilities, else nothing is written.
"""
import json
import sys

import numpy as np

from tiny_gguf import read_safetensors


def bf16(x):
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def fp32(x):
    return np.asarray(x, np.float32)


def log_probabilities(c, w, ids, rounded):
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    d, n = c["hidden_size"] // heads, len(ids)
    angles = np.outer(np.arange(n), c["rope_parameters"]["rope_theta"] ** (-np.arange(0, d, 2) / d))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def norm(x, name):
        return rounded(fp32(x / np.sqrt((x**2).mean(-1, keepdims=True) + c["rms_norm_eps"])) * w[name])

    def rope(x):
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = fp32(w["model.embed_tokens.weight"][ids])
    for layer in range(c["num_hidden_layers"]):
        name = lambda rest: f"model.layers.{layer}.{rest}.weight"
        times = lambda h, rest: fp32(h @ w[name(rest)].T)
        h = norm(x, name("input_layernorm"))
        q = times(h, "self_attn.q_proj").reshape(n, heads, d)
        k = times(h, "self_attn.k_proj").reshape(n, kv_heads, d)
        v = rounded(times(h, "self_attn.v_proj").reshape(n, kv_heads, d))
        if c["no_rope_layers"][layer]:
            q, k = rope(q), rope(k)
        k, v = (np.repeat(t, heads // kv_heads, 1) for t in (rounded(k), v))
        s = np.einsum("qhd,khd->hqk", rounded(q), k) * d**-0.5
        s = np.where(np.tril(np.ones((n, n), bool)), s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        attended = np.einsum("hqk,khd->qhd", rounded(p), v) / p.sum(-1).T[..., None]
        x = x + times(rounded(attended.reshape(n, -1)), "self_attn.o_proj")
        h = norm(x, name("post_attention_layernorm"))
        gate, up = times(h, "mlp.gate_proj"), times(h, "mlp.up_proj")
        x = x + times(rounded(gate / (1 + np.exp(-gate)) * up), "mlp.down_proj")
    logits = norm(x, "model.norm.weight") @ w["model.embed_tokens.weight"].T
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def main():
    folder = sys.argv[1]
    config, golden = (json.load(open(f"{folder}/{name}.json")) for name in ("config", "golden"))
    weights = read_safetensors(f"{folder}/model.safetensors")
    for prompt in golden["prompts"]:
        ids, greedy = prompt["ids"] + prompt["greedy_ids"], prompt["greedy_ids"]
        steps = slice(len(prompt["ids"]) - 1, len(ids) - 1)
        exact = log_probabilities(config, weights, ids, fp32)[steps]
        for row, top5 in zip(exact, prompt["greedy_top5"]):
            assert all(abs(row[token] - value) < 1e-4 for token, value in top5)
        best = log_probabilities(config, weights, ids, bf16)[steps].argmax(-1)
        prompt["bf16_flips"] = [step for step, token in enumerate(greedy) if best[step] != token]
        print(len(prompt["ids"]), prompt["bf16_flips"])
    with open(f"{folder}/golden.json", "w") as f:
        json.dump(golden, f, separators=(",", ":"))


if __name__ == "__main__":
    main()
