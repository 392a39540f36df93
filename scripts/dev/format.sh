#!/usr/bin/env bash
# Formats the C++ sources by .clang-format; with --check only says which differ, and fails if any does.
# Needs clang-format 14 (Debian 12's: apt-get install clang-format); other versions break lines differently.
set -euo pipefail
cd "$(dirname "$0")/../.."
mode=(-i)
[[ "${1:-}" == --check ]] && mode=(--dry-run --Werror)
find kernels offload policy runtime tests \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 clang-format-14 "${mode[@]}"
