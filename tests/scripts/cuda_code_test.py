#!/usr/bin/env python3
"""That the CUDA library holds machine code for the GPUs that there are, so that none waits for a compiler at its first
start, and PTX of the newest alone, for GPUs to come.

Usage: cuda_code_test.py LIBWEFT_CUDA ARCHITECTURES   (CMake's list; nothing is tested where the user chose it)
"""
import re
import shutil
import subprocess
import sys

library, chosen = sys.argv[1], sys.argv[2:]
tool = shutil.which("cuobjdump") or shutil.which("cuobjdump", path="/usr/local/cuda/bin")
if chosen or not tool:
    print("skipped: the architectures were chosen" if chosen else "skipped: no cuobjdump")
    sys.exit(77)


def listed(kind):
    text = subprocess.run([tool, f"--list-{kind}", library], capture_output=True, text=True, check=True).stdout
    return {int(number) for number in re.findall(r"sm_(\d+)", text)}


code, ptx = listed("elf"), listed("ptx")
print(f"machine code: {sorted(code)}, PTX: {sorted(ptx)}")
missing = {75, 80, 86, 89, 90} - code
if missing:
    sys.exit(f"{library}: no machine code for {sorted(missing)}")
if ptx != {max(code)}:
    sys.exit(f"{library}: wanted PTX of the newest, {max(code)}, alone, got {sorted(ptx)}")
