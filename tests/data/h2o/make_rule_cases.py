#!/usr/bin/env python3
"""Cases of the other retention rules in exact arithmetic:

    make_rule_cases.py SEED COUNT > rule_cases.json           1 180
    make_rule_cases.py SEED COUNT worth > worth_cases.json    2 150: counts, and scores weighted by values
    make_rule_cases.py SEED COUNT keys > key_cases.json       3 80: scores of keys
    make_rule_cases.py SEED COUNT together > together_cases.json    4 120: the mean of the KV heads' scores

As make_h2o_cases.py has them, with what the rules change:
  statistic              "sum", "largest" (over rows and heads), or "mean": sums, compared per row that could see the token
  window                 0, or how many of the last rows of the prompt make its scores
  pool                   odd: a prompt token's score is the mean of so many neighbours' scores
  decay                  [numerator, denominator] of the factor on the scores in each step
  spare                  how many tokens after the prompt the steps may keep beyond heavy + recent
  expect.gap             how far the closest choice between two scores was: after the prefill, and in each step; null: none
  norms                  null, or the norm of each token's value, by which scores are multiplied when they are compared
With the statistic "count" a score is how many rows and heads gave the token at least 1025/1024 of an even share.
expect.prefill_scores are those before pooling. Scores are exact fractions "a/b", or decimals where those are long.

Cases of keys have keys [KV head][token], of whole numbers and with lengths that are whole numbers, and `expect` by KV
head. A score is -cos(key, sum of the unit keys); what is compared are exact squares with the scores' signs.

Cases of the KV heads of one sequence together have weights [KV head][query head of its group][query][key], norms
[KV head][token], and `expect` by KV head. The heads' scores of the prompt are the mean over all of them; each step adds
to a head's scores what its own query heads give. In cases with "tied" of two equal scores one leaves the prompt, the
older; two heads give them what is the same but for which of the tokens gets which, so they are equal in fp32 too.
"""
import json, math, random, sys
from fractions import Fraction as F

MORE = F(1025, 1024)

def text(x):
    exact = str(x)
    return exact if len(exact) <= 24 else f"{float(x):.17g}"

def probabilities(row, visible):
    total = sum(row[k] for k in visible)
    return {k: F(row[k], total) for k in visible}

def worth(case, score, k, newest):
    if case["statistic"] == "mean": score /= newest - k + 1
    return score * case["norms"][k] if case.get("norms") else score

def counts(p, visible):
    """Whether p is more than an even share. ValueError: fp32 may see it otherwise."""
    share = p * visible / MORE
    if abs(share - 1) < F(1, 10000): raise ValueError("too close to more than even")
    return F(share > 1)

def gathered(case, seen):
    return max(seen) if case["statistic"] == "largest" else sum(seen)

def choose(ranked, leaving, exact=False, marks=None):
    """The `leaving` first of (worth, position), and by how much they lost. Equal ones tie in fp32 too if `exact`, or if
    their positions have equal marks."""
    ranked = sorted(ranked)
    clear = ranked[leaving][0] - ranked[leaving - 1][0] if 0 < leaving < len(ranked) else None
    if clear == 0 and (exact or marks and len({marks[k] for x, k in ranked if x == ranked[leaving][0]}) == 1):
        clear = None
    return [k for _, k in ranked[:leaving]], None if clear is None else float(clear)

def prompt_scores(case):
    S, W = case["prompt"], case["weights"]
    seen = {k: [F(0)] for k in range(S)}
    for head in W:
        for q in range(max(0, S - case["window"]) if case["window"] else 0, S):
            for k, p in probabilities(head[q], range(q + 1)).items():
                seen[k].append(counts(p, q + 1) if case["statistic"] == "count" else p)
    return [gathered(case, seen[k]) for k in range(S)]

def run(case, raw=None, marks=None):
    """`raw`: scores of the prompt's tokens, if not the case's own; `marks` of these tokens: see choose()."""
    S, H, R, sinks, spare = (case[k] for k in ("prompt", "heavy", "recent", "sinks", "spare"))
    raw, reach = raw or prompt_scores(case), case["pool"] // 2
    exact = case["statistic"] == "count" and case["pool"] == 1      # whole numbers and halves
    exact = exact and all(x.denominator in (1, 2, 4) for x in raw + [F(*case["decay"])])
    near = [raw[max(0, k - reach):k + reach + 1] for k in range(S)]
    score = {k: sum(near[k]) / len(near[k]) for k in range(S)}
    expect = {"prefill_scores": [text(x) for x in raw], "gap": [None]}
    if S > H + R:
        pinned = [k for k in range(S - R) if k < sinks][:H]
        rest = [(worth(case, score[k], k, S - 1), k) for k in range(S - R) if k not in pinned]
        gone, expect["gap"][0] = choose(rest, len(rest) - (H - len(pinned)), exact, marks)
        for k in gone: del score[k]
    expect["kept"] = sorted(score)
    expect["scores"] = {str(k): text(score[k]) for k in sorted(score)}
    expect["decode"] = []
    decay = F(*case["decay"])
    for t in range(S, S + case["steps"]):
        visible = sorted(score) + [t]
        got = {k: [] for k in visible}
        for head in case["weights"]:
            for k, p in probabilities(head[t], visible).items():
                got[k].append(counts(p, len(visible)) if case["statistic"] == "count" else p)
        for k in visible:
            old = decay * score.get(k, F(0))
            score[k] = max(old, *got[k]) if case["statistic"] == "largest" else old + sum(got[k])
        evicted, gap = None, None
        if len(visible) > H + R + spare:
            ranked = [(worth(case, score[k], k, t), k) for k in visible if sinks <= k <= t - R]
            (evicted,), gap = choose(ranked, 1, exact)
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
        statistic = ["sum", "largest", "mean"][len(cases) % 3]
        mean = statistic == "mean"
        case = dict(name=f"seed {seed} case {len(cases)}", statistic=statistic, prompt=S, steps=steps, heavy=H, recent=R,
                    sinks=sinks, spare=rng.choice([0, 0, 0, 2, steps]), window=0 if mean else rng.choice([0, 1, 4, 30]),
                    pool=rng.choice([1, 1, 3, 7]), decay=[1, 1] if mean else rng.choice([[1, 1], [9, 10], [1, 2], [0, 1]]))
        heavy = [rng.random() < 0.2 for _ in range(S + steps)]
        case["weights"] = [[[rng.randint(20, 90) if heavy[k] else rng.randint(1, 9) for k in range(q + 1)]
                            for q in range(S + steps)] for _ in range(G)]
        try:
            case["expect"] = run(case)
        except ValueError:      # no candidate left
            continue
        cases.append(case)
    return cases

def make_worth(seed, count):
    rng, cases = random.Random(seed), []
    while len(cases) < count:
        G, S, steps = rng.choice([1, 1, 2, 3]), rng.randint(1, 20), rng.randint(1, 10)
        H, R = rng.randint(0, 6), rng.randint(0, 5)
        sinks = rng.choice([0, 0, min(H, 1), min(H, 2)])
        if H + R == 0 or (H == sinks and R == 0): continue
        kinds = [("count", False), ("count", True), ("sum", True), ("mean", True), ("largest", True)]
        statistic, weighted = kinds[len(cases) % len(kinds)]
        mean = statistic == "mean"
        case = dict(name=f"seed {seed} case {len(cases)}", statistic=statistic, prompt=S, steps=steps, heavy=H, recent=R,
                    sinks=sinks, spare=rng.choice([0, 0, 0, 2, steps]), window=0 if mean else rng.choice([0, 0, 4, 30]),
                    pool=rng.choice([1, 1, 1, 3]), decay=[1, 1] if mean else rng.choice([[1, 1], [1, 2]]))
        case["norms"] = [rng.choice([1, 1, 2, 3, 9]) for _ in range(S + steps)] if weighted else None
        heavy = [rng.random() < 0.3 for _ in range(S + steps)]
        even = rng.random() < 0.2       # then nothing is more than even
        case["weights"] = [[[5 if even else rng.randint(20, 90) if heavy[k] else rng.randint(1, 9) for k in range(q + 1)]
                            for q in range(S + steps)] for _ in range(G)]
        try:
            case["expect"] = run(case)
        except ValueError:      # no candidate left, or a share too close to more than even
            continue
        cases.append(case)
    return cases

def by_head(case):
    """A case of several KV heads as cases of one."""
    norms = case["norms"] or [None] * len(case["weights"])
    return [dict(case, weights=w, norms=n) for w, n in zip(case["weights"], norms)]

def mark(case, k, mean):
    """What fp32 makes a prompt token's mean score of; the first two heads may be exchanged."""
    S, statistic = case["prompt"], case["statistic"]
    if statistic == "mean": return k
    if statistic == "count": return mean
    heads = []
    for head in case["weights"]:
        got = [(q, row[q][k], sum(row[q])) for q in range(max(k, S - case["window"]) if case["window"] else k, S)
               for row in head]
        if statistic == "largest":
            most = max((F(w, total) for _, w, total in got), default=0)
            got = sorted({(w, total) for _, w, total in got if F(w, total) == most})
        heads.append(got)
    return str(sorted(heads[:2]) + heads[2:])

def run_together(case):
    heads = by_head(case)
    raw = [sum(scores) / len(heads) for scores in zip(*map(prompt_scores, heads))]
    marks = None
    if case["pool"] == 1 and not case["norms"]: marks = [mark(case, k, raw[k]) for k in range(case["prompt"])]
    return [run(head, raw, marks) for head in heads]

def tied_weights(rng, case, heads, group):
    """Each of the window's rows gives the tokens a and b what it likes; the second head's as the first head's, but with
    a and b exchanged and the other tokens in another order. Further heads give both the same. Powers of 2, whose sums
    are exact in fp32 in any order."""
    S, end = case["prompt"], case["prompt"] + case["steps"]
    a, b = sorted(rng.sample(range(case["sinks"], S - case["recent"]), 2))
    case["window"] = rng.randint(1, min(4, S - b))
    weights = [[[[rng.choice([1, 1, 2, 4, 16]) for k in range(q + 1)] for q in range(end)] for _ in range(group)]
               for _ in range(heads)]
    for g in range(group):
        for q in range(S - case["window"], S):
            row = weights[0][g][q]
            others = [row[k] for k in range(q + 1) if k not in (a, b)]
            rng.shuffle(others)
            weights[1][g][q] = [row[b] if k == a else row[a] if k == b else others.pop() for k in range(q + 1)]
            for head in weights[2:]: head[g][q][a] = head[g][q][b]
    return weights

def is_tied(case):
    """Whether the oldest of equal scores leaves the prompt and the next one stays, where a head by itself chooses
    otherwise."""
    first = case["expect"][0]
    score, kept = [F(x) for x in first["prefill_scores"]], first["kept"]
    left = [k for k in range(case["sinks"], case["prompt"]) if k not in kept]
    stayed = [k for k in kept if case["sinks"] <= k < case["prompt"] - case["recent"]]
    if first["gap"][0] is not None or not left or not stayed: return False
    return max(score[k] for k in left) == min(score[k] for k in stayed) and any(
        run(head)["kept"] != kept for head in by_head(case))

def make_together(seed, count):
    rng, cases = random.Random(seed), []
    while len(cases) < count:
        heads, G = rng.choice([2, 2, 3, 4]), rng.choice([1, 1, 2, 3])
        S, steps = rng.randint(1, 16), rng.randint(1, 6)
        H, R = rng.randint(0, 6), rng.randint(0, 4)
        sinks = rng.choice([0, 0, min(H, 1), min(H, 2)])
        if H + R == 0 or (H == sinks and R == 0): continue
        statistic = ["sum", "largest", "count", "mean"][len(cases) % 4]
        mean, tied = statistic == "mean", statistic != "mean" and len(cases) // 4 % 3 == 0
        if tied and (S <= H + R or S - R - sinks < 2): continue
        case = dict(name=f"seed {seed} case {len(cases)}", statistic=statistic, prompt=S, steps=steps, heavy=H,
                    recent=R, sinks=sinks, spare=rng.choice([0, 0, 0, 2, steps]),
                    window=0 if mean else rng.choice([0, 1, 4, 30]),
                    pool=1 if tied else rng.choice([1, 1, 3, 7]), tied=tied,
                    decay=[1, 1] if mean else rng.choice([[1, 1], [9, 10], [1, 2], [0, 1]]), norms=None)
        if tied and statistic != "count":
            case["weights"] = tied_weights(rng, case, heads, G)
        else:
            case["weights"] = []
            for _ in range(heads):      # each has its own heavy tokens
                heavy = [rng.random() < 0.2 for _ in range(S + steps)]
                case["weights"].append([[[rng.randint(20, 90) if heavy[k] else rng.randint(1, 9) for k in range(q + 1)]
                                         for q in range(S + steps)] for _ in range(G)])
        if not tied and rng.random() < 0.2:
            case["norms"] = [[rng.choice([1, 1, 2, 3, 9]) for _ in range(S + steps)] for _ in range(heads)]
        try:
            case["expect"] = run_together(case)
            if tied and not is_tied(case): continue
        except ValueError:      # no candidate left, or a share too close to more than even
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
    made = {"": make, "worth": make_worth, "keys": make_keys, "together": make_together}["".join(sys.argv[3:])]
    json.dump(made(int(sys.argv[1]), int(sys.argv[2])), sys.stdout, separators=(",", ":"))
