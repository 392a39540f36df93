#!/usr/bin/env python3
"""What Hugging Face transformers computes with the tiny golden checkpoints when the matrices of their layers are
quantised: writes quantised.json next to each expected.json.

The quantiser here is written after kernels/quantised.h and shares no code with it: groups along a row, a scale and a
minimum in float16, and the numbers that the levels mean put back into the model, which then computes in fp32.

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


def dequantised(weight: np.ndarray, top: int, group: int = GROUP) -> np.ndarray:
    """[rows, cols] fp32: what the levels of `weight` mean."""
    meant = np.empty_like(weight)
    for first in range(0, weight.shape[1], group):
        part = weight[:, first:first + group]
        low, high = part.min(1, keepdims=True), part.max(1, keepdims=True)
        scale = ((high - low) / np.float32(top)).astype(np.float16).astype(np.float32)
        low = low.astype(np.float16).astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):
            levels = np.where(scale > 0, np.clip(np.rint((part - low) / scale), 0, top), 0)
        meant[:, first:first + group] = (levels.astype(np.float64) * scale + low).astype(np.float32)
    return meant


def quantise(model, top: int) -> int:
    """The matrices of the layers, in place; returns how many."""
    count = 0
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and ".layers." in f".{name}.":
            module.weight.data = torch.from_numpy(dequantised(module.weight.data.numpy(), top))
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
    for name in names:
        make(name)


if __name__ == "__main__":
    main()
