#!/usr/bin/env python3
"""That nvcc, ptxas and the toolkit's own headers make the CUDA library, with machine code for each generation of GPUs.

Usage: cuda_library_test.py SOURCE_FOLDER BUILD_FOLDER   (takes minutes; skipped without nvcc)
"""
import os
import pathlib
import shutil
import subprocess
import sys

source, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve() / "cuda_library"
if not (shutil.which("nvcc") or os.path.exists("/usr/local/cuda/bin/nvcc")):
    print("skipped: nvcc is not installed")
    sys.exit(77)
subprocess.run(["cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DWEFT_CUDA=ON",
                "-DWEFT_TESTS=OFF"], check=True, stdout=subprocess.DEVNULL)
subprocess.run(["cmake", "--build", build, "--target", "weft_cuda"], check=True)
sys.exit(subprocess.run([sys.executable, pathlib.Path(__file__).with_name("cuda_code_test.py"),
                         build / "libweft_cuda.so"], check=False).returncode)
