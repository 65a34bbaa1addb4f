#!/usr/bin/env python3
"""Writes what transformers has as the final hidden state of each golden prompt's last token.

usage: last_hidden.py FOLDER...     (needs: torch transformers)

FOLDER holds a tiny model and its golden.json. The state, after the last norm, is computed in fp32 (eager attention, no
cache), as the golden logits were, and goes into last_hidden.json beside them, a list for each prompt. A model whose head
does not make the golden `last_logits` of it is refused.
"""
import json
import pathlib
import sys

import torch
import transformers


def main(folders):
    for folder in map(pathlib.Path, folders):
        golden = json.loads((folder / "golden.json").read_text())
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        states = []
        for prompt in golden["prompts"]:
            with torch.no_grad():
                out = model(input_ids=torch.tensor([prompt["ids"]]), use_cache=False, output_hidden_states=True)
            wanted = torch.tensor(prompt["last_logits"])
            if (out.logits[0, -1] - wanted).abs().max() > 1e-3:
                sys.exit(f"{folder}: these are not the golden logits")
            states.append([float(f"{x:.7g}") for x in out.hidden_states[-1][0, -1].tolist()])
        (folder / "last_hidden.json").write_text(json.dumps(states, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
