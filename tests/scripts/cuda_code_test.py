#!/usr/bin/env python3
"""That the CUDA library holds machine code for each generation of GPUs, so that few wait for a compiler at their first
start, and PTX of one that they all have at least, for those in between and those to come.

Usage: cuda_code_test.py LIBWEFT_CUDA ARCHITECTURES   (CMake's list; nothing is tested where the user chose it)
"""
import pathlib
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)  # of a container of code for several architectures
PTX, CODE = 1, 2

library, chosen = pathlib.Path(sys.argv[1]), sys.argv[2:]
if chosen:
    print("skipped: the architectures were chosen")
    sys.exit(77)

found = {PTX: set(), CODE: set()}
data = library.read_bytes()
at = data.find(MAGIC)
while at >= 0:
    header, size = struct.unpack_from("<HQ", data, at + 6)
    entry, end = at + header, at + header + size
    while entry < end:
        kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, entry)
        architecture, = struct.unpack_from("<I", data, entry + 28)
        found.setdefault(kind, set()).add(architecture)
        entry += entry_header + entry_size
    at = data.find(MAGIC, end)
print(f"machine code: {sorted(found[CODE])}, PTX: {sorted(found[PTX])}")
missing = {75, 80, 90} - found[CODE]
if missing:
    sys.exit(f"{library}: no machine code for {sorted(missing)}")
if len(found[PTX]) != 1 or not found[PTX] <= found[CODE]:
    sys.exit(f"{library}: wanted PTX of one of these alone, got {sorted(found[PTX])}")
