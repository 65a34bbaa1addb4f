"""The pure parts of run.py: whose turn it is, what is derived, and the tables."""
import statistics


def in_turn(engines, round_index):
    """Each round begins with the next engine, so that none is always the first, or always behind the same one's heat."""
    start = round_index % len(engines)
    return engines[start:] + engines[:start]


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def added_by_depth(values):
    """`tg64@d2048` as the milliseconds that this depth adds to a token of `tg64`, in one run's {cell: tokens a second}. A
    difference is of no use where one of the two is missing."""
    results = {}
    for name, value in values.items():
        base, _, depth = name.partition("@d")
        if not depth:
            results[name] = value
        elif isinstance(value, str) or isinstance(values.get(base), str):
            results[name] = value if isinstance(value, str) else values[base]
        else:
            results[name] = 1e3 / value - 1e3 / values[base]
    return results


def reason(values):
    """The text of the first round that has no value, or None."""
    return next((v for v in values if isinstance(v, str)), None)


def cell(values):
    """Median (smallest-largest) of the rounds' values."""
    if not values:
        return "not run"
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 3
    return f"{middle:,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def ratio_to_best(values, mine, lower_is_better):
    """The median of `mine` over that of the best other one, and its name; "" where there is nothing to compare."""
    medians = {name: statistics.median(v) for name, v in values.items() if v and not reason(v)}
    own = medians.pop(mine, None)
    if own is None or not medians:
        return ""
    best = (min if lower_is_better else max)(medians, key=medians.get)
    return f"{own / medians[best]:.2f} of {best}" if medians[best] > 0 else ""


def table(rows, names, mine="Quire", lower_is_better=lambda title: False):
    """Markdown of {title: {engine: [value or text]}}; the ratio of `mine` to the best other one at the end where it takes
    part. A cell without a value has a mark, and the reason stands below."""
    compare = mine in names and len(names) > 1
    lines = ["| | " + " | ".join(names) + (" | ratio" if compare else "") + " |", "|---|" + "---|" * (len(names) + compare)]
    marks = {}
    for title, values in rows.items():
        texts = []
        for name in names:
            wrong = reason(values.get(name, []))
            texts.append(f"none [{marks.setdefault(wrong, len(marks) + 1)}]" if wrong else cell(values.get(name, [])))
        if compare:
            texts.append(ratio_to_best(values, mine, lower_is_better(title)))
        lines.append(f"| {title} | " + " | ".join(texts) + " |")
    notes = [f"[{mark}] {text}" for text, mark in marks.items()]
    return "\n".join(lines + ([""] + notes if notes else []))
