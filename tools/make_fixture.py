#!/usr/bin/env python3
"""Makes a tiny model with random weights, and its golden file, for an architecture that transformers has.

usage: make_fixture.py ARCHITECTURE CONFIG OUT [options]     (needs: torch transformers)

ARCHITECTURE is the class, as in config.json's `architectures`. CONFIG is a JSON file with what its configuration is to
say, which should be sizes of a few dozen. OUT gets config.json, model.safetensors and golden.json in the form that
docs/models.md describes: put it into tests/golden/models, and it is tested.

The reference is transformers in fp32 (eager attention, no cache, one request at a time) on weights that were rounded to
bf16. Of each length it takes the random prompt whose greedy answer is the clearest; a model that answers another way in
fp64 is refused, for a tie decides it.
"""
import argparse
import copy
import importlib.metadata
import json
import pathlib
import sys

GREEDY = 24


def parse(arguments):
    def lengths(text):
        values = [int(part) for part in text.split(",")]
        if any(value < 1 for value in values):
            raise ValueError
        return values

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("architecture", help="a class of transformers, such as Llama4ForCausalLM")
    parser.add_argument("config", type=pathlib.Path, help="JSON file with the values of its configuration")
    parser.add_argument("out", type=pathlib.Path, help="folder to write; it must not hold a model yet")
    parser.add_argument("--lengths", type=lengths, default=[1, 7, 33, 70, 150], help="of the prompts, default 1,7,33,70,150")
    parser.add_argument("--candidates", type=int, default=96, help="prompts tried of each length, default 96")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gain", type=float, default=1.0, help="of the matrices, default 1: the norm of a row")
    options = parser.parse_args(arguments)
    if options.candidates < 1:
        parser.error("--candidates must be at least 1")
    if not options.gain > 0:
        parser.error("--gain must be above 0")
    try:
        options.values = json.loads(options.config.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        parser.error(f"{options.config}: {error}")
    if not isinstance(options.values, dict):
        parser.error(f"{options.config} holds no JSON object")
    if (options.out / "model.safetensors").exists():
        parser.error(f"{options.out} holds a model already; remove it first")
    return options


def text_of(config):
    return config.get_text_config()


def make_model(transformers, torch, options):
    kind = getattr(transformers, options.architecture, None)
    if kind is None or not hasattr(kind, "config_class"):
        sys.exit(f"transformers {transformers.__version__} has no model {options.architecture}")
    config = kind.config_class(**options.values)
    torch.manual_seed(options.seed)
    model = kind._from_config(config, attn_implementation="eager", experts_implementation="eager").eval()
    width = text_of(config).hidden_size
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim == 1:  # norms, biases and the like stay near what the architecture makes them
                value.add_(0.1 * torch.randn_like(value))
            else:
                head = name.endswith(("embed_tokens.weight", "lm_head.weight"))
                value.copy_(torch.randn_like(value) * options.gain * (2 if head else 1) / width**0.5)
            value.copy_(value.to(torch.bfloat16))
    return model


def logits_of(torch, model, rows):
    with torch.no_grad():
        return model(input_ids=rows, use_cache=False).logits.float()


def greedy(torch, model, rows):
    """[rows, length + GREEDY] ids, and [rows, GREEDY] distances of the best two."""
    gaps = []
    for _ in range(GREEDY):
        best = logits_of(torch, model, rows)[:, -1].topk(2, dim=-1)
        gaps.append(best.values[:, 0] - best.values[:, 1])
        rows = torch.cat([rows, best.indices[:, :1]], dim=1)
    return rows, torch.stack(gaps, dim=1)


def choose(torch, model, length, options, vocabulary):
    """The prompt with the widest gaps whose answer is no repetition of one token."""
    rows = torch.randint(0, vocabulary, (options.candidates, length))
    rows, gaps = greedy(torch, model, rows)
    varied = torch.tensor([len(set(row[length:].tolist())) >= GREEDY // 4 for row in rows])
    order = torch.where(varied, 1, -1) * gaps.min(dim=1).values.clamp(min=1e-6)
    return rows[int(torch.where(varied, order, -1 / order.abs()).argmax())]


def rounded(value, digits=6):
    return float(f"{value:.{digits}g}")


def top5_of(logits):
    best = logits.log_softmax(-1).topk(5, dim=-1)
    return [[[int(i), rounded(p)] for i, p in zip(*row)] for row in zip(best.indices.tolist(), best.values.tolist())]


def entry(torch, model, row, length):
    logits = logits_of(torch, model, row[None])[0]
    tops, best = top5_of(logits), logits.topk(2, dim=-1).values
    steps = slice(length - 1, length + GREEDY - 1)
    gaps = [rounded(gap) for gap in (best[steps, 0] - best[steps, 1]).tolist()]
    answer = row[length:].tolist()
    if logits[steps].argmax(-1).tolist() != answer:
        sys.exit("a row alone answers in another way than among others: choose another --seed")
    golden = {
        "ids": row[:length].tolist(),
        "top5": tops[:length],
        "last_logits": [rounded(x, 7) for x in logits[length - 1].tolist()],
        "greedy_ids": answer,
        "greedy_top5": tops[steps],
        "greedy_gaps": gaps,
        "min_gap": min(gaps),
    }
    return golden, logits


def drift(torch, logits, others):
    """How far others move the log-probabilities of the five best."""
    a, b = logits.log_softmax(-1), others.log_softmax(-1)
    best = a.topk(5, dim=-1).indices
    return float((a.gather(-1, best) - b.gather(-1, best)).abs().max())


def golden_file(torch, model, options):
    in_bf16, in_fp32, in_fp64 = copy_as(model, torch.bfloat16), model, copy_as(model, torch.float64)
    vocabulary = text_of(model.config).vocab_size
    prompts, worst, agree, wide = [], 0.0, 0, 0.0
    for length in options.lengths:
        row = choose(torch, in_fp32, length, options, vocabulary)
        golden, logits = entry(torch, in_fp32, row, length)
        prompts.append(golden)
        low = logits_of(torch, in_bf16, row[None])[0]
        worst = max(worst, drift(torch, logits, low))
        agree += sum(a == b for a, b in zip(low[length - 1 : -1].argmax(-1).tolist(), golden["greedy_ids"]))
        wide = max(wide, float((logits_of(torch, in_fp64, row[None])[0] - logits).abs().max()))
    if wide > 1e-2:
        sys.exit(f"fp64 moves a logit by {wide:.3g}: a tie decides; choose another --seed or --gain")
    return {
        "format": 1,
        "model": options.out.name,
        "reference": "transformers",
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        "made_by": {"seed": options.seed, "gain": options.gain, "candidates": options.candidates},
        "prompts": prompts,
        "min_gap": min(prompt["min_gap"] for prompt in prompts),
        "bf16_activation_check": {
            "max_abs_top5_logprob_diff": rounded(worst),
            "greedy_argmax_agree": agree,
            "greedy_steps": GREEDY * len(prompts),
        },
        "fp32_vs_fp64_max_abs_logit_diff": rounded(wide),
    }


def copy_as(model, dtype):
    """The same with parameters in another type; buffers, such as frequencies, stay as they are."""
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.data = parameter.data.to(dtype)
    other.config.dtype = dtype
    return other


def main(arguments=None):
    options = parse(arguments)
    import torch
    import transformers

    torch.set_num_threads(1)  # at these sizes others only wait
    model = make_model(transformers, torch, options)
    golden = golden_file(torch, model, options)
    copy_as(model, torch.bfloat16).save_pretrained(options.out)
    (options.out / "generation_config.json").unlink(missing_ok=True)
    (options.out / "golden.json").write_text(json.dumps(golden, separators=(",", ":")))
    check = golden["bf16_activation_check"]
    print(f"{options.out}: smallest gap {golden['min_gap']}, bf16 moves top-5 log-probabilities by "
          f"{check['max_abs_top5_logprob_diff']}, fp64 logits by {golden['fp32_vs_fp64_max_abs_logit_diff']}")


if __name__ == "__main__":
    main()
