#!/usr/bin/env python3
"""Keys and values in slots of int8 and int4, worked out in numpy: make_kv_rows.py > kv_rows.json

`rows`: numbers (fp32, as hexadecimal bytes, little endian) and the bytes that kernels/kv_row.h makes of them.
`attention`: one head of queries over quantised keys and values, in fp64 of what the slots mean:
  query [group, head_dim], keys and values [slots, head_dim] before they are quantised, scale; out and probabilities;
  "int8-int4": with keys of int8 and values of int4.
`hadamard`: a head before and after the rotation, in fp64.
"""
import json, math, sys
import numpy as np

GROUP, BLOCK = 64, 32

def quantise_group(x, top):
    """Levels, and scale and minimum in fp16; every operation in fp32."""
    one = np.float32
    bad = (np.zeros(len(x), np.uint8), np.float16(np.nan), np.float16(np.nan))
    if not np.isfinite(x).all():
        return bad
    minimum = np.float16(one(x.min()) + one(0))
    spread = one(x.max()) - one(minimum)
    scale = np.float16(spread / one(top)) if spread > 0 else np.float16(0)
    if not (np.isfinite(minimum) and np.isfinite(scale)):
        return bad
    if scale == 0:
        return np.zeros(len(x), np.uint8), scale, minimum
    steps = np.rint((x - one(minimum)) * (one(1) / one(scale)))
    return np.clip(steps, 0, top).astype(np.uint8), scale, minimum

def quantise(x, bits):
    top = (1 << bits) - 1
    levels, scales = [], b""
    for first in range(0, len(x), GROUP):
        level, scale, minimum = quantise_group(x[first:first + GROUP], top)
        levels.extend(int(l) for l in level)
        halves = np.array([scale, minimum], np.float16).view(np.uint16)
        halves = [0x7E00 if np.isnan(h) else int(u) for h, u in zip((scale, minimum), halves)]
        scales += np.array(halves, "<u2").tobytes()
    row = bytearray()
    if bits == 8:
        row += bytes(levels)
    else:
        for first in range(0, len(levels), BLOCK):
            block = levels[first:first + BLOCK]
            half = (len(block) + 1) // 2
            high = block[half:] + [0] * (2 * half - len(block))
            row += bytes(low | h << 4 for low, h in zip(block[:half], high))
    row += bytes(-len(row) % 4)
    return bytes(row) + scales

def meaning(x, bits):
    """What the quantised numbers mean, in fp64."""
    out = []
    for first in range(0, len(x), GROUP):
        level, scale, minimum = quantise_group(x[first:first + GROUP], (1 << bits) - 1)
        out.append(level.astype(np.float64) * float(scale) + float(minimum))
    return np.concatenate(out)

def hadamard(x):
    x, out = np.asarray(x, np.float64), []
    while len(x):
        n = 1 << (len(x).bit_length() - 1)
        matrix = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(n)] for i in range(n)])
        out.append(matrix @ x[:n] / math.sqrt(n))
        x = x[n:]
    return np.concatenate(out)

def hexed(x):
    return np.asarray(x, "<f4").tobytes().hex()

def main():
    rng = np.random.default_rng(7)
    rows = []
    def row(x, note=""):
        x = np.asarray(x, np.float32)
        rows.append({"note": note, "numbers": hexed(x),
                     **{f"int{bits}": quantise(x, bits).hex() for bits in (8, 4)}})
    with np.errstate(all="ignore"):
        for dim in (1, 2, 3, 5, 8, 10, 16, 17, 20, 24, 31, 32, 33, 40, 48, 64, 65, 80, 96, 100, 112, 128, 160, 192, 256):
            row(rng.normal(0, 3, dim), "normal")
        for scale in (1e-8, 1e-6, 1e-4, 1e4, 3e4):
            row(rng.normal(0, scale, 80), f"deviation {scale}")
        row(np.full(64, 1.2345), "equal numbers")
        row(np.full(16, -0.0), "minus zero")
        row(np.where(np.arange(64) % 2, 0.0, -0.0), "zeros of both signs")
        row(np.concatenate([np.full(63, 0.001), [500.0]]), "an outlier")
        row(np.concatenate([[-60000.0], np.full(15, 60000.0)]), "all of fp16's range")
        for bad in (np.nan, np.inf, -np.inf, -7e4, 3e38):
            x = rng.normal(0, 1, 100)
            x[70] = bad
            row(x, f"{bad} in the second group")
        row(np.arange(16) - 7.5, "ties")
        row(np.linspace(-1, 1, 128), "a line")
        attention = []
        for dim, group, slots in ((64, 1, 20), (8, 2, 5), (80, 4, 17), (128, 3, 9), (20, 1, 16)):
            query, keys, values = (rng.normal(0, 1, s).astype(np.float32) for s in ((group, dim), (slots, dim), (slots, dim)))
            keys[:, :2] *= 8  # channels that stand out, as models have them
            case = {"head_dim": dim, "group": group, "slots": slots, "query": hexed(query), "keys": hexed(keys),
                    "values": hexed(values)}
            for name, k_bits, v_bits in (("int8", 8, 8), ("int4", 4, 4), ("int8-int4", 8, 4)):
                k, v = (np.array([meaning(x, bits) for x in m]) for m, bits in ((keys, k_bits), (values, v_bits)))
                logits = query.astype(np.float64) @ k.T / math.sqrt(dim)
                p = np.exp(logits - logits.max(1, keepdims=True))
                p /= p.sum(1, keepdims=True)
                case[name] = {"score": [round(x, 9) for x in p.sum(0)], "out": [round(x, 9) for x in (p @ v).ravel()]}
            attention.append(case)
    turned = []
    for dim in (1, 2, 6, 16, 64, 80, 96, 112, 128):
        x = rng.normal(0, 1, dim).astype(np.float32)
        turned.append({"numbers": hexed(x), "turned": [round(y, 9) for y in hadamard(x)]})
    json.dump({"rows": rows, "attention": attention, "hadamard": turned}, sys.stdout, separators=(",", ":"))
    print()

if __name__ == "__main__":
    main()
