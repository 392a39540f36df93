"""Writes one state_dict in every form that the reader must read: make_torch_bin.py DIR (needs PyTorch)

    make_torch_bin.py --whole CHECKPOINT DIR         a checkpoint (model.safetensors) as PyTorch's own file
    make_torch_bin.py --transposed CHECKPOINT DIR    so too, its matrices column by column
"""
import json
import pathlib
import sys

import torch

DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.int64: "I64",
          torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}


def state_dict():
    torch.manual_seed(1)
    table = torch.randn(5, 8)
    state = torch.nn.Linear(3, 2).state_dict()
    for dtype, name in DTYPES.items():
        state["dtype." + name] = (torch.randn(3, 2) * 10).to(dtype)
    state.update({"table": table, "tied": table, "transposed": torch.randn(4, 6).t(), "scalar": torch.tensor(2.5),
                  "rows": table[1:3], "column": table[:, 2], "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
                  "empty": torch.zeros(0, 3), "parameter": torch.nn.Parameter(torch.randn(2))})
    return state


def main():
    out = pathlib.Path(sys.argv[1])
    for folder in ("zip", "legacy", "sharded", "expected"):
        (out / folder).mkdir(parents=True)
    state = state_dict()
    torch.save(state, out / "zip/pytorch_model.bin")
    torch.save(state, out / "legacy/pytorch_model.bin", _use_new_zipfile_serialization=False)
    names, weight_map = sorted(state), {}
    for i, part in enumerate((names[:10], names[10:]), 1):
        shard = f"pytorch_model-{i:05}-of-00002.bin"
        torch.save({name: state[name] for name in part}, out / "sharded" / shard)
        weight_map.update(dict.fromkeys(part, shard))
    (out / "sharded/pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    lines = []
    for name, tensor in torch.load(out / "zip/pytorch_model.bin", weights_only=True).items():
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        (out / "expected" / name).write_bytes(raw)
        lines.append("\t".join([name, DTYPES[tensor.dtype], *map(str, tensor.shape)]) + "\n")
    (out / "expected.tsv").write_text("".join(sorted(lines)))


def convert(checkpoint, out, column_by_column):
    from safetensors.torch import load_file
    out.mkdir(parents=True)
    (out / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    state = load_file(checkpoint / "model.safetensors")
    torch.save({name: tensor.t().contiguous().t() if column_by_column and tensor.dim() == 2 else tensor for name, tensor in state.items()},
               out / "pytorch_model.bin")


if sys.argv[1] in ("--whole", "--transposed"):
    convert(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[1] == "--transposed")
else:
    main()
