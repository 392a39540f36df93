#!/usr/bin/env python3
"""Split slots, in plain Python and exact fractions: make_split.py > split.json

`rows`: the bytes of an int8 row (kernels/kv_row.h) and of its pieces (kernels/coarse_row.h), by the bits of high rows.
`choices`: a step of one KV head over a prompt and its own token, the last. shares [head][token] are fed as
  probabilities; `chosen`: the tokens that are read with all their bits.
"""
import json, random, sys
from fractions import Fraction as F

GROUP = 64

def planes(levels, bits, shift):
    """The `bits` bits of each level from bit `shift` on, as planes of 4, 2 and 1 bits."""
    out = bytearray()
    for first in range(0, len(levels), GROUP):
        group = levels[first:first + GROUP]
        group = [level >> shift & (1 << bits) - 1 for level in group + [0] * (GROUP - len(group))]
        left = bits
        for width in (4, 2, 1):
            if left < width: continue
            left -= width
            plane = [0] * (8 * width)
            for d, number in enumerate(group):
                i, p = divmod(d, 2)
                byte, at = {4: (i, 4 * p), 2: (2 * (i % 8) + p, 2 * (i // 8)), 1: (2 * (i % 4) + p, i // 4)}[width]
                plane[byte] |= (number >> left & (1 << width) - 1) << at
            out += bytes(plane)
    return bytes(out)

def make_rows():
    rows = []
    for dim in (64, 128, 80, 20, 63):
        levels = [random.randrange(256) for _ in range(dim)]
        scales = bytes(random.randrange(256) for _ in range((dim + GROUP - 1) // GROUP * 4))
        fine = bytes(levels) + bytes(-dim % 4) + scales
        rows.append({"head_dim": dim, "fine": fine.hex(), "scales": scales.hex(),
                     "high": {str(bits): planes(levels, bits, 8 - bits).hex() for bits in (1, 2, 3, 4)},
                     "low": {str(bits): planes(levels, 8 - bits, 0).hex() for bits in (1, 2, 3, 4)}})
    return rows

def choice(name, shares, read, sinks=0):
    tokens = len(shares[0])
    mean = [sum(F(head[t]) for head in shares) / len(shares) for t in range(tokens)]
    newest = list(range(tokens))[-((read + 3) // 4):]
    pinned = [t for t in range(tokens) if t < sinks and t not in newest]
    others = sorted((t for t in range(tokens) if t not in newest and t not in pinned), key=lambda t: (-mean[t], t))
    chosen = sorted([*newest, *pinned, *others][:read])
    return {"name": name, "shares": [[str(F(s)) for s in head] for head in shares], "read": read, "sinks": sinks,
            "chosen": chosen}

def random_shares(heads, tokens, most):
    return [[F(random.randint(1, most), 64) for _ in range(tokens)] for _ in range(heads)]

def make_choices():
    equal = [[F(1, 32)] * 20]
    made = [choice("all are equal: the older", equal, 7), choice("all are equal, with sinks", equal, 9, sinks=3),
            choice("more sinks than room", equal, 4, sinks=10), choice("one is read: the step's own", equal, 1),
            choice("all but one", random_shares(1, 40, 3), 39),
            choice("the mean decides, not the largest of a head",
                   [[F(8, 64), F(3, 64), F(4, 64), *[F(1, 64)] * 9], [F(1, 64), F(7, 64), F(6, 64), *[F(1, 64)] * 9]], 3)]
    for heads in (1, 4, 8):
        for tokens, read, sinks in ((17, 5, 0), (33, 8, 2), (50, 20, 4), (60, 6, 1), (60, 59, 0)):
            made.append(choice(f"{heads} heads, {tokens} tokens", random_shares(heads, tokens, 4), read, sinks))
    return made

random.seed(11)
json.dump({"rows": make_rows(), "choices": make_choices()}, sys.stdout, indent=None, separators=(",", ":"))
print()
