#!/usr/bin/env python3
"""What Hugging Face transformers computes with the tiny golden checkpoints when the matrices of their layers are
quantised: writes quantised.json next to each expected.json.

The quantiser here does what kernels/quantised.cc does and shares no code with it: groups along a row, a scale and a
minimum in float16, for 4 bits those with the least squared error of a few starts, and the numbers that the levels mean
put back into the model, which then computes in fp32.

    scripts/make_quantised_golden.py [NAME...]      # needs torch, transformers, numpy; all checkpoints without names
"""
import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import make_golden  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "data" / "golden"
LENGTHS = (5, 23)
FORMATS = {"int4": 15, "int8": 255}
GROUP = 64


CUTS = ((0, 0), (0.08, 0), (0, 0.08), (0.08, 0.08), (0.16, 0.16))


def half(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.float32).astype(np.float16).astype(np.float32)


def levels_of(part: np.ndarray, scale: np.ndarray, low: np.ndarray, top: int) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(scale > 0, np.clip(np.rint((part - low) / scale), 0, top), 0).astype(np.float32)


def error_of(part: np.ndarray, scale: np.ndarray, low: np.ndarray, top: int) -> np.ndarray:
    meant = levels_of(part, scale, low, top) * scale + low
    return np.square((meant - part).astype(np.float64)).sum(1, keepdims=True)


def refined(part: np.ndarray, scale: np.ndarray, low: np.ndarray, top: int):
    """The best line through the numbers over their levels, up to four times, row by row while it gets better."""
    error = error_of(part, scale, low, top)
    going = np.ones_like(error, dtype=bool)
    for _ in range(4):
        level = levels_of(part, scale, low, top).astype(np.float64)
        x, n = part.astype(np.float64), part.shape[1]
        total, squares = level.sum(1, keepdims=True), np.square(level).sum(1, keepdims=True)
        numbers, products = x.sum(1, keepdims=True), (level * x).sum(1, keepdims=True)
        spread = n * squares - total * total
        with np.errstate(divide="ignore", invalid="ignore"):
            new_scale = half((n * products - total * numbers) / spread)
            new_low = half((numbers - new_scale.astype(np.float64) * total) / n)
        good = going & (spread > 0) & (new_scale > 0) & np.isfinite(new_low)
        new_scale, new_low = np.where(good, new_scale, scale), np.where(good, new_low, low)
        found = error_of(part, new_scale, new_low, top)
        going = good & (found < error)
        scale, low = np.where(going, new_scale, scale), np.where(going, new_low, low)
        error = np.where(going, found, error)
    return scale, low, error


def dequantised(weight: np.ndarray, top: int, group: int = GROUP) -> np.ndarray:
    """[rows, cols] fp32: what the levels of `weight` mean."""
    meant = np.empty_like(weight)
    for first in range(0, weight.shape[1], group):
        part = weight[:, first:first + group]
        least, most = part.min(1, keepdims=True), part.max(1, keepdims=True)
        scale, low = half((most - least) / np.float32(top)), half(least)
        error = error_of(part, scale, low, top)
        searched = scale > 0
        for below, above in CUTS if top == 15 else ():
            start = least - np.float32(below) * least
            end = most - np.float32(above) * most
            new_scale, new_low, found = refined(part, half((end - start) / np.float32(top)), half(start), top)
            better = searched & (found < error)
            scale, low = np.where(better, new_scale, scale), np.where(better, new_low, low)
            error = np.where(better, found, error)
        meant[:, first:first + group] = levels_of(part, scale, low, top) * scale + low
    return meant


def quantise(model, top: int) -> int:
    """The matrices of the layers, in place; returns how many."""
    count = 0
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and ".layers." in f".{name}.":
            # Where 4 bits are asked for, projections of values alone have 8.
            own = 255 if name.endswith("v_proj") else top
            module.weight.data = torch.from_numpy(dequantised(module.weight.data.numpy(), own))
            count += 1
    return count


def make(name: str) -> None:
    make_golden.GREEDY_TOKENS = 16
    result = {"made_by": make_golden.made_by(), "group": GROUP}
    for form, top in FORMATS.items():
        model = make_golden.load_upcast(GOLDEN / name)
        matrices = quantise(model, top)
        assert matrices >= 4 * model.config.num_hidden_layers, (name, matrices)
        rng = np.random.default_rng(17)
        result[form] = [
            make_golden.expect(model, rng.integers(3, model.config.vocab_size, length).tolist(), after=[0, 9])
            for length in LENGTHS
        ]
        print(f"{name}: {form}, {matrices} matrices", flush=True)
    lines = ",\n".join(f'"{key}": ' + make_golden.json.dumps(value, separators=(",", ":")) for key, value in result.items())
    (GOLDEN / name / "quantised.json").write_text("{" + lines + "}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names or sorted(p.name for p in GOLDEN.iterdir() if (p / "expected.json").exists())
    torch.set_num_threads(1)
    make_golden.transformers.utils.logging.disable_progress_bar()
    for name in names:
        make(name)


if __name__ == "__main__":
    main()
