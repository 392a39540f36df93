#!/usr/bin/env bash
# Installs what the program needs to be built on Debian 12 (or Ubuntu 22.04 and later); with --grammar the sources of
# xgrammar too, for answers of a given form (from PyPI, in build/xgrammar); with --tests those and what the tests need.
# Safe to run again.
set -euo pipefail

packages=(g++ cmake ninja-build ccache pkg-config python3 liburing-dev libcli11-dev libspdlog-dev nlohmann-json3-dev
          coinor-libclp-dev libutf8proc-dev zlib1g-dev libzstd-dev libcpp-httplib-dev)
[ "${1:-}" = --grammar ] && packages+=(ca-certificates python3-venv)
[ "${1:-}" = --tests ] && packages+=(ca-certificates catch2 git python3-venv strace xz-utils)
grammar() {  # a build without it only refuses such requests, so no network is no failure of --tests
  case "${1:-}" in
    --grammar) "$(dirname "$0")/get_xgrammar.sh" ;;
    --tests) "$(dirname "$0")/get_xgrammar.sh" || echo "setup: xgrammar is not there; its tests are skipped" >&2 ;;
  esac
}
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  grammar "$@"
  exit 0
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: not root and no sudo; install by hand: ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${sudo[@]}" apt-get update -qq
# What it will take: "Need to get 120 MB ...", "After this operation, 500 MB ...".
LC_ALL=C apt-get install --assume-no --no-install-recommends "${missing[@]}" 2>/dev/null |
  sed -n 's/^\(Need to get\|After this operation\)/setup: &/p' || true
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
grammar "$@"
