#!/usr/bin/env bash
# Sets up, builds and runs tests: the default tier, or with --fast the one of half a minute, with --exhaustive all there
# are, with --part K of 0 to 6 the default tier and a seventh of the exhaustive one. What follows goes to ctest, as in
# scripts/test.sh -R budgets. PRESET=asan or tsan runs them under sanitizers.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${PRESET:-release}
scripts/setup.sh --tests
scripts/dev/configure.sh "$preset" -DWEFT_TESTS=ON
cmake --build --preset "$preset" --parallel "$(nproc)"
exec scripts/dev/run_tests.py --preset "$preset" "$@"
