"""The comparison itself must be able to fail."""
import math

import comparison as c

TOP = [[7, -0.5], [3, -1.5]]
PROMPT = {
    "ids": [1, 2],
    "top5": [TOP, TOP],
    "greedy_ids": [7, 3],
    "greedy_top5": [TOP, TOP],
    "greedy_gaps": [1.0, 0.1],
}


def answer(top=None, ids=(7, 3), prompt_top=None):
    steps = {f"token_id:{token}": value for token, value in (top or TOP)}
    prompt = {str(token): {"logprob": value} for token, value in (prompt_top or TOP)}
    return {"prompt_logprobs": [None, prompt], "token_ids": list(ids), "logprobs": {"top_logprobs": [steps, steps]}}


def verdict(choice, tolerance=c.Tolerance(largest=0.01, greedy_gap=0.2)):
    result = c.Comparison(tolerance)
    c.compare(result, "p", PROMPT, choice)
    return result.verdict()


def test_an_equal_answer_passes():
    assert verdict(answer()) == []


def test_a_departure_passes_only_where_the_gap_is_small():
    assert verdict(answer(ids=(7, 9))) == []
    assert "step 0 is 9 instead of 7" in verdict(answer(ids=(9, 9)))[0]
    assert verdict(answer(ids=(7,))) != []


def test_a_wrong_value_fails():
    assert verdict(answer(top=[[7, -0.52], [3, -1.5]])) != []
    assert verdict(answer(prompt_top=[[7, -0.5], [3, -1.4]])) != []
    assert verdict(answer(top=[[7, math.nan], [3, -1.5]])) != []


def test_a_token_below_the_answered_ones_is_judged_by_the_least_of_them():
    assert verdict(answer(prompt_top=[[7, -0.5], [8, -1.495]])) == []
    assert verdict(answer(prompt_top=[[7, -0.5], [8, -1.6]])) != []


def test_missing_values_fail():
    assert verdict(answer(prompt_top=[[7, -0.5]])) != []
    assert verdict({**answer(), "prompt_logprobs": [None]}) != []
    assert c.Comparison(c.TINY_F32).verdict() == ["nothing was compared"]


def test_the_distribution_is_judged_too():
    assert "mean" in verdict(answer(top=[[7, -0.6], [3, -1.4]]), c.Tolerance(1.0, 0.2, mean=0.05))[0]
    assert "99th" in verdict(answer(top=[[7, -0.6], [3, -1.4]]), c.Tolerance(1.0, 0.2, p99=0.05))[0]


def test_the_greatest_differences_may_be_left_out():
    worse = answer(prompt_top=[[7, -0.5], [3, -1.0]])  # one value of six
    assert "mean" in verdict(worse, c.Tolerance(1.0, 0.2, mean=0.05))[0]
    assert verdict(worse, c.Tolerance(1.0, 0.2, mean=0.05, left_out=0.17)) == []
    assert verdict(worse, c.Tolerance(0.1, 0.2, left_out=0.17)) != []


def test_what_rounding_changes_of_the_reference_is_left_out_where_it_is_much():
    def left_out(agree, drift=5.0):
        check = {"max_abs_top5_logprob_diff": drift, "greedy_argmax_agree": agree, "greedy_steps": 120}
        return c.tiny_bf16({"bf16_activation_check": check}).left_out

    assert left_out(105) == 0.125
    assert left_out(110) == left_out(105, drift=0.4) == 0.0
