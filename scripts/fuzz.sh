#!/usr/bin/env bash
# Runs every fuzz target of tests/fuzz for a while (SECONDS_EACH, 60 by default) under AddressSanitizer and
# UndefinedBehaviorSanitizer, two at a time. Wants clang; ends with an error if any of them finds something.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
command -v clang++ >/dev/null || { echo "fuzz: clang++ is not there; install it (apt-get install clang libclang-rt-14-dev)" >&2; exit 1; }
cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEFT_FUZZ=ON -DWEFT_TESTS=OFF \
  -DWEFT_CUDA=OFF '-DWEFT_SANITIZE=address;undefined' >/dev/null
cmake --build build/fuzz
run() {
  local target=$1 name
  name=$(basename "$target")
  mkdir -p "build/fuzz/corpus/$name"
  local seeds=()
  case $name in
    fuzz_torch_bin) seeds=(tests/data/torch_bin/cases) ;;
    fuzz_safetensors) seeds=(tests/data/checkpoint) ;;
    fuzz_config) seeds=(configs/models) ;;
    fuzz_policy) seeds=(configs/policies configs/machines) ;;
    fuzz_requests) seeds=(configs/examples) ;;
  esac
  if "$target" -max_total_time="${SECONDS_EACH:-60}" -timeout=10 -rss_limit_mb=2048 -max_len=8192 -print_final_stats=1 \
      -artifact_prefix="build/fuzz/$name-" "build/fuzz/corpus/$name" "${seeds[@]}" >"build/fuzz/$name.log" 2>&1; then
    echo "$name: $(grep -o 'number_of_executed_units: *[0-9]*' "build/fuzz/$name.log" | grep -o '[0-9]*$') runs, no finding"
  else
    echo "$name: FOUND SOMETHING, see build/fuzz/$name.log" >&2
    return 1
  fi
}
export -f run
printf '%s\n' build/fuzz/fuzz_* | grep -v '\.' | xargs -P 2 -I{} bash -c 'run {}'
