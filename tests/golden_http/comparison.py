"""Compares what a server answers with a golden file, within stated tolerances.

A golden prompt holds token ids, the five best log-probabilities after its positions (`top5`, or `top5_last_positions` from
`first_position_of_top5` on), and a greedy continuation with the five best and the gap between the best two at each step.
"""
import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tolerance:
    largest: float  # of any log-probability among the golden five best
    greedy_gap: float  # greedy tokens may leave the golden ones only where the best two are closer than this
    mean: float | None = None
    p99: float | None = None
    left_out: float = 0.0  # the part of the differences, the greatest, that `mean` and `p99` do not see


# Against fp32 references from the same weights.
TINY_F32 = Tolerance(largest=3e-3, greedy_gap=0.0)
REAL_F32 = Tolerance(largest=2e-3, greedy_gap=0.02)
# One int8 scale for 32 activations: single values stray far, also in other engines, so the mean is what judges. Where a
# value may be off by `largest`, the two best may change places up to that gap.
REAL_Q8 = Tolerance(largest=1.0, greedy_gap=1.0, mean=0.1, p99=0.5)
# The same noise in the mean negative log-likelihood of a golden text: three standard errors of it, from the paired
# differences of 1,800 tokens to the f32 profile. One such error is 0.0024 and 0.0047; of other models it is not known.
Q8_NLL = {"real_smollm2": 0.0072, "real_gemma3_270m": 0.0141}
OTHER_Q8_NLL = 0.02


def tiny_bf16(golden):
    """Of bf16 activations on random weights: a bound for dense models, or how far the reference itself drifts in bf16.

    Where that is far, rounding changes choices: the mean difference judges then, and tokens count up to the first that
    differs. Where it changes more than a tenth of the reference's own answers, that part of the differences, the greatest,
    is not judged."""
    check = golden["bf16_activation_check"]
    drift = check["max_abs_top5_logprob_diff"]
    if drift > 1:
        changed = 1 - check["greedy_argmax_agree"] / check["greedy_steps"]
        return Tolerance(largest=100.0, greedy_gap=100.0, mean=0.25, left_out=changed if changed > 0.1 else 0.0)
    return Tolerance(largest=max(0.6, drift), greedy_gap=0.25)


@dataclass
class Comparison:
    tolerance: Tolerance
    differences: list = field(default_factory=list)
    problems: list = field(default_factory=list)

    def add_top(self, where, golden, answered):
        """`golden`: [[id, logprob], ...]; `answered`: {id: logprob} of at least as many tokens.

        A golden token that was not answered must lie below the least of the answered five, so it counts by how far it is above.
        """
        if len(answered) < len(golden):
            self.problems.append(f"{where}: {len(answered)} log-probabilities instead of {len(golden)}")
            return
        floor = sorted(answered.values(), reverse=True)[len(golden) - 1]
        for token, expected in golden:
            difference = abs(answered[token] - expected) if token in answered else max(0.0, expected - floor)
            self.differences.append(difference)
            if not difference <= self.tolerance.largest:  # a NaN must not pass
                self.problems.append(f"{where}: token {token} is {difference:.4f} off {expected:.4f}")

    def add_greedy(self, where, prompt, answered):
        """How many leading tokens agree; a departure where the gap is wide is a problem."""
        golden = prompt["greedy_ids"]
        if len(answered) != len(golden):
            self.problems.append(f"{where}: {len(answered)} tokens instead of {len(golden)}")
        for step, (mine, theirs) in enumerate(zip(answered, golden)):
            if mine != theirs:
                gap = prompt["greedy_gaps"][step]
                # Where rounding to bf16 was found to say another token (tests/golden/generate/bf16_flips.py).
                flips = prompt.get("bf16_flips", []) if self.tolerance.greedy_gap > 0 else []
                if gap >= self.tolerance.greedy_gap and step not in flips:
                    self.problems.append(f"{where}: step {step} is {mine} instead of {theirs}, with a gap of {gap:.3f}")
                return step
        return min(len(answered), len(golden))

    def verdict(self):
        """Nothing, or what is wrong: single values, then their distribution."""
        problems = self.problems[:10]
        if not self.differences:
            return [*problems, "nothing was compared"]
        ordered = sorted(self.differences)
        ordered = ordered[: math.ceil(len(ordered) * (1 - self.tolerance.left_out))]
        mean = sum(ordered) / len(ordered)
        p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        if self.tolerance.mean is not None and mean > self.tolerance.mean:
            problems.append(f"the mean difference is {mean:.4f}")
        if self.tolerance.p99 is not None and p99 > self.tolerance.p99:
            problems.append(f"the 99th percentile of the differences is {p99:.4f}")
        return problems


def top_at(prompt, position):
    """The golden five best after the prompt's position, or None where the file holds none."""
    if "top5" in prompt:
        return prompt["top5"][position]
    index = position - prompt["first_position_of_top5"]
    return prompt["top5_last_positions"][index] if index >= 0 else None


def by_id(entry):
    """{id: logprob} from either shape: {"token_id:7": -1.0} of completions, {"7": {"logprob": -1.0, ...}} of prompts."""
    return {
        int(key.removeprefix("token_id:")): value["logprob"] if isinstance(value, dict) else value
        for key, value in entry.items()
    }


def ask(server, prompt):
    """The completion of a golden prompt, with everything that can be compared."""
    body = {
        "model": server.name,
        "prompt": prompt["ids"],
        "max_tokens": len(prompt["greedy_ids"]),
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 5,
        "prompt_logprobs": 5,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    return server.post("/v1/completions", body)["choices"][0]


def compare(comparison, where, prompt, choice):
    entries = choice["prompt_logprobs"]
    if len(entries) != len(prompt["ids"]) or entries[0] is not None:
        comparison.problems.append(f"{where}: {len(entries)} prompt log-probabilities for {len(prompt['ids'])} tokens")
        return
    for position in range(len(prompt["ids"]) - 1):
        golden = top_at(prompt, position)
        if golden is not None:
            comparison.add_top(f"{where}, after position {position}", golden, by_id(entries[position + 1]))
    agreed = comparison.add_greedy(where, prompt, choice["token_ids"])
    # The step that departs still saw the golden tokens before it.
    for step in range(min(agreed + 1, len(prompt["greedy_ids"]))):
        top = by_id(choice["logprobs"]["top_logprobs"][step])
        comparison.add_top(f"{where}, step {step}", prompt["greedy_top5"][step], top)


def nll(server, ids):
    """The negative log-likelihood of every token but the first."""
    body = {"model": server.name, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0, "return_token_ids": True}
    entries = server.post("/v1/completions", body)["choices"][0]["prompt_logprobs"]
    assert len(entries) == len(ids)
    return [-by_id(entry)[token] for entry, token in zip(entries[1:], ids[1:])]
