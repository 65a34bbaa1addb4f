#!/usr/bin/env python3
"""vLLM's engine in this process: its offline cells.

usage: vllm_driver.py MODEL THREADS CELLS          prints {cell: tokens a second}
"""
import itertools
import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import cells  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402


def load(path, threads, most_requests, longest):
    engine = LLM(
        model=path, dtype="bfloat16", max_model_len=longest, max_num_seqs=most_requests, max_num_batched_tokens=max(2048, longest),
        enable_prefix_caching=False, disable_log_stats=True,
    ).llm_engine
    ids = itertools.count()

    def run(prompts, generated):
        names = {}

        def add(index, prompt, generated):
            names[name := str(next(ids))] = index
            settings = SamplingParams(max_tokens=generated, temperature=0, ignore_eos=True, detokenize=False)
            engine.add_request(name, {"prompt_token_ids": prompt}, settings)

        def step():
            return {names[o.request_id]: len(o.outputs[0].token_ids) for o in engine.step() if o.outputs[0].token_ids}

        return cells.stepped(add, step, prompts, generated)

    return run


if __name__ == "__main__":
    cells.main(load)
