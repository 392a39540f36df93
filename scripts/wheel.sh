#!/usr/bin/env bash
# Makes a wheel of the Python package in scripts/python with the program in it, build/wheel/weft_batch-*.whl. Its tag is the
# newest glibc that anything in it wants, such as manylinux_2_36 on Debian 12: pip refuses it where glibc is older.
#
#   scripts/wheel.sh [--cuda | --cuda-library FILE]
#
#   --cuda               with the library for GPUs, which nvcc takes minutes for; for all GPUs from Turing on
#   --cuda-library FILE  with a libweft_cuda.so that is built already
#
# Without either the wheel is for the CPU alone. The script ends by installing the wheel in an empty environment, in which
# the README's example runs. docs/python.md has how to use it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/dev/bundle.sh
cuda=OFF library=
while [ $# -gt 0 ]; do
  case $1 in
    --cuda) cuda=ON ;;
    --cuda-library) library=${2:-}; [ -f "$library" ] || { echo "wheel: --cuda-library wants a file, got '$library'" >&2; exit 2; }; shift ;;
    --help | -h) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "wheel: unknown flag '$1'; see --help" >&2; exit 2 ;;
  esac
  shift
done
if [ $cuda = ON ] && ! command -v nvcc >/dev/null; then
  echo "wheel: --cuda wants nvcc on the PATH" >&2
  exit 2
fi
scripts/setup.sh --grammar

build=build/wheel/program-$cuda
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DWEFT_PACKAGE=ON -DWEFT_TESTS=OFF -DWEFT_CUDA=$cuda \
  "-DCMAKE_CXX_FLAGS=-ffile-prefix-map=$PWD/=" >/dev/null
cmake --build "$build" --target packaged

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r scripts/python "$work/source"
find "$work" -name __pycache__ -exec rm -r {} +
inside=$work/source/weft
cmake --install "$build" --prefix "$inside" --strip >/dev/null
mkdir -p "$inside/lib"
[ -z "$library" ] || cp "$library" "$inside/lib/libweft_cuda.so"
bundle_libraries "$inside" wheel
require_no_empty_path "$inside" wheel
cp LICENSE "$work/source"
[ ! -f build/xgrammar/LICENSE ] || cat build/xgrammar/{LICENSE,NOTICE} >"$work/source/LICENSE.xgrammar"
sed -i 's/^\[project.scripts\]$/&\nweft = "weft.program:main"/' "$work/source/pyproject.toml"  # a command that has a program
glibc=$(newest_glibc "$inside"/{bin,lib,lib/gcc})
platform=manylinux_$(sed 's/GLIBC_//; s/\./_/' <<<"$glibc")_$(uname -m)

[ -x build/wheel/tools/bin/pip ] || python3 -m venv build/wheel/tools
build/wheel/tools/bin/pip install -q 'setuptools>=70.1'
rm -f build/wheel/*.whl
WEFT_WHEEL_PLATFORM=$platform build/wheel/tools/bin/pip wheel -q --no-deps --no-build-isolation -w build/wheel "$work/source"
wheel=$(echo build/wheel/*.whl)

# As on another machine: in an empty environment, with nothing around it.
python3 -m venv "$work/empty"
"$work/empty/bin/pip" install -q --no-index "$wheel"
bare() { (cd "$work" && env -i PATH=/usr/bin:/bin "$@"); }
strangers=$(env -i /usr/bin/ldd "$work"/empty/lib/python*/site-packages/weft/bin/weft | awk '$2 == "=>" { print $1, $3 }' |
  grep -vE "$elsewhere|^lib(stdc\+\+|gcc_s)\.so| $work/empty/" || true)
if [ -n "$strangers" ]; then echo "wheel: not from the wheel: $strangers" >&2; exit 1; fi
bare "$work/empty/bin/weft" generate --model "$PWD/models/demo" --input "$PWD/configs/examples/prompts.jsonl" \
  --output "$work/answers.jsonl" --quiet
bare "$work/empty/bin/python" -c 'import sys, weft
answers = weft.generate(["The sea"], model=sys.argv[1], max_tokens=8, to="list")
assert len(answers) == 1 and len(open(sys.argv[2]).readlines()) == 12' "$PWD/models/demo" "$work/answers.jsonl"
echo "wheel: $wheel, $(stat -c %s "$wheel") bytes, wants $glibc; it runs in an empty environment"
