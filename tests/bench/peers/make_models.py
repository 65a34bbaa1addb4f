#!/usr/bin/env python3
"""Makes a model of random weights in the shape of a published one, as a folder and as GGUF files, and prints the file or folder asked for.

usage: make_models.py {qwen3-0.6b,gemma3-1b,smollm2-135m} {safetensors,bf16,q8_0,q4_0,q4_k} --quantize LLAMA_QUANTIZE

It runs in the environment `models` of install.py. Weights are normal with a deviation of 0.02, norms one, from a fixed
seed: activations stay finite, and the same file comes out every time. Only speed can be measured with them. The vocabulary
has the published size; its tokens are the bytes and fillers. What is there already is not made again.
"""
import argparse
import json
import os
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy
from gguf import GGMLQuantizationType, GGUFWriter

SEED, DEVIATION = 5, 0.02


@dataclass(frozen=True)
class Shape:
    architecture: str  # of GGUF
    model_class: str  # of config.json
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    context: int
    theta: float
    epsilon: float
    qk_norm: bool = False
    window: int = 0  # five layers of six see so many tokens, and there are norms behind attention and MLP


SHAPES = {
    "qwen3-0.6b": Shape(
        "qwen3", "Qwen3ForCausalLM", 151936, 1024, 28, 16, 8, 128, 3072, 40960, 1e6, 1e-6, qk_norm=True
    ),
    "gemma3-1b": Shape(
        "gemma3", "Gemma3ForCausalLM", 262144, 1152, 26, 4, 1, 256, 6912, 32768, 1e6, 1e-6, qk_norm=True, window=512
    ),
    "smollm2-135m": Shape("llama", "LlamaForCausalLM", 49152, 576, 30, 9, 3, 64, 1536, 8192, 1e5, 1e-5),
}
# What llama-quantize is asked for. Published 4-bit files hold a tied head at 8 or 6 bits; here Q4_0 has it in Q8_0.
QUANTIZED = {
    "q8_0": ["Q8_0"],
    "q4_0": ["--token-embedding-type", "q8_0", "Q4_0"],
    "q4_k": ["Q4_K_M"],
}


def bf16(values):
    """Rounded to nearest even, as 16-bit integers; for finite values."""
    bits = numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def tensors(shape):
    """(name in safetensors, name in GGUF, shape), in the order of the files; vectors are norms."""
    s, q, kv = shape, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    yield "model.embed_tokens.weight", "token_embd.weight", (s.vocab, s.hidden)
    for i in range(s.layers):
        a, b = f"model.layers.{i}.", f"blk.{i}."
        yield a + "input_layernorm.weight", b + "attn_norm.weight", (s.hidden,)
        yield a + "self_attn.q_proj.weight", b + "attn_q.weight", (q, s.hidden)
        yield a + "self_attn.k_proj.weight", b + "attn_k.weight", (kv, s.hidden)
        yield a + "self_attn.v_proj.weight", b + "attn_v.weight", (kv, s.hidden)
        yield a + "self_attn.o_proj.weight", b + "attn_output.weight", (s.hidden, q)
        if s.qk_norm:
            yield a + "self_attn.q_norm.weight", b + "attn_q_norm.weight", (s.head_size,)
            yield a + "self_attn.k_norm.weight", b + "attn_k_norm.weight", (s.head_size,)
        before_mlp = "post_attention_layernorm"
        if s.window:
            before_mlp = "pre_feedforward_layernorm"
            yield a + "post_attention_layernorm.weight", b + "post_attention_norm.weight", (s.hidden,)
            yield a + "post_feedforward_layernorm.weight", b + "post_ffw_norm.weight", (s.hidden,)
        yield a + before_mlp + ".weight", b + "ffn_norm.weight", (s.hidden,)
        yield a + "mlp.gate_proj.weight", b + "ffn_gate.weight", (s.ffn, s.hidden)
        yield a + "mlp.up_proj.weight", b + "ffn_up.weight", (s.ffn, s.hidden)
        yield a + "mlp.down_proj.weight", b + "ffn_down.weight", (s.hidden, s.ffn)
    yield "model.norm.weight", "output_norm.weight", (s.hidden,)


def weights(name, dimensions):
    """A tensor's own stream of numbers, so that both kinds of file hold the same."""
    source = numpy.random.default_rng([SEED, zlib.crc32(name.encode())])
    return source.standard_normal(dimensions, dtype=numpy.float32) * numpy.float32(DEVIATION)


def byte_characters():
    """GPT-2's characters for the 256 bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def vocabulary(size):
    tokens = [byte_characters()[b] for b in range(256)] + ["Ġt"]
    return tokens + [f"filler{i}" for i in range(size - len(tokens) - 1)] + ["<|end|>"]


def config(s):
    values = {
        "architectures": [s.model_class],
        "model_type": {"gemma3": "gemma3_text"}.get(s.architecture, s.architecture),
        "vocab_size": s.vocab,
        "hidden_size": s.hidden,
        "intermediate_size": s.ffn,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_size,
        "max_position_embeddings": s.context,
        "rms_norm_eps": s.epsilon,
        "rope_theta": s.theta,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "eos_token_id": s.vocab - 1,
        "bos_token_id": s.vocab - 1,
        "torch_dtype": "bfloat16",
    }
    if s.window:
        return values | {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": s.head_size,
            "sliding_window": s.window,
            "sliding_window_pattern": 6,
            "rope_local_base_freq": 10000,
        }
    return values | {"hidden_act": "silu"}


def write_folder(shape, folder):
    end = {"id": shape.vocab - 1, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [end | {"normalized": False, "special": True}],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(vocabulary(shape.vocab))},
            "merges": ["Ġ t"],
        },
    }
    files = {
        "config.json": config(shape),
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"},
        "generation_config.json": {"eos_token_id": shape.vocab - 1},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False))
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, _, dimensions in tensors(shape):
        size = 2 * int(numpy.prod(dimensions))
        header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, _, dimensions in tensors(shape):
            # Gemma adds one to what its folder holds; its GGUF files hold the sum.
            norm = numpy.full(dimensions, 0.0 if shape.window else 1.0)
            file.write(bf16(norm if len(dimensions) == 1 else weights(name, dimensions)).tobytes())


def write_gguf(shape, path):
    s = shape
    writer = GGUFWriter(path, s.architecture)
    writer.add_name("random")
    writer.add_context_length(s.context)
    writer.add_embedding_length(s.hidden)
    writer.add_block_count(s.layers)
    writer.add_feed_forward_length(s.ffn)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_size)
    writer.add_value_length(s.head_size)
    writer.add_layer_norm_rms_eps(s.epsilon)
    writer.add_rope_freq_base(s.theta)
    writer.add_vocab_size(s.vocab)
    if s.architecture == "llama":
        writer.add_rope_dimension_count(s.head_size)
    if s.window:
        writer.add_sliding_window(s.window)
    writer.add_file_type(32)  # mostly BF16
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary(s.vocab))
    writer.add_token_types([1] * (s.vocab - 1) + [3])
    writer.add_token_merges(["Ġ t"])
    writer.add_eos_token_id(s.vocab - 1)
    writer.add_bos_token_id(s.vocab - 1)
    writer.add_add_bos_token(False)
    for name, gguf_name, dimensions in tensors(s):
        if len(dimensions) == 1:
            writer.add_tensor(gguf_name, numpy.ones(dimensions, dtype=numpy.float32))
        else:
            values = bf16(weights(name, dimensions)).view(numpy.uint8)
            writer.add_tensor(gguf_name, values, raw_dtype=GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(name, form, folder, quantize):
    """The path of the model in that form. It appears under its name when it is whole."""
    path = folder / (name if form == "safetensors" else f"{name}-{form}.gguf")
    if path.exists():
        return path
    partial = path.with_name(f"partial-{os.getpid()}-{path.name}")
    if form == "safetensors":
        partial.mkdir(parents=True)
        write_folder(SHAPES[name], partial)
    elif form == "bf16":
        partial.parent.mkdir(parents=True, exist_ok=True)
        write_gguf(SHAPES[name], partial)
    else:
        source = make(name, "bf16", folder, quantize)
        *options, kind = QUANTIZED[form]
        command = [quantize, *options, source, partial, kind]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    partial.rename(path)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("form", choices=["safetensors", "bf16", *QUANTIZED])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--quantize", help="the program llama-quantize")
    options = parser.parse_args()
    print(make(options.name, options.form, options.folder, options.quantize))


if __name__ == "__main__":
    main()
