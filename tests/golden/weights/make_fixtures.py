"""Makes the GGUF and safetensors files beside this script. Needs the packages gguf 0.19.0, safetensors and numpy.

formats.gguf: for every format a tensor NAME of random blocks and an F32 tensor NAME.f32 with the values that the gguf
package's own dequantize gives for them; metadata of every type. split-0000N-of-00003.gguf: one model in three files.
quantise.gguf: an F32 tensor "numbers", and "Q8_0" and "Q4_0", what the package's own quantize makes of it.
sharded/ and single/: safetensors as their own library writes them.
"""
import json
import pathlib

import numpy as np
import safetensors.numpy
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Value
from gguf import GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES

here = pathlib.Path(__file__).parent
rng = np.random.default_rng(20)

# Where the fp16 fields of each block are, in halves from its start; every other byte may hold anything.
HALVES = {Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_1: [0, 1], Type.Q5_0: [0], Type.Q5_1: [0, 1],
          Type.Q4_K: [0, 1], Type.Q5_K: [0, 1], Type.Q6_K: [104], Type.Q2_K: [40, 41], Type.Q3_K: [54],
          Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.MXFP4: []}
# Zero, the smallest denormal, the largest denormal, the smallest normal, the largest, and ordinary ones of both signs.
SPECIAL = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x2E66, 0xA123], dtype=np.uint16)


def random_blocks(kind, rows, row_blocks):
    size = GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, size=(rows * row_blocks, size), dtype=np.uint8)
    if kind == Type.MXFP4:  # scales of 0 and 1 are denormals, which Quire takes for zero
        blocks[:, 0] = rng.integers(2, 256, size=len(blocks))
        blocks[:4, 0] = [2, 3, 255, 127]
        return blocks.reshape(rows, row_blocks * size)
    halves = blocks.view(np.uint16)
    for i, block in enumerate(halves):
        for j, at in enumerate(HALVES[kind]):
            block[at] = SPECIAL[(i * 3 + j) % len(SPECIAL)] if i < 10 else rng.integers(0x2000, 0x3C00)
    return blocks.reshape(rows, row_blocks * size)


def formats():
    w = GGUFWriter(here / "formats.gguf", "llama")
    w.add_uint8("test.u8", 255)
    w.add_int8("test.i8", -128)
    w.add_uint16("test.u16", 65535)
    w.add_int16("test.i16", -32768)
    w.add_uint32("test.u32", 4294967295)
    w.add_int32("test.i32", -2147483648)
    w.add_uint64("test.u64", 9223372036854775807)
    w.add_uint64("test.u64_large", 9223372036854775808)
    w.add_int64("test.i64", -9223372036854775808)
    w.add_float32("test.f32", 0.1)
    w.add_float64("test.f64", 0.1)
    w.add_bool("test.yes", True)
    w.add_bool("test.no", False)
    w.add_string("test.text", "naïve 字")
    w.add_key_value("test.empty_text", "", Value.STRING)
    w.add_array("test.strings", ["a", "", "b\u2581c"])
    w.add_array("test.floats", [1.5, -2.0, 1e-30])
    w.add_array("test.integers", [3, -4, 2147483647])
    w.add_array("test.booleans", [True, False, True])
    w.add_key_value("test.bytes", [1, 2, 255], Value.ARRAY, Value.UINT8)
    w.add_tensor("scale", np.array([0.5], dtype=np.float32))
    w.add_tensor("cube", np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4))
    w.add_tensor("indices", np.arange(5, dtype=np.int32))  # a type that is not read
    for kind in (Type.F16, Type.BF16):
        bits = rng.integers(0, 0x7800, size=(3, 10), dtype=np.uint16) | (rng.integers(0, 2, size=(3, 10), dtype=np.uint16) << 15)
        bits[0] = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x0080, 0x007F]
        raw = bits.view(np.float16) if kind == Type.F16 else bits.view(np.uint8)
        w.add_tensor(kind.name, raw, raw_dtype=kind)
        w.add_tensor(kind.name + ".f32", quants.dequantize(raw, kind).astype(np.float32))
    for kind in HALVES:
        rows, row_blocks = (4, 3) if GGML_QUANT_SIZES[kind][0] == 32 else (2, 5)
        raw = random_blocks(kind, rows, row_blocks)
        w.add_tensor(kind.name, raw, raw_dtype=kind)
        w.add_tensor(kind.name + ".f32", quants.dequantize(raw, kind).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def split():
    w = GGUFWriter(here / "split.gguf", "llama", split_max_tensors=2)
    w.add_string("test.text", "whole")
    for i in range(5):
        w.add_tensor(f"blk.{i}.weight", np.full((2, 3), i, dtype=np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def safetensors_files():
    tensors = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b.bias": np.arange(4, dtype=np.float16),
               "scalar": np.array(7, dtype=np.float32), "ids": np.arange(3, dtype=np.int64)}
    (here / "single").mkdir(exist_ok=True)
    (here / "single" / "config.json").write_text('{"model_type": "llama"}\n')
    safetensors.numpy.save_file(tensors, here / "single" / "model.safetensors", metadata={"format": "pt"})
    sharded = here / "sharded"
    sharded.mkdir(exist_ok=True)
    (sharded / "config.json").write_text('{"model_type": "llama"}\n')
    (sharded / "generation_config.json").write_text('{"eos_token_id": 2}\n')
    shards = {"model-00001-of-00002.safetensors": ["b.bias", "scalar"],
              "model-00002-of-00002.safetensors": ["a.weight", "ids"]}
    for name, members in shards.items():
        safetensors.numpy.save_file({m: tensors[m] for m in members}, sharded / name, metadata={"format": "pt"})
    index = {"metadata": {"total_size": 60}, "weight_map": {m: name for name, members in shards.items() for m in members}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def quantise():
    rng = np.random.default_rng(21)
    blocks = rng.standard_normal((60, 32)) * 10 ** rng.uniform(-3, 1, (60, 1))
    blocks[0] = 0
    blocks[1] = 2.5
    blocks[2] = np.arange(-16, 16) / 127 * 8  # halves of the scale
    blocks[3] = 0
    blocks[3, 7] = -3
    blocks[4] = np.abs(blocks[4])
    blocks[5, 20] = 30 * np.abs(blocks[5]).max()
    numbers = blocks.astype(np.float32).reshape(4, -1)
    w = GGUFWriter(here / "quantise.gguf", "llama")
    w.add_tensor("numbers", numbers)
    for kind in (Type.Q8_0, Type.Q4_0):
        w.add_tensor(kind.name, quants.quantize(numbers, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


formats()
quantise()
split()
safetensors_files()
