#!/usr/bin/env python3
"""Cold tokens, in plain Python and exact fractions: make_cold.py > cold.json

`rows`: the bytes of an int8 row (kernels/kv_row.h) and of its coarse rows (kernels/coarse_row.h), by bits.
`traces`: one KV head, a prompt and decode steps. weights [head][query][key] are exp(logit), which are fed as
  probabilities; prompt_scores, if given, stand in the place of the sums. `states`: after the prompt and after each step
  the fine and the cold tokens with their scores, and `gone`, what left the cache in each step, or -1.
"""
import json, random, sys
from fractions import Fraction as F

GROUP = 64

def coarsen(levels, scales, bits):
    out = bytearray()
    for first in range(0, len(levels), GROUP):
        group = levels[first:first + GROUP]
        group = group + [0] * (GROUP - len(group))
        top = [level >> (8 - bits) for level in group]
        planes = {1: [(1, top)], 2: [(2, top)], 4: [(4, top)],
                  3: [(2, [t >> 1 for t in top]), (1, [t & 1 for t in top])]}[bits]
        for width, numbers in planes:
            plane = [0] * (8 * width)
            for d, number in enumerate(numbers):
                i, p = divmod(d, 2)
                byte, shift = {4: (i, 4 * p), 2: (2 * (i % 8) + p, 2 * (i // 8)), 1: (2 * (i % 4) + p, i // 4)}[width]
                plane[byte] |= number << shift
            out += bytes(plane)
    return bytes(out) + scales

def make_rows():
    rows = []
    for dim in (64, 128, 80, 20, 63):
        levels = [random.randrange(256) for _ in range(dim)]
        scales = bytes(random.randrange(256) for _ in range((dim + GROUP - 1) // GROUP * 4))
        fine = bytes(levels) + bytes(-dim % 4) + scales
        rows.append({"head_dim": dim, "fine": fine.hex(),
                     "coarse": {str(bits): coarsen(levels, scales, bits).hex() for bits in (1, 2, 3, 4)}})
    return rows

def seen_from(keep, t):
    return t - keep["window"] + 1 if keep["window"] > 0 and t >= keep["window"] else 0

def softmax(weights, visible):
    total = sum(F(weights[k]) for k in visible)
    return {k: F(weights[k]) / total for k in visible}

class Gap:
    """The smallest difference between the score that was chosen and the others: 0 is a tie, which must be exact."""
    def __init__(self): self.least = None
    def note(self, a, b):
        if a != b and (self.least is None or abs(a - b) < self.least): self.least = abs(a - b)

def trace(name, weights, prompt, steps, given=None, **wanted):
    keep = dict(heavy=0, recent=0, sinks=0, grace=0, spare=0, window=0, cold=0) | wanted
    gap = Gap()
    scores = {i: F(0) for i in range(prompt)}
    if given: scores = {i: F(s) for i, s in enumerate(given)}
    else:
        for head in weights:
            for row in range(prompt):
                for k, p in softmax(head[row], range(max(0, row - keep["window"] + 1) if keep["window"] else 0, row + 1)).items():
                    scores[k] += p
    prompt_scores = [str(scores[i]) for i in range(prompt)]
    fine, cold = dict(scores), {}
    if prompt > keep["heavy"] + keep["recent"]:
        begin, recent = seen_from(keep, prompt), prompt - keep["recent"]
        pinned = [i for i in range(begin, recent) if i < keep["sinks"]][:keep["heavy"]]
        others = sorted((i for i in range(begin, recent) if i not in pinned), key=lambda i: (scores[i], i), reverse=True)
        heavy = keep["heavy"] - len(pinned)
        for a, b in zip(others, others[1:]): gap.note(scores[a], scores[b])
        fine = {i: scores[i] for i in [*pinned, *others[:heavy], *range(recent, prompt)]}
        cold = {i: scores[i] for i in others[heavy:heavy + keep["cold"]]}
    def state(): return {kind: {str(i): str(s) for i, s in sorted(of.items())} for kind, of in (("fine", fine), ("cold", cold))}
    states, gone = [state()], []
    budget = keep["heavy"] + keep["recent"] + keep["spare"]
    for t in range(prompt, prompt + steps):
        fine[t] = F(0)
        for head in weights:
            for k, p in softmax(head[t], [*fine, *cold]).items():
                (fine if k in fine else cold)[k] += p
        leaves = -1
        for k in [*fine, *cold]:
            if k < seen_from(keep, t + 1): leaves = k
        if leaves >= 0: (fine if leaves in fine else cold).pop(leaves)
        candidates = sorted((s, k) for k, s in fine.items() if keep["sinks"] <= k <= t - keep["recent"] - keep["grace"])
        if len(fine) > budget and candidates:
            for a, b in zip(candidates, candidates[1:]): gap.note(a[0], b[0])
            score, k = candidates[0]
            cold[k] = fine.pop(k)
            if len(cold) > keep["cold"]:
                ordered = sorted((s, i) for i, s in cold.items())
                for a, b in zip(ordered, ordered[1:]): gap.note(a[0], b[0])
                leaves = ordered[0][1]
                cold.pop(leaves)
        gone.append(leaves)
        states.append(state())
    assert gap.least is None or gap.least > F(1, 20000), (name, float(gap.least))
    return {"name": name, "weights": [[[str(w) for w in row] for row in head] for head in weights], "prompt": prompt,
            "steps": steps, "keep": keep, "prompt_scores": prompt_scores, "states": states, "gone": gone}

def random_weights(heads, tokens):
    """Later keys and some early ones get more, so that tokens of every age go."""
    def weight(key): return random.randrange(1, 4 * (key + 1)) * (12 if random.random() < 0.15 else 1)
    return [[[weight(key) for key in range(row + 1)] for row in range(tokens)] for _ in range(heads)]

def even(heads, tokens):
    return [[[1] * (row + 1) for row in range(tokens)] for _ in range(heads)]

def make_traces():
    made = [
        trace("everything stays", random_weights(1, 16), 8, 8, heavy=2, recent=2, cold=16),
        trace("nothing is cold", random_weights(1, 16), 8, 8, heavy=2, recent=2, cold=0),
        trace("the coldest goes", random_weights(1, 20), 8, 12, heavy=2, recent=2, cold=3),
        trace("the victim itself is the coldest", even(1, 16), 8, 8, heavy=2, recent=2, cold=2),
        trace("groups of 4", random_weights(4, 18), 6, 12, heavy=3, recent=2, cold=4),
        trace("groups of 8", random_weights(8, 18), 9, 9, heavy=3, recent=3, cold=5),
        trace("a prompt within the budget", random_weights(1, 14), 3, 11, heavy=2, recent=3, cold=4),
        trace("sinks and grace", random_weights(1, 18), 8, 10, heavy=3, recent=2, sinks=1, grace=1, cold=4),
        trace("no recent tokens: the new one may cool at once", random_weights(1, 14), 6, 8, heavy=3, recent=0, cold=3),
        trace("only recent ones", random_weights(1, 14), 7, 7, heavy=0, recent=3, cold=4),
        trace("steps evict nothing", random_weights(1, 14), 8, 6, heavy=2, recent=2, spare=6, cold=3),
        trace("a window that tokens leave", random_weights(1, 20), 8, 12, heavy=2, recent=2, window=8, cold=3),
        # Powers of two, so that ties are exact in floats: of equals the newer stays.
        trace("ties in the prompt", even(1, 8), 8, 0, given=["2", "1/2", "1/2", "1/2", "1/2", "1/4", "1/4", "1/8"],
              heavy=2, recent=1, cold=3),
        trace("ties between the victim and the coldest", [[[1] + [0] * (row - 1) + [1] for row in range(12)]], 6, 6,
              given=["4", "1/2", "1/2", "1/2", "1/2", "1/2"], heavy=2, recent=1, cold=2),
    ]
    return made

random.seed(7)
json.dump({"rows": make_rows(), "traces": make_traces()}, sys.stdout, indent=None, separators=(",", ":"))
print()
