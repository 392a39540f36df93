#!/usr/bin/env bash
# Sets up, builds and runs all tests. PRESET=asan or tsan runs them under sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${PRESET:-release}
scripts/setup.sh
cmake --preset "$preset" -DWEFT_TESTS=ON >/dev/null
cmake --build --preset "$preset"
ctest --preset "$preset" "$@"
