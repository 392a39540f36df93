#!/usr/bin/env bash
# Configures build/PRESET for the machine at hand: configure.sh PRESET [CMAKE ARGUMENT...]. Where a GPU is visible the
# CUDA library is built for that GPU; elsewhere it is left out, because nvcc takes minutes for what no run would open.
set -euo pipefail
cd "$(dirname "$0")/../.."
cuda=(-DWEFT_CUDA=OFF)
if nvidia-smi -L >/dev/null 2>&1; then cuda=(-DWEFT_CUDA=AUTO -DWEFT_CUDA_ARCHITECTURES=native); fi
cmake --preset "$1" "${cuda[@]}" "${@:2}" >/dev/null
