#!/usr/bin/env python3
"""What the kernels take of a GPU: registers, static shared memory and spills per kernel and architecture, as a table.

Compiles every kernels/*_cuda.cu with nvcc for each architecture; warnings and spills end it with an error. Needs no GPU.

Usage: ptxas.py [--architectures 75,80,86,89,90,newest] [--all] > table.md
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = ["-std=c++20", "--expt-relaxed-constexpr", "-O3", f"-I{ROOT}", "-Xcompiler=-Wall,-Wextra", "-Xptxas=-v"]
# What a sweep spends its time in, in fp16 with heads of 64 and 128; --all shows the rest too.
HOT = re.compile(r"decode_\w+<Team<half, 8, (8|16), 1>|(decode_choice|prefill_tensor|column_sums_tensor)<half>|"
                 r"(keep_prompt|layer_norm|round_rows)<half, 8>|finish_rows<half, false, 8>|sample_rows|carry")
SHORT = [(r"weft::kernels::(cuda::decode::)?", ""), (r"\(anonymous namespace\)::", ""), (r"__nv_bfloat16", "bf16"),
         (r"__half", "half"),
         (r"\(int\)", ""), (r"\(bool\)", ""), (r"^void ", ""), (r"\(.*\)$", "")]


def newest():
    listed = subprocess.run(["nvcc", "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    return max(int(code) for code in re.findall(r"sm_(\d+)$", listed, re.M))


def compile_one(source, architecture, folder):
    command = ["nvcc", *FLAGS, f"-arch=sm_{architecture}", "-cubin", str(source), "-o", f"{folder}/{source.stem}.cubin"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 or "warning" in done.stderr:
        sys.exit(f"{source.name} for sm_{architecture}: nvcc says:\n{done.stderr}")
    return done.stderr


def kernels_in(log):
    """Demangled name -> (registers, static shared bytes, spilled bytes)."""
    entries = re.findall(r"Compiling entry function '(\w+)'.*?\n(.*?)Used (\d+) registers(.*?)\n", log, re.S)
    names = subprocess.run(["c++filt"], input="\n".join(e[0] for e in entries), capture_output=True, text=True).stdout
    found = {}
    for name, (_, between, registers, rest) in zip(names.splitlines(), entries):
        for pattern, text in SHORT:
            name = re.sub(pattern, text, name)
        shared = re.search(r"(\d+) bytes smem", rest)
        spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", between))
        found[name] = (int(registers), int(shared.group(1)) if shared else 0, spills)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architectures", default="75,80,86,89,90,newest")
    parser.add_argument("--all", action="store_true", help="every kernel, not only the hot ones")
    options = parser.parse_args()
    architectures = [newest() if a == "newest" else int(a) for a in options.architectures.split(",")]
    table = {}
    with tempfile.TemporaryDirectory() as folder:
        for architecture in architectures:
            for source in sorted((ROOT / "kernels").glob("*_cuda.cu")):
                for name, figures in kernels_in(compile_one(source, architecture, folder)).items():
                    table.setdefault(name, {})[architecture] = figures
    spilled = [name for name, by in table.items() if any(f[2] for f in by.values())]
    print("Registers per thread.\n")
    print("| kernel | " + " | ".join(f"sm_{a}" for a in architectures) + " | shared, bytes |")
    print("| --- |" + " ---: |" * (len(architectures) + 1))
    for name, by in sorted(table.items()):
        if not options.all and not HOT.match(name):
            continue
        shared = max(f[1] for f in by.values())
        print(f"| `{name}` | " + " | ".join(str(by[a][0]) if a in by else "-" for a in architectures) + f" | {shared} |")
    print(f"\n{len(table)} kernels, {len(architectures)} architectures, "
          + ("no spills, no warnings" if not spilled else "SPILLS in " + ", ".join(spilled)))
    sys.exit(1 if spilled else 0)


if __name__ == "__main__":
    main()
