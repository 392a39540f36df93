#!/usr/bin/env python3
"""Cases of the other retention rules in exact arithmetic:

    make_rule_cases.py SEED COUNT > rule_cases.json           1 180
    make_rule_cases.py SEED COUNT keys > key_cases.json       3 80: scores of keys

As make_h2o_cases.py has them, with what the rules change:
  statistic              "sum" or "largest" (over rows and heads)
  window                 0, or how many of the last rows of the prompt make its scores
  pool                   odd: a prompt token's score is the mean of so many neighbours' scores
  decay                  [numerator, denominator] of the factor on the scores in each step
  spare                  how many tokens after the prompt the steps may keep beyond heavy + recent
  expect.gap             how far the closest choice between two scores was: after the prefill, and in each step; null: none
expect.prefill_scores are those before pooling. Scores are exact fractions "a/b", or decimals where those are long.

Cases of keys have keys [KV head][token], of whole numbers and with lengths that are whole numbers, and `expect` by KV
head. A score is -cos(key, sum of the unit keys); what is compared are exact squares with the scores' signs.
"""
import json, math, random, sys
from fractions import Fraction as F

def text(x):
    exact = str(x)
    return exact if len(exact) <= 24 else f"{float(x):.17g}"

def probabilities(row, visible):
    total = sum(row[k] for k in visible)
    return {k: F(row[k], total) for k in visible}

def gathered(case, seen):
    return max(seen) if case["statistic"] == "largest" else sum(seen)

def choose(ranked, leaving):
    """The `leaving` first of (score, position), and by how much they lost."""
    ranked = sorted(ranked)
    clear = ranked[leaving][0] - ranked[leaving - 1][0] if 0 < leaving < len(ranked) else None
    return [k for _, k in ranked[:leaving]], None if clear is None else float(clear)

def prompt_scores(case):
    S, W = case["prompt"], case["weights"]
    seen = {k: [F(0)] for k in range(S)}
    for head in W:
        for q in range(max(0, S - case["window"]) if case["window"] else 0, S):
            for k, p in probabilities(head[q], range(q + 1)).items(): seen[k].append(p)
    return [gathered(case, seen[k]) for k in range(S)]

def run(case):
    S, H, R, sinks, spare = (case[k] for k in ("prompt", "heavy", "recent", "sinks", "spare"))
    raw, reach = prompt_scores(case), case["pool"] // 2
    near = [raw[max(0, k - reach):k + reach + 1] for k in range(S)]
    score = {k: sum(near[k]) / len(near[k]) for k in range(S)}
    expect = {"prefill_scores": [text(x) for x in raw], "gap": [None]}
    if S > H + R:
        pinned = [k for k in range(S - R) if k < sinks][:H]
        rest = [(score[k], k) for k in range(S - R) if k not in pinned]
        gone, expect["gap"][0] = choose(rest, len(rest) - (H - len(pinned)))
        for k in gone: del score[k]
    expect["kept"] = sorted(score)
    expect["scores"] = {str(k): text(score[k]) for k in sorted(score)}
    expect["decode"] = []
    decay = F(*case["decay"])
    for t in range(S, S + case["steps"]):
        visible = sorted(score) + [t]
        got = {k: [] for k in visible}
        for head in case["weights"]:
            for k, p in probabilities(head[t], visible).items(): got[k].append(p)
        for k in visible:
            old = decay * score.get(k, F(0))
            score[k] = max(old, *got[k]) if case["statistic"] == "largest" else old + sum(got[k])
        evicted, gap = None, None
        if len(visible) > H + R + spare:
            (evicted,), gap = choose([(score[k], k) for k in visible if sinks <= k <= t - R], 1)
            del score[evicted]
        expect["gap"].append(gap)
        expect["decode"].append({"token": t, "evicted": evicted, "kept": sorted(score),
                                 "scores": {str(k): text(score[k]) for k in sorted(score)}})
    return expect

def make(seed, count):
    rng, cases = random.Random(seed), []
    while len(cases) < count:
        G = rng.choice([1, 1, 2, 3])
        S, steps = rng.randint(1, 20), rng.randint(1, 10)
        H, R = rng.randint(0, 6), rng.randint(0, 5)
        sinks = rng.choice([0, 0, min(H, 1), min(H, 2)])
        if H + R == 0 or (H == sinks and R == 0): continue
        statistic = ["sum", "largest"][len(cases) % 2]
        case = dict(name=f"seed {seed} case {len(cases)}", statistic=statistic, prompt=S, steps=steps, heavy=H, recent=R,
                    sinks=sinks, spare=rng.choice([0, 0, 0, 2, steps]), window=rng.choice([0, 1, 4, 30]),
                    pool=rng.choice([1, 1, 3, 7]), decay=rng.choice([[1, 1], [9, 10], [1, 2], [0, 1]]))
        heavy = [rng.random() < 0.2 for _ in range(S + steps)]
        case["weights"] = [[[rng.randint(20, 90) if heavy[k] else rng.randint(1, 9) for k in range(q + 1)]
                            for q in range(S + steps)] for _ in range(G)]
        try:
            case["expect"] = run(case)
        except ValueError:      # no candidate left
            continue
        cases.append(case)
    return cases

DIRECTIONS = [(1,), (1,), (3, 4), (1, 2, 2), (2, 3, 6), (1, 4, 8), (5, 12), (1, 1, 1, 1), (1, 2, 2, 4), (1, 1, 3, 5), ()]

def random_key(rng, dim):
    numbers = rng.choice([d for d in DIRECTIONS if len(d) <= dim])
    key = [0] * dim
    for place, number in zip(rng.sample(range(dim), len(numbers)), numbers):
        key[place] = number * rng.choice([1, 1, 1, -1])
    return key

def run_keys(case, keys):
    S, H, R, sinks, spare = (case[k] for k in ("prompt", "heavy", "recent", "sinks", "spare"))
    total, length = [F(0)] * case["dim"], [math.isqrt(sum(x * x for x in key)) for key in keys]

    def add(t):
        for d, x in enumerate(keys[t]):
            if length[t]: total[d] += F(x, length[t])

    def score_of(t):
        """The score's square with its sign."""
        dot, square = sum(x * y for x, y in zip(keys[t], total)), sum(x * x for x in total)
        return -(1 if dot > 0 else -1) * dot * dot / (length[t] ** 2 * square) if length[t] and square else F(0)

    def plain(x):
        return math.copysign(math.sqrt(abs(x)), x)

    def choice(ranked, leaving):
        """As choose(), with how far the scores themselves are apart. Equal keys of a prompt tie in fp32 too, and keys
        without a direction."""
        ranked = sorted(ranked)
        if not 0 < leaving < len(ranked): return [k for _, k in ranked[:leaving]], None
        (low, a), (high, b) = ranked[leaving - 1], ranked[leaving]
        same = low == high and ((a < S and b < S and keys[a] == keys[b]) or not (length[a] or length[b]))
        return [k for _, k in ranked[:leaving]], None if same else plain(high) - plain(low)

    for t in range(S): add(t)
    score = {t: score_of(t) for t in range(S)}
    expect = {"prefill_scores": [plain(score[t]) for t in range(S)], "gap": [None]}
    if S > H + R:
        pinned = [k for k in range(S - R) if k < sinks][:H]
        rest = [(score[k], k) for k in range(S - R) if k not in pinned]
        gone, expect["gap"][0] = choice(rest, len(rest) - (H - len(pinned)))
        for k in gone: del score[k]
    expect["kept"] = sorted(score)
    expect["decode"] = []
    for t in range(S, S + case["steps"]):
        add(t)
        score[t] = score_of(t)
        evicted, gap = None, None
        if len(score) > H + R + spare:
            (evicted,), gap = choice([(score[k], k) for k in score if sinks <= k <= t - R], 1)
            del score[evicted]
        expect["gap"].append(gap)
        expect["decode"].append({"token": t, "evicted": evicted, "kept": sorted(score),
                                 "scores": {str(k): plain(score[k]) for k in sorted(score)}})
    expect["key_sum"] = [float(x) for x in total]
    return expect

def make_keys(seed, count):
    rng, cases = random.Random(seed), []
    while len(cases) < count:
        S, steps, dim = rng.randint(1, 20), rng.randint(1, 10), rng.choice([1, 2, 5, 8, 20, 40])
        H, R = rng.randint(0, 6), rng.randint(0, 5)
        sinks = rng.choice([0, 0, min(H, 1), min(H, 2)])
        if H + R == 0 or (H == sinks and R == 0): continue
        case = dict(name=f"seed {seed} case {len(cases)}", dim=dim, prompt=S, steps=steps, heavy=H, recent=R, sinks=sinks,
                    spare=rng.choice([0, 0, 0, 2, steps]))
        case["keys"] = [[random_key(rng, dim) for _ in range(S + steps)] for _ in range(rng.choice([1, 2]))]
        try:
            case["expect"] = [run_keys(case, keys) for keys in case["keys"]]
        except ValueError:      # no candidate left
            continue
        cases.append(case)
    return cases

if __name__ == "__main__":
    made = {"": make, "keys": make_keys}["".join(sys.argv[3:])]
    json.dump(made(int(sys.argv[1]), int(sys.argv[2])), sys.stdout, separators=(",", ":"))
