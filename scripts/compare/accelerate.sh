#!/usr/bin/env bash
# Weft against its peers on a CPU, the layers on disk: the OPT-1.3B shape, each program inside one memory limit (a cgroup,
# which counts the page cache too). Installs torch, transformers and accelerate from PyPI into build/venv. Needs root for
# the cgroup, 12 GB of disk and a machine that does nothing else. The flags are those of race.py.
#   scripts/compare/accelerate.sh [--peers weft-h2o-int4,accelerate] [--workloads 512+512] [--minutes 9]
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/setup.sh
cmake --preset release >/dev/null && cmake --build --preset release --target weft
venv=build/venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import torch, transformers, accelerate' 2>/dev/null ||
  "$venv/bin/pip" install --quiet torch transformers accelerate safetensors numpy
exec "$venv/bin/python" scripts/compare/race.py "$@"
