#!/usr/bin/env bash
# Runs every fuzz target of tests/fuzz for a while (SECONDS_EACH, 60 by default) under AddressSanitizer and
# UndefinedBehaviorSanitizer, two at a time, or those that are named: scripts/dev/fuzz.sh requests json. Needs clang. Ends with an
# error if any of them finds something; what it found lies in build/fuzz/findings, what it learnt in build/fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/setup.sh
command -v clang++ >/dev/null || { echo "fuzz: clang++ is not there; install it (apt-get install clang libclang-rt-14-dev)" >&2; exit 1; }
targets=("$@")
[ $# -gt 0 ] || for source in tests/fuzz/*_fuzz.cc; do
  source=${source##*/}
  targets+=("${source%_fuzz.cc}")
done
cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEFT_FUZZ=ON -DWEFT_TESTS=OFF \
  -DWEFT_CUDA=OFF '-DWEFT_SANITIZE=address;undefined' >/dev/null
cmake --build build/fuzz --target weft "${targets[@]/#/fuzz_}"
scripts/fixtures/make_fuzz_seeds.py build/fuzz/weft build/fuzz/seeds
mkdir -p build/fuzz/findings
run() {
  local name=$1 longest=8192 seeds=()
  mkdir -p "build/fuzz/corpus/$name"
  case $name in
    torch_bin) seeds=(tests/data/torch_bin/cases) ;;
    safetensors) seeds=(tests/data/checkpoint/cases) ;;
    config) seeds=(configs/models build/fuzz/seeds/config) ;;
    quantised) seeds=(build/fuzz/seeds/quantised) ;;
    policy) seeds=(configs/policies configs/machines build/fuzz/seeds/policy) ;;
    results | run_record) seeds=("build/fuzz/seeds/$name") ;;
    snapshot | packed) seeds=("build/fuzz/seeds/$name") longest=65536 ;;
    json) seeds=(configs) ;;
    requests) seeds=(configs/examples) ;;
    gguf) seeds=(build/fuzz/seeds/gguf) longest=65536 ;;
    template) seeds=(tests/data/template) ;;
    gpt2_files) seeds=(tests/data/tokenizer/added) ;;
    sentencepiece) seeds=(build/fuzz/seeds/sentencepiece) longest=65536 ;;
    tokenizer) seeds=(tests/data/tokenizer/{neox,llama2,llama3,mistral,qwen2}) longest=65536 ;;
  esac
  if "build/fuzz/tests/fuzz/fuzz_$name" -max_total_time="${SECONDS_EACH:-60}" -timeout=10 -rss_limit_mb=2048 -max_len="$longest" \
      -print_final_stats=1 -artifact_prefix="build/fuzz/findings/$name-" "build/fuzz/corpus/$name" "${seeds[@]}" \
      >"build/fuzz/$name.log" 2>&1; then
    echo "$name: $(sed -n 's/.*number_of_executed_units: *//p' "build/fuzz/$name.log") runs, no finding"
  else
    echo "$name: FOUND SOMETHING, see build/fuzz/$name.log" >&2
    return 1
  fi
}
export -f run
printf '%s\n' "${targets[@]}" | xargs -P 2 -I{} bash -c 'run {}'
