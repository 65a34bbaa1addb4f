#!/usr/bin/env python3
"""Writes the quantised safetensors of tests/golden: matrices, and tiny models with their answers.

usage: quantised.py GOLDEN_DIR

Packed and widened by the packages that write such files: autoawq 0.2.9, auto-gptq 0.7.1, compressed-tensors 0.17.0. Also
needs torch 2.13, transformers 5.19, numpy and safetensors. Scales are widened to fp32 before they are multiplied, so
that nothing is rounded but where Quire rounds too (to bf16: FP8, and GPTQ with act-order).

weights/quantised/model.safetensors: for each case NAME the parts of one matrix and its values, NAME.expected (F32).
models/NAME: the first layers of another tiny model, quantised, and what transformers answers in fp32 with the values.
"""
import importlib.util
import json
import pathlib
import sys
import types

import torch
from compressed_tensors.compressors import NaiveQuantizationCompressor, PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import load_file, save_file


def without_init(package):
    """Makes modules of a package importable without its __init__, which imports what is not needed here."""
    spec = importlib.util.find_spec(package)
    module = types.ModuleType(package)
    module.__path__ = list(spec.submodule_search_locations)
    sys.modules[package] = module


for name in ("awq", "awq.modules", "awq.utils", "auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear"):
    without_init(name)
from auto_gptq.nn_modules.qlinear import qlinear_cuda, qlinear_cuda_old  # noqa: E402
from awq.modules.linear.gemm import WQLinear_GEMM  # noqa: E402
from awq.utils.packing_utils import dequantize_gemm  # noqa: E402

HALF, BFLOAT, FLOAT = torch.float16, torch.bfloat16, torch.float32


def scales_and_zeros(w, group, bits, symmetric):
    """[N, G] each: scales, and zero points of unsigned integers."""
    g = w.float().reshape(w.shape[0], -1, group)
    most = 2**bits - 1
    if symmetric:
        scales = g.abs().amax(-1).clamp(min=1e-6) / (most // 2)
        return scales, torch.full_like(scales, (most + 1) // 2)
    low, high = g.amin(-1).clamp(max=0), g.amax(-1).clamp(min=0)
    scales = (high - low).clamp(min=1e-6) / most
    return scales, torch.round(-low / scales).clamp(1, most)  # auto-gptq's pack() cannot store 0


def representable(w, g_idx, scales, zeros, bits):
    """A layer of the nearest values that the integers can express: packers expect those."""
    s, z = scales[:, g_idx], zeros[:, g_idx]
    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data = (torch.clamp(torch.round(w.float() / s) + z, 0, 2**bits - 1) - z) * s
    return layer


def awq(w, group):
    scales, zeros = scales_and_zeros(w, group, 4, False)
    scales = scales.half().float()  # as files have them
    layer = representable(w, torch.arange(w.shape[1]) // group, scales, zeros, 4)
    layer = WQLinear_GEMM.from_linear(layer, 4, group, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
    parts = {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales}
    return parts, dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, group).T


def gptq(w, group, bits, symmetric, order=None, v2=False, wrapped=False):
    """`order`: the inputs in the order that they were quantised in (act-order)."""
    n, k = w.shape
    group = k if group == -1 else group
    module = qlinear_cuda if order is not None else qlinear_cuda_old
    layer = module.QuantLinear(bits, group, k, n, False, weight_dtype=FLOAT)
    ordered = w if order is None else w[:, order]
    scales, zeros = scales_and_zeros(ordered, group, bits, symmetric)
    scales = scales.half().float()
    g_idx = torch.arange(k, dtype=torch.int32) // group
    if order is not None:
        g_idx[order] = torch.arange(k, dtype=torch.int32) // group
    layer.pack(representable(w, g_idx.long(), scales, zeros, bits), scales, zeros.clone(), g_idx)
    if wrapped:  # as zero points of 0 come out of pack(), which stores them less one
        layer.qzeros.fill_(-1)
    values = layer.forward(torch.eye(k)).T
    if order is not None:
        values = values.to(BFLOAT).float()
    qzeros = layer.qzeros
    if v2:  # no field is all ones, so no carry crosses into the next
        qzeros = (qzeros.to(torch.int64) + (0x11111111 if bits == 4 else 0x01010101)).to(torch.int32)
    return {"qweight": layer.qweight, "qzeros": qzeros, "scales": layer.scales.half(), "g_idx": g_idx}, values


def compressed(w, args, scale_dtype, scale_of=lambda s: s):
    """compressed-tensors' own compressors, on scales and zero points as its observers make them."""
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    state = {"weight": w.float()}
    if args.type == "float":
        scales = w.float().abs().amax(1, keepdim=True) / 448
        if args.strategy == "tensor":
            scales = scales.amax()
        if args.strategy == "block":
            rows, cols = args.block_structure
            padded = torch.nn.functional.pad(w.float().abs(), (0, -w.shape[1] % cols, 0, -w.shape[0] % rows))
            scales = padded.reshape(padded.shape[0] // rows, rows, -1, cols).amax((1, 3)) / 448
    else:
        group = args.group_size if args.strategy == "group" else w.shape[1]
        scales, zeros = scales_and_zeros(w, group, args.num_bits, args.symmetric)
        if not args.symmetric:
            state["weight_zero_point"] = (zeros - 2 ** (args.num_bits - 1)).to(torch.int8)
    state["weight_scale"] = scale_of(scales).to(scale_dtype)
    packed = args.num_bits == 4
    compressor = PackedQuantizationCompressor if packed else NaiveQuantizationCompressor
    parts = compressor.compress(state, scheme)
    wide = dict(parts, weight_scale=parts["weight_scale"].float())
    if args.strategy == "block":  # the compressor takes it for granted that blocks tile the matrix
        values = dequantize(wide["weight"], wide["weight_scale"], args=args)
    else:
        values = compressor.decompress(wide, scheme)["weight"]
    if args.type == "float":
        values = values.to(BFLOAT).float()
    return parts, values


def args(bits, kind="int", symmetric=True, strategy="channel", **more):
    return QuantizationArgs(num_bits=bits, type=kind, symmetric=symmetric, strategy=strategy, **more)


def matrices(folder):
    torch.manual_seed(7)
    w = torch.randn(32, 64) * 0.05
    w[:, 32:] += 0.02  # zero points that differ
    order = torch.randperm(64)
    fp8 = torch.randn(20, 72) * 0.05
    cases = {
        "awq": awq(w, 32),
        "gptq4": gptq(w, 32, 4, False),
        "gptq4_v2": gptq(w, 32, 4, False, v2=True),
        "gptq4_wrapped": gptq(w, 32, 4, False, wrapped=True),
        "gptq4_sym": gptq(w, -1, 4, True),
        "gptq4_order": gptq(w, 32, 4, False, order=order),
        "gptq8": gptq(w, 32, 8, False),
        "gptq8_sym": gptq(w, 32, 8, True),
        "packed4": compressed(w, args(4, symmetric=False, strategy="group", group_size=32), BFLOAT),
        "packed4_sym": compressed(w, args(4, strategy="group", group_size=32), BFLOAT),
        # Scales that fp16 does not have.
        "packed4_fine": compressed(w, args(4, strategy="channel"), FLOAT),
        "int8": compressed(w, args(8), BFLOAT),
        "int8_fine": compressed(w * 1e-4, args(8), BFLOAT),
        "int8_zeros": compressed(w, args(8, symmetric=False), BFLOAT),
        "fp8_channel": compressed(fp8, args(8, "float"), BFLOAT),
        "fp8_tensor": compressed(fp8, args(8, "float", strategy="tensor"), FLOAT),
        "fp8_block": compressed(fp8, args(8, "float", strategy="block", block_structure=[16, 32]), FLOAT),
    }
    # Every bit pattern of an FP8 number.
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(4, 64)
    cases["fp8_every"] = ({"weight": every, "weight_scale": torch.tensor(1.0)}, every.float())
    tensors = {}
    for case, (parts, values) in cases.items():
        for part, tensor in parts.items():
            tensors[f"{case}.{part}"] = tensor.contiguous()
        tensors[f"{case}.expected"] = values.float().contiguous()
    save_file(tensors, folder / "model.safetensors")


def group_config(weights, **more):
    return {"group_0": {"targets": ["Linear"], "weights": json.loads(weights.model_dump_json()), **more}}


def ct_config(fmt, weights, **more):
    return {"quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed", "ignore": ["lm_head"],
            "kv_cache_scheme": None, "global_compression_ratio": None, "config_groups": group_config(weights, **more)}


def dynamic_tokens():
    return json.loads(QuantizationArgs(num_bits=8, strategy="token", dynamic=True).model_dump_json())


PACKED = args(4, symmetric=False, strategy="group", group_size=32)
INT8 = args(8)
BLOCK = args(8, "float", strategy="block", block_structure=[8, 16])


def fp8_parts(w, _):
    parts, values = compressed(w, BLOCK, FLOAT)
    parts["weight_scale_inv"] = parts.pop("weight_scale")
    return parts, values


MODELS = {
    "llama_awq": ("llama_tied", lambda w, _: awq(w, 32),
                  {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 32, "zero_point": True,
                   "modules_to_not_convert": None}),
    "llama_gptq": ("llama_untied", lambda w, i: gptq(w, 32, 4, False, order=torch.randperm(w.shape[1]) if i % 3 == 0 else None),
                   {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": True,
                    "checkpoint_format": "gptq", "damp_percent": 0.01, "static_groups": False, "true_sequential": True,
                    "lm_head": False, "quantizer": "a name", "pack_dtype": "int32"}),
    "qwen3_packed": ("qwen3", lambda w, _: compressed(w, PACKED, BFLOAT), ct_config("pack-quantized", PACKED)),
    "llama_w8a8": ("llama_untied", lambda w, _: compressed(w, INT8, BFLOAT),
                   ct_config("int-quantized", INT8, input_activations=dynamic_tokens())),
    "gemma3_fp8": ("gemma3", fp8_parts,
                  {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [8, 16]}),
}
LAYERS = 2


def quantised_model(name, models):
    source, quantise, quantization_config = MODELS[name]
    torch.manual_seed(11)
    out = models / name
    out.mkdir(exist_ok=True)
    config = json.loads((models / source / "config.json").read_text())
    config["num_hidden_layers"] = LAYERS
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:LAYERS]
    files, values = {}, {}
    weights = load_file(models / source / "model.safetensors")
    for i, (tensor, w) in enumerate(weights.items()):
        if tensor.startswith("model.layers.") and int(tensor.split(".")[2]) >= LAYERS:
            continue
        if not tensor.endswith("_proj.weight"):
            files[tensor], values[tensor] = w, w.float()
            continue
        parts, values[tensor] = quantise(w, i)
        for part, value in parts.items():
            files[tensor.removesuffix("weight") + part] = value.contiguous()
    save_file(files, out / "model.safetensors", {"format": "pt"})
    answers = golden(config, values)
    answers["model"] = name
    (out / "golden.json").write_text(json.dumps(answers, separators=(",", ":")) + "\n")
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": quantization_config}, indent=2) + "\n")
    for copied in ("generation_config.json", "tokenizer.json"):
        (out / copied).write_text((models / source / copied).read_text())


def rounded(number):
    return float(f"{number:.6g}")


def top5(logits):
    values, ids = torch.log_softmax(logits.double(), -1).topk(5)
    return [[int(i), rounded(float(v))] for v, i in zip(values, ids)]


def golden(config, values):
    import transformers

    settings = transformers.AutoConfig.for_model(**config)

    def model(dtype):
        made = transformers.AutoModelForCausalLM.from_config(settings, dtype=dtype, attn_implementation="eager").eval()
        missing, extra = made.load_state_dict({k: v.to(dtype) for k, v in values.items()}, strict=False)
        assert not extra and set(missing) <= {"lm_head.weight"}, (missing, extra)
        made.tie_weights()
        return made

    exact, rough = model(FLOAT), model(BFLOAT)
    run = lambda m, ids: m(torch.tensor([ids]), use_cache=False).logits[0].float()
    generator = torch.Generator().manual_seed(3)
    prompts, drift, agreed, steps = [], 0.0, 0, 0
    with torch.no_grad():
        for length in (1, 33, 100):
            ids = torch.randint(3, config["vocab_size"], (length,), generator=generator).tolist()
            logits = run(exact, ids)
            prompt = {"ids": ids, "top5": [top5(row) for row in logits], "last_logits": [rounded(float(x)) for x in logits[-1]],
                      "greedy_ids": [], "greedy_top5": [], "greedy_gaps": []}
            for _ in range(16):
                every = ids + prompt["greedy_ids"]
                last = run(exact, every)[-1]
                best = last.topk(2).values
                prompt["greedy_top5"].append(top5(last))
                prompt["greedy_gaps"].append(rounded(float(best[0] - best[1])))
                agreed += int(run(rough, every)[-1].argmax() == last.argmax())
                steps += 1
                prompt["greedy_ids"].append(int(last.argmax()))
            every = ids + prompt["greedy_ids"]
            a, b = torch.log_softmax(run(exact, every), -1), torch.log_softmax(run(rough, every), -1)
            best = a.topk(5).indices
            drift = max(drift, float((a.gather(1, best) - b.gather(1, best)).abs().max()))
            prompts.append(prompt)
    return {"format": 1, "reference": "transformers",
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "prompts": prompts,
            "min_gap": min(min(p["greedy_gaps"]) for p in prompts),
            "bf16_activation_check": {"max_abs_top5_logprob_diff": rounded(drift), "greedy_argmax_agree": agreed,
                                      "greedy_steps": steps}}


def main():
    golden_dir = pathlib.Path(sys.argv[1])
    folder = golden_dir / "weights" / "quantised"
    folder.mkdir(parents=True, exist_ok=True)
    matrices(folder)
    for name in MODELS:
        quantised_model(name, golden_dir / "models")


if __name__ == "__main__":
    main()
