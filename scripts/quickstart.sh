#!/usr/bin/env bash
# Sets up, builds, and lets the shipped demo model answer a few prompts while its weights, KV cache and activations lie on
# three tiers and H2O keeps a fifth of the cache.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/dev/configure.sh release -DWEFT_TESTS=OFF
cmake --build --preset release --target weft --parallel "$(nproc)"
out=build/quickstart
mkdir -p "$out"
rm -f "$out"/answers.jsonl
build/release/weft generate --model models/demo --input configs/examples/prompts.jsonl --output "$out/answers.jsonl" \
  --policy configs/policies/demo-three-tiers.json --disk-dir "$out" \
  --report "$out/report.json" --trace "$out/trace.json"
python3 - configs/examples/prompts.jsonl "$out/answers.jsonl" <<'PY'
import json, sys
prompts = {r["id"]: r["prompt"] for r in map(json.loads, open(sys.argv[1]))}
answers = {r["id"]: r["text"] for r in map(json.loads, open(sys.argv[2]))}
for number in list(prompts)[:4]:
    print(f"\n[{number}] {prompts[number]} >>>{answers[number]}")
PY
echo
echo "answers: $out/answers.jsonl"
echo "report:  $out/report.json"
echo "trace:   $out/trace.json (open it at ui.perfetto.dev)"
