#!/usr/bin/env bash
# Runs clang-tidy over the sources of the floors, or over those that are named: scripts/dev/tidy.sh policy/planner/cost.cc. Prints every
# finding; fails if there is one. Needs clang-tidy 14 (Debian 12's: apt-get install clang-tidy).
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/setup.sh
tidy=$(command -v clang-tidy-14 || command -v clang-tidy) ||
  { echo "tidy: clang-tidy is not there; install it (apt-get install clang-tidy)" >&2; exit 1; }
cmake -S . -B build/tidy -G Ninja -DCMAKE_BUILD_TYPE=Debug -DWEFT_CUDA=OFF -DWEFT_TESTS=OFF -DCMAKE_CXX_COMPILER=clang++ -DWEFT_UNITY=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
sources=("$@")
[ $# -gt 0 ] || mapfile -t sources < <(git ls-files 'kernels/*.cc' 'offload/*.cc' 'policy/*.cc' 'runtime/*.cc' ':!kernels/*_cuda.cc')
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 4 "$tidy" -p build/tidy --quiet 2> >(grep -v 'warnings generated\|Suppressed\|Use -header' >&2)
echo "tidy: ${#sources[@]} sources, no finding"
