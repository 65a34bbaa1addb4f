"""Rounds a checkpoint of BF16 to FP8 in blocks as DeepSeek publishes it, and gives what that means in BF16 beside it.

Written from the format alone (OCP's E4M3, scales that are multiplied with), so that it can judge ours.
"""
import bisect
import json
import re
import shutil
import struct

from safetensors_file import read, write

BLOCK = 16
LARGEST = 448.0


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    return mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


VALUES = [e4m3(code) for code in range(0x7F)]  # 0x7F is no number


def nearest(value):
    """The code of the nearest magnitude, with its sign."""
    magnitude = abs(value)
    code = min(bisect.bisect_left(VALUES, magnitude), 0x7E)
    if code > 0 and magnitude - VALUES[code - 1] < VALUES[code] - magnitude:
        code -= 1
    return code | (0x80 if value < 0 else 0)


def float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bf16_bits(value):
    """To the nearest, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def rounded(shape, data):
    """The codes, the scales of blocks, and what both mean in BF16."""
    rows, columns = shape
    values = [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    across = -(-columns // BLOCK)
    scales = [0.0] * (-(-rows // BLOCK) * across)
    place = [i // columns // BLOCK * across + i % columns // BLOCK for i in range(rows * columns)]
    for value, block in zip(values, place, strict=True):
        scales[block] = max(scales[block], abs(value))
    scales = [float32(scale / LARGEST) or 1.0 for scale in scales]
    codes = bytes(nearest(value / scales[block]) for value, block in zip(values, place, strict=True))
    meant = [
        float32((-1 if code & 0x80 else 1) * VALUES[code & 0x7F] * scales[block])
        for code, block in zip(codes, place, strict=True)
    ]
    return (
        ("F8_E4M3", shape, codes),
        ("F32", [-(-rows // BLOCK), across], struct.pack(f"<{len(scales)}f", *scales)),
        ("BF16", shape, struct.pack(f"<{len(meant)}H", *map(bf16_bits, meant))),
    )


def make(source, fp8, meant, *, kept=r"norm|embed_tokens|lm_head|mlp\.gate\.|bias"):
    """From the folder `source` the folders `fp8` and `meant`; tensors whose name holds `kept` stay as they are."""
    for folder in (fp8, meant):
        shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}  # fmt: skip
    (fp8 / "config.json").write_text(json.dumps(config))
    small, plain = {}, {}
    for name, (dtype, shape, data) in read(source / "model.safetensors").items():
        if re.search(kept, name):
            small[name] = plain[name] = (dtype, shape, data)
        else:
            small[name], small[name + "_scale_inv"], plain[name] = rounded(shape, data)
    write(fp8 / "model.safetensors", small)
    write(meant / "model.safetensors", plain)
    return sum(dtype == "F8_E4M3" for dtype, _, _ in small.values())
