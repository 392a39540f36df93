#!/usr/bin/env python3
"""What the kernels take of a GPU, by nvcc's machine code: registers, spills, shared memory and thread blocks at once; and
of the hot kernels' inner loops instructions, products and bytes, and the share of the roofline that these allow on a T4,
an A100 and an H100. Needs nvcc and no GPU; the inner loops need nvdisasm too, which comes with the whole toolkit and with
triton from PyPI.

Usage: ptxas.py [--architectures 75,80,90] [--all] > table.md
       ptxas.py --check    fails where a hot kernel is worse than its row of gpu_budgets.json, or any kernel spills
       ptxas.py --update   writes that file anew
       ptxas.py --kept     prints the tables of that file, and compiles nothing
--only GLOB compiles only these sources. Exit code 77, skipped: there is no nvcc, or not the one of the budgets.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import sass

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUDGETS = HERE / "gpu_budgets.json"
SKIPPED = 77
FLAGS = ["-std=c++20", "--expt-relaxed-constexpr", "-O3", f"-I{ROOT}", "-Xcompiler=-Wall,-Wextra", "-Xptxas=-v"]
SHORT = [(r"weft::kernels::(cuda::(decode|prefill)::)?", ""), (r"\(anonymous namespace\)::", ""), (r"cuda::", ""),
         (r"__nv_bfloat16", "bf16"), (r"__half", "half"), (r"\(int\)", ""), (r"\(bool\)", ""),
         (r"\(weft::DType\)4", "i8"), (r"\(weft::DType\)5", "i4"), (r"\(weft::DType\)6", "f8"), (r"^void ", ""), (r"\(.*\)$", "")]
SLOTS = 205  # of a KV budget of 20 % of 512 + 512 tokens


def decode_shared(heads, partial=1024):
    """Bytes of a decode step's dynamic shared memory: positions, probabilities, `partial` numbers of sums for each head."""
    return 4 * (-(-(heads + 1) * SLOTS // 4) * 4 + heads * partial)


# What a sweep spends its time in, in fp16 with heads of 64 and 128: name, dynamic shared memory of a thread block.
HOT = {
    "prefill_tensor<half, 128, 1>": 2 * 64 * 128 * 2,
    "prefill_tensor<half, 128, 2>": 4 * 64 * 128 * 2,
    "prefill_tensor<half, 64, 1>": 2 * 64 * 64 * 2,
    "prefill_tensor<half, 64, 2>": 4 * 64 * 64 * 2,
    "column_sums_tensor<half, 128, 1, false>": 2 * 64 * 128 * 2,
    "column_sums_tensor<half, 128, 2, false>": 2 * 64 * 128 * 2,
    "column_sums_tensor<half, 64, 1, false>": 2 * 64 * 64 * 2,
    "column_sums_tensor<half, 64, 2, false>": 2 * 64 * 64 * 2,
    "decode_fused<Team<half, 8, 16, 1>, 1>": decode_shared(1),
    "decode_fused<Team<half, 8, 8, 1>, 1>": decode_shared(1),
    "decode_fused<LevelTiles<Level<i8>, 128>, 1>": decode_shared(1, 4 * 128),
    "decode_fused<LevelTiles<Level<i4>, 128>, 1>": decode_shared(1, 4 * 128),
    "decode_fused<GroupTiles<half, 128>, 4>": decode_shared(4, 4 * 128),
    "decode_fused<GroupTiles<half, 128>, 8>": decode_shared(8, 4 * 128),
    "decode_fused<GroupTiles<half, 64>, 4>": decode_shared(4, 4 * 64),
    "multiply_levels<i8, 1>": 4 * 32 * 8 * 4,
    "multiply_levels<i4, 1>": 4 * 32 * 8 * 4,
    "multiply_levels<i4, 4>": 4 * 32 * 32 * 4,
    "multiply_levels<i4, 8>": 4 * 32 * 64 * 4,
    "unpack_tiles<i8, true>": 0,
    "unpack_tiles<i4, true>": 0,
    "keep_prompt<half, 8>": 0,
    "layer_norm<float, half, 8, 4>": 0,
    "round_rows<half, 8>": 0,
    "finish_rows<half, false, 8>": 0,
    "sample_rows": 0,
}
BY_PRODUCTS = ("prefill_tensor", "column_sums_tensor")  # tensor cores bound them, and memory the others
# Bytes that a warp moves in a turn of its inner loops, where lanes read the same words (scales) or other rows' numbers
# (x), which are not counted again: 16 slots of keys and 16 of values; 32 rows of 32 columns of weights, two or three
# times; 16 rows of 64 columns, and these in fp16.
TURN = {
    "decode_fused<LevelTiles<Level<i8>, 128>, 1>": 2 * 16 * 136,
    "decode_fused<LevelTiles<Level<i4>, 128>, 1>": 2 * 16 * 72,
    "multiply_levels<i8, 1>": 2 * (1024 + 64),
    "multiply_levels<i4, 1>": 2 * (512 + 64),
    "multiply_levels<i4, 4>": 2 * (512 + 64),
    "multiply_levels<i4, 8>": 2 * (512 + 64),
    "unpack_tiles<i8, true>": 1024 + 64 + 2048,
    "unpack_tiles<i4, true>": 512 + 64 + 2048,
}
THREADS = dict.fromkeys(["multiply_levels", "unpack_tiles", "keep_prompt", "layer_norm", "round_rows", "finish_rows",
                         "sample_rows"], 256)


def products_of(name, architecture):
    """Instructions that multiply tiles, for one tile of 64 rows or keys: those of 16 x 8 x 16 numbers, on Turing of half as
    many."""
    dim, strips = map(int, re.search(r"<half, (\d+), (\d)", name).groups())
    tiles = strips * dim // (1 if name.startswith("prefill") else 2)
    return tiles * (2 if architecture < 80 else 1)


def short_name(name):
    for pattern, text in SHORT:
        name = re.sub(pattern, text, name)
    return name


def nvcc_release():
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"release ([\d.]+)", said).group(1)


def disassembler():
    found = shutil.which("nvdisasm")
    beside = pathlib.Path(shutil.which("nvcc")).resolve().parent / "nvdisasm"
    if found or beside.exists():
        return found or str(beside)
    for folder in (*sys.path, *map(str, ROOT.glob("build/venv/lib/python3.*/site-packages"))):
        program = pathlib.Path(folder) / "triton/backends/nvidia/bin/nvdisasm"
        if program.exists():
            return str(program)
    return None


def kernels_in(log):
    """nvcc's messages -> mangled name: (registers, static shared bytes, spilled bytes)."""
    entries = re.findall(r"Compiling entry function '(\w+)'.*?\n(.*?)Used (\d+) registers(.*?)\n", log, re.S)
    found = {}
    for name, between, registers, rest in entries:
        shared = re.search(r"(\d+) bytes smem", rest)
        spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", between))
        found[name] = (int(registers), int(shared.group(1)) if shared else 0, spills)
    return found


def figures_of(name, taken, lines, architecture):
    """A row: what a kernel takes; of a hot one also what its inner loop does, if there is a listing."""
    registers, shared, spills = taken
    row = {"registers": registers, "shared": shared, "spills": spills}
    if name not in HOT or architecture not in sass.LIMITS:
        return row
    threads = THREADS.get(name.split("<")[0], 128)
    row["blocks"] = sass.blocks_at_once(architecture, threads, registers, shared + HOT[name])
    if lines:
        tensor = products_of(name, architecture) if name.startswith(BY_PRODUCTS) else 0
        bodies = sass.inner_loops(lines, tensor)
        row["instructions"] = sum(map(len, bodies))
        row["products"] = sum("HMMA" in code for body in bodies for code in body) if tensor else 0
        row["bytes"] = TURN.get(name) or 32 * sum(sass.bytes_of(code) for body in bodies for code in body)
        row["bound"], best, worst = sass.share(bodies, architecture, tensor, row["bytes"])
        row["share"] = [round(worst, 2), round(best, 2)]
    return row


def measure(architectures, sources):
    """Short name -> architecture -> row."""
    program, table = disassembler(), {}
    if not program:
        print("no nvdisasm: inner loops are left out", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        for architecture in architectures:
            for source in sources:
                cubin = f"{folder}/{source.stem}.cubin"
                command = ["nvcc", *FLAGS, f"-arch=sm_{architecture}", "-cubin", str(source), "-o", cubin]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode != 0 or "warning" in done.stderr:
                    sys.exit(f"{source.name} for sm_{architecture}: nvcc says:\n{done.stderr}")
                taken = kernels_in(done.stderr)
                if not taken:
                    continue
                listing = {}
                if program:
                    listing = sass.functions(subprocess.run([program, "-c", cubin], capture_output=True, text=True,
                                                            check=True).stdout)
                names = subprocess.run(["c++filt"], input="\n".join(taken), capture_output=True, text=True).stdout
                for mangled, name in zip(taken, map(short_name, names.splitlines())):
                    lines = listing.get(mangled)
                    if name.startswith(BY_PRODUCTS) and lines and not any("HMMA" in (code or "") for _, code in lines):
                        continue  # this architecture's code has none of it
                    row = figures_of(name, taken[mangled], lines, architecture)
                    table.setdefault(name, {})[str(architecture)] = row
    return table


def worse(budget, table):
    """Lines that say where a hot kernel takes more than its budget, or any kernel spills."""
    found = []
    for name, by in table.items():
        for architecture, row in by.items():
            if row["spills"]:
                found.append(f"{name} on sm_{architecture}: spills {row['spills']} bytes")
    for name, by in budget.items():
        for architecture, row in by.items():
            now = table.get(name, {}).get(architecture)
            where = f"{name} on sm_{architecture}"
            if not now:
                found.append(f"{where}: is gone; --update, if that is meant")
                continue
            if now["blocks"] < row["blocks"]:
                found.append(f"{where}: {now['blocks']} thread blocks at once, budget {row['blocks']}")
            unit = "products" if row.get("products") else "bytes"
            if row.get(unit) and now.get(unit):
                each, most = now["instructions"] / now[unit], row["instructions"] / row[unit]
                if each > 1.03 * most:
                    found.append(f"{where}: {each:.3g} instructions for one of its {unit}, budget {most:.3g}")
    return found


def print_registers(table, architectures, every):
    print("Registers per thread.\n")
    print("| kernel | " + " | ".join(f"sm_{a}" for a in architectures) + " | shared, bytes |")
    print("| --- |" + " ---: |" * (len(architectures) + 1))
    for name, by in sorted(table.items()):
        if every or name in HOT:
            registers = [str(by[str(a)]["registers"]) if str(a) in by else "-" for a in architectures]
            print(f"| `{name}` | " + " | ".join(registers) + f" | {max(r['shared'] for r in by.values())} |")


def print_loops(table, architectures):
    cards = [a for a in architectures if a in sass.CARDS]
    print("\nInner loops. Of each card: thread blocks at once; instructions of a warp for a product (a byte, where there are"
          "\nno products); the share of the roofline of tensor cores (of memory) without overlap of units and at best; what"
          "\nbounds.\n")
    print("| kernel | " + " | ".join(sass.CARDS[a].name for a in cards) + " |")
    print("| --- |" + " --- |" * len(cards))
    for name in HOT:
        cells = []
        for architecture in cards:
            row = table.get(name, {}).get(str(architecture), {})
            if "instructions" not in row:
                cells.append("-")
                continue
            each = row["instructions"] / max(1, row["products"] or row["bytes"])
            cells.append(f"{row['blocks']} blocks, {each:.3g}, {row['share'][0]:.2f}-{row['share'][1]:.2f}, {row['bound']}")
        print(f"| `{name}` | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", default="75,80,90")
    parser.add_argument("--all", action="store_true", help="every kernel, not only the hot ones")
    parser.add_argument("--only", default="*_cuda.cu", help="the sources to compile, of kernels/")
    parser.add_argument("--check", action="store_true", help="compare with the budgets")
    parser.add_argument("--update", action="store_true", help="write the budgets")
    parser.add_argument("--kept", action="store_true", help="print the budgets")
    options = parser.parse_args()
    architectures = [int(a) for a in options.architectures.split(",")]
    if options.kept:
        kept = json.loads(BUDGETS.read_text())["kernels"]
        print_registers(kept, architectures, False)
        print_loops(kept, architectures)
        return
    if not shutil.which("nvcc"):
        print("skipped: there is no nvcc on the PATH")
        sys.exit(SKIPPED)
    kept = json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {"nvcc": None, "kernels": {}}
    if options.check and kept["nvcc"] != nvcc_release():
        print(f"skipped: the budgets are of nvcc {kept['nvcc']}, this is {nvcc_release()}")
        sys.exit(SKIPPED)
    table = measure(architectures, sorted((ROOT / "kernels").rglob(options.only)))
    if not table:
        sys.exit(f"ptxas: no kernel in a source of kernels/ that matches {options.only}")
    spilled = [name for name, by in table.items() if any(row["spills"] for row in by.values())]
    if options.update:
        hot = {name: table.get(name) or kept["kernels"].get(name) for name in HOT}
        rows = {name: by for name, by in hot.items() if by}
        BUDGETS.write_text(json.dumps({"nvcc": nvcc_release(), "kernels": rows}, indent=1) + "\n")
    elif options.check:
        looked_at = {name: by for name, by in kept["kernels"].items() if options.only == "*_cuda.cu" or name in table}
        findings = worse(looked_at, table)
        print("\n".join(findings) or f"{len(table)} kernels, {len(architectures)} architectures: none is worse than its budget")
        sys.exit(1 if findings else 0)
    print_registers(table, architectures, options.all)
    print_loops(table, architectures)
    print(f"\n{len(table)} kernels, {len(architectures)} architectures, nvcc {nvcc_release()}, "
          + ("no spills, no warnings" if not spilled else "SPILLS in " + ", ".join(spilled)))
    sys.exit(1 if spilled else 0)


if __name__ == "__main__":
    main()
