"""The offline cells as a peer's own program measures them: this part is the same for all that run in Python.

It runs in the peers' environments, so it needs nothing but Python.
"""
import json
import random
import re
import sys
import time

# What a decode stands behind, as in `quire bench`.
SHORT_PROMPT = 16


def parse(name):
    """(prompt, generated, batch) of `pp512`, `tg64`, `tg64@8` or `tg64@d2048`."""
    prompt = re.fullmatch(r"pp(\d+)", name)
    if prompt:
        return int(prompt[1]), 1, 1
    decode = re.fullmatch(r"tg(\d+)(?:@(\d+)|@d(\d+))?", name)
    if not decode:
        raise ValueError(f"{name} is not a cell such as pp512, tg64, tg64@8 or tg64@d2048")
    return int(decode[3] or SHORT_PROMPT), int(decode[1]), int(decode[2] or 1)


def measure(names, run):
    """{cell: tokens a second, or what went wrong}. `run(prompts, generated)` gives (seconds until every request has its first
    token, seconds from then on until all have ended, tokens that came in these). Every cell has one run that is not counted."""
    source, results = random.Random(1), {}
    for name in names:
        prompt, generated, batch = parse(name)
        try:
            for _ in range(2):
                prompts = [[source.randrange(1000, 40000) for _ in range(prompt)] for _ in range(batch)]
                first, rest, together = run(prompts, generated)
            results[name] = prompt / first if generated == 1 else together / rest
        except Exception as error:  # whatever a peer throws is its answer for this cell
            results[name] = f"{type(error).__name__}: {error}"
    return results


def stepped(add, step, prompts, generated):
    """A `run` for engines that are stepped: `add(index, prompt, generated)`, `step()` gives {index: tokens so far} of requests
    that have any. What some generate while others are still in their prompt is no decode of all together, and not counted."""
    begin = time.perf_counter()
    for index, prompt in enumerate(prompts):
        add(index, prompt, generated)
    counts = {}
    while len(counts) < len(prompts):
        counts |= step()
    first, alone = time.perf_counter(), sum(counts.values())
    if generated > 1 and max(counts.values()) >= generated:
        raise RuntimeError(f"{len(prompts)} requests do not run together: some end before others begin")
    while min(counts.values()) < generated:
        counts |= step()
    return first - begin, time.perf_counter() - first, sum(counts.values()) - alone


def main(load):
    """`load(path, threads, most)` gives a `run`; `most` is the largest (batch, tokens of a request)."""
    path, threads, names = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
    sizes = [parse(name) for name in names]
    run = load(path, threads, max(batch for _, _, batch in sizes), max(p + g for p, g, _ in sizes))
    print(json.dumps(measure(names, run)), flush=True)
