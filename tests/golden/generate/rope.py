#!/usr/bin/env python3
"""Writes the vectors of tests/golden/model/rope.json: what configurations ask rotary embeddings to be.

usage: rope.py OUT     (needs: numpy)

The formulas are those of transformers' modeling_rope_utils.py, in float64, written down once more: for each configuration
the inverse frequencies, what cos and sin are multiplied with, and, for DeepSeek, what the softmax scale is multiplied
with. `longest` is the length of the longest request that is allowed; absent it is the model's own.
"""
import json
import math
import sys

import numpy as np


def mscale(factor, m=1.0):
    return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0


def section_of(config, name):
    """The rope's own keys, in the newer spelling."""
    if "rope_parameters" in config:
        own = dict(config["rope_parameters"])
        own = dict(own[name]) if name else own
    else:
        own = dict(config.get("rope_scaling") or {})
        own["rope_theta"] = config.get("rope_theta", 10000.0)
    own.setdefault("rope_type", own.get("type", "default"))
    if "partial_rotary_factor" in config:
        own.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    own["original"] = config.get("original_max_position_embeddings") or own.get(
        "original_max_position_embeddings", config["max_position_embeddings"])
    if own["rope_type"] in ("su", "yarn") and "short_factor" in own:
        own["rope_type"] = "longrope"
    return own


def rope(config, name, head_dim, longest):
    p = section_of(config, name)
    most = config["max_position_embeddings"]
    longest = longest or most
    dim = int(head_dim * p.get("partial_rotary_factor", 1.0))
    base = np.float64(p["rope_theta"])
    exponents = np.arange(0, dim, 2, dtype=np.float64) / dim
    inverse = base ** -exponents
    attention = 1.0
    kind = p["rope_type"]
    if kind == "linear":
        inverse = inverse / p["factor"]
    elif kind == "dynamic":
        length = max(longest, most)
        grown = base * ((p["factor"] * length / most) - (p["factor"] - 1)) ** (dim / (dim - 2))
        inverse = grown ** -exponents
    elif kind == "llama3":
        wavelength = 2 * math.pi / inverse
        low, high = p["low_freq_factor"], p["high_freq_factor"]
        scaled = np.where(wavelength > p["original"] / low, inverse / p["factor"], inverse)
        smooth = (p["original"] / wavelength - low) / (high - low)
        blended = (1 - smooth) * scaled / p["factor"] + smooth * scaled
        medium = (wavelength >= p["original"] / high) & (wavelength <= p["original"] / low)
        inverse = np.where(medium, blended, scaled)
    elif kind == "yarn":
        factor = p.get("factor") or most / p["original"]
        if p.get("attention_factor") is not None:
            attention = p["attention_factor"]
        elif p.get("mscale") and p.get("mscale_all_dim"):
            attention = mscale(factor, p["mscale"]) / mscale(factor, p["mscale_all_dim"])
        else:
            attention = mscale(factor)
        correction = lambda turns: dim * math.log(p["original"] / (turns * 2 * math.pi)) / (2 * math.log(base))
        low, high = correction(p.get("beta_fast") or 32), correction(p.get("beta_slow") or 1)
        if p.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        if low == high:
            high += 0.001
        ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
        inverse = inverse / factor * ramp + inverse * (1 - ramp)
    elif kind == "longrope":
        factor = p.get("factor") or most / p["original"]
        if p.get("attention_factor") is not None:
            attention = p["attention_factor"]
        elif factor > 1:
            attention = math.sqrt(1 + math.log(factor) / math.log(p["original"]))
        divisors = p["long_factor"] if longest > p["original"] else p["short_factor"]
        inverse = inverse / np.float32(divisors).astype(np.float64)
    softmax = 1.0
    if kind != "default" and p.get("mscale_all_dim"):
        softmax = mscale(p["factor"], p["mscale_all_dim"]) ** 2
    return {"inverse": inverse.tolist(), "attention_factor": float(attention), "softmax_factor": softmax}


YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "rope_theta": 150000.0}
DEEPSEEK = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
SHORT = [1.0 + 0.01 * i for i in range(12)]
LONG = [1.5 + 0.75 * i for i in range(12)]
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}


def cases():
    def case(name, head_dim, config, section="", longest=None):
        return {"name": name, "head_dim": head_dim, "config": config, "section": section, "longest": longest}

    yield case("default", 64, {"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})
    yield case("default, old", 24, {"max_position_embeddings": 2048, "rope_theta": 500000.0, "rope_scaling": None})
    yield case("nothing said", 16, {"max_position_embeddings": 2048})
    yield case("linear", 32, {"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}})
    yield case("linear, old", 32, {"max_position_embeddings": 2048, "rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.5}})
    dynamic = {"max_position_embeddings": 2048, "rope_theta": 10000.0, "rope_scaling": {"type": "dynamic", "factor": 4.0}}
    yield case("dynamic within the model's length", 64, dynamic)
    yield case("dynamic below it", 64, dynamic, longest=100)
    yield case("dynamic beyond it", 64, dynamic, longest=6000)
    yield case("llama3", 128, {"max_position_embeddings": 131072, "rope_parameters": {**LLAMA3, "rope_theta": 500000.0}})
    yield case("llama3, old", 64, {"max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": LLAMA3})
    yield case("yarn", 64, {"max_position_embeddings": 131072, "rope_parameters": YARN})
    yield case("yarn without truncation", 64, {"max_position_embeddings": 131072, "rope_parameters": {**YARN, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0}})
    yield case("yarn with an attention factor", 128, {"max_position_embeddings": 131072, "rope_parameters": {**YARN, "attention_factor": 1.25}})
    yield case("yarn with other betas, old", 128, {"max_position_embeddings": 32768, "rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192, "beta_fast": 16, "beta_slow": 2}})
    yield case("yarn whose ramp leaves the head", 16, {"max_position_embeddings": 512, "rope_parameters": {**YARN, "original_max_position_embeddings": 64, "factor": 8.0, "truncate": False}})
    yield case("yarn without a factor", 64, {"max_position_embeddings": 16384, "rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 4096}})
    yield case("yarn of DeepSeek-V3", 64, {"max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling": {**DEEPSEEK, "mscale": 1.0, "mscale_all_dim": 1.0}})
    yield case("yarn of unequal mscales", 64, {"max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling": {**DEEPSEEK, "mscale": 1.2, "mscale_all_dim": 0.707}})
    phi = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
    yield case("longrope, long", 32, {**phi, "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}})
    yield case("longrope, short", 32, {**phi, "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}}, longest=4096)
    yield case("longrope, one beyond", 32, {**phi, "rope_scaling": {"type": "su", "short_factor": SHORT, "long_factor": LONG}}, longest=4097)
    yield case("longrope called yarn", 32, {**phi, "rope_scaling": {"type": "yarn", "short_factor": SHORT, "long_factor": LONG}})
    yield case("longrope with a factor", 24, {"max_position_embeddings": 8192, "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 1024, "short_factor": SHORT, "long_factor": LONG}})
    yield case("longrope with an attention factor", 24, {"max_position_embeddings": 8192, "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "attention_factor": 1.19, "original_max_position_embeddings": 1024, "short_factor": SHORT, "long_factor": LONG}})
    yield case("partial", 32, {"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}})
    yield case("partial, old, and linear", 80, {"max_position_embeddings": 2048, "rope_theta": 10000.0, "partial_rotary_factor": 0.4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})
    per_layer = {"max_position_embeddings": 2048, "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
    yield case("per layer, full", 32, per_layer, "full_attention")
    yield case("per layer, window", 32, per_layer, "sliding_attention")


def main():
    out = [{**c, **rope(c["config"], c["section"], c["head_dim"], c["longest"])} for c in cases()]
    with open(sys.argv[1], "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in out) + "\n]\n")


if __name__ == "__main__":
    main()
