#!/usr/bin/env bash
# Weft against Hugging Face Accelerate with its layers on disk: the OPT-1.3B shape, both inside one memory limit (a cgroup,
# which counts the page cache too). Installs torch, transformers and accelerate from PyPI into build/venv. Needs root for
# the cgroup, 12 GB of disk and a machine that does nothing else.
#   scripts/compare/accelerate.sh [--prompt-len 512] [--gen-len 128] [--memory-mib 2048] [--batches 4,8] [--sweeps 0]
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/setup.sh
cmake --preset release >/dev/null && cmake --build --preset release --target weft
venv=build/venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import torch, transformers, accelerate' 2>/dev/null ||
  "$venv/bin/pip" install --quiet torch transformers accelerate safetensors numpy
exec "$venv/bin/python" scripts/compare/race.py "$@"
