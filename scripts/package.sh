#!/usr/bin/env bash
# Sets up, builds, and makes two archives, build/weft-VERSION-linux-x86_64.tar.xz and the same with -tests. The first
# holds weft, the demo model, the documents, the libraries that a bare machine lacks, and what scripts/gpu_check.sh
# wants on a machine with a GPU, but for test_runtime_cuda; the second, unpacked into the same folder, all tests and
# their data. It runs where it is unpacked, on any x86-64 Linux with AVX2 and glibc 2.34 (and a C++ library as new as
# GCC 12's; the one in the package wants glibc 2.36). For the GPU it wants a driver and cuBLAS of nvcc's CUDA (13, or 12
# with that toolkit's nvcc on the PATH); without these it runs on the CPU. docs/gpu.md has where it looks for cuBLAS.
#
#   scripts/package.sh [--arch 90[,80...]]
#
#   --arch LIST   machine code for these GPUs alone, which takes nvcc a fraction of the time; the name says for which. So
#                 that the first archive stays small, the demo model is in the second
#
#   tar xJf weft-*-x86_64.tar.xz && cd weft-*/
#   bin/weft generate --model models/demo --input configs/examples/prompts.jsonl --output answers.jsonl
#   tar xJf ../weft-*-tests.tar.xz --strip-components=1
#   bin/tests/test_kernels; python3 tests/runtime/cli/cli_test.py bin/weft .   # from elsewhere WEFT_SOURCE_DIR says where
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/dev/bundle.sh
arch=""
while [ $# -gt 0 ]; do
  case $1 in
    --arch) arch=${2:-}; shift ;;
    --help | -h) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "package: unknown flag '$1'; see --help" >&2; exit 2 ;;
  esac
  shift
  if ! [[ $arch =~ ^[0-9]+(,[0-9]+)*$ ]]; then
    echo "package: --arch wants compute capabilities without the dot, such as 90 or 80,90, got '$arch'" >&2
    exit 2
  fi
done
have_nvcc=$(command -v nvcc || true)
if [ -n "$arch" ] && [ -z "$have_nvcc" ]; then
  echo "package: --arch wants nvcc on the PATH; without it a package is for the CPU alone" >&2
  exit 2
fi
scripts/setup.sh --tests

build=build/package${arch:+-sm${arch//,/-sm}}
flags=(-DWEFT_PACKAGE=ON "-DCMAKE_CXX_FLAGS=-ffile-prefix-map=$PWD/=")
if [ -n "$have_nvcc" ]; then
  flags+=(-DWEFT_CUDA=ON "-DWEFT_CUDA_ARCHITECTURES=$(sed -E 's/([0-9]+)/\1-real/g; s/,/;/g' <<<"$arch")")
else
  echo "package: there is no nvcc, so this package is for the CPU alone"
  flags+=(-DWEFT_CUDA=OFF)
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${flags[@]}" >/dev/null
cmake --build "$build" --target packaged

name=weft-$("$build/weft" --version | cut -d' ' -f2)-linux-x86_64${arch:+-sm${arch//,/-sm}}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=$work/$name
cmake --install "$build" --prefix "$package" --strip >/dev/null
mkdir -p "$package"/{lib,models,scripts/{bench,compare},tests/support}
cp -r configs docs CHANGELOG.md LICENSE "$package"
[ ! -f build/xgrammar/LICENSE ] || cat build/xgrammar/{LICENSE,NOTICE} >"$package/LICENSE.xgrammar"
cp -r models/demo "$package/models"
cp -r tests/data "$package/tests"
cp tests/support/*.py "$package/tests/support"
for test in tests/runtime/*/*.py; do install -D "$test" "$package/$test"; done
cp -r scripts/{gpu_check.sh,cluster,evaluate,python,get_model.sh,get_model.py} "$package/scripts"
cp scripts/compare/{lm_eval,race_gpu,generation_loop,run_accelerate,run_deepspeed,run_flexgen,run_kvpress,run_quantised_cache}.py \
  scripts/compare/tiny-opt.json "$package/scripts/compare"
cp scripts/bench/{link_bytes,measured_machine,projection,weft_plan}.py "$package/scripts/bench"
scripts/dev/package_readme.py "$package"
find "$package" -name __pycache__ -exec rm -r {} +

bundle_libraries "$package" package
own=$(newest_glibc "$package"/{bin,bin/tests,lib}) gcc=$(newest_glibc "$package/lib/gcc")
require_no_empty_path "$package" package

# A GPU's tests and their data are few; the others are larger than all the rest, and so is the demo model.
for_gpu='bin/tests/(gpu_probe|test_kernels_cuda)|tests/data/(h2o|kv)/.*'
(cd "$work" && find "$name"/{bin/tests,tests} ${arch:+"$name/models"} -type f | grep -vE "^$name/($for_gpu)\$" | sort >tests.list
 find "$name" -type f | grep -vxFf tests.list | sort >program.list)
archive() {  # LIST SUFFIX
  local file=build/$name$2.tar.xz
  tar --owner=0 --group=0 --numeric-owner -C "$work" -c -T "$work/$1.list" | xz -9 -T0 >"$file"
  echo "package: $file, $(stat -c %s "$file") bytes"
}
archive program ""
archive tests -tests
echo "package: wants $own, and $gcc where the system has no C++ library"

# As on another machine: unpacked in another folder, started from a third one, with nothing in the environment.
mkdir "$work/elsewhere"
there=$work/elsewhere/$name
bare() { (cd / && env -i PATH=/usr/bin:/bin WEFT_SOURCE_DIR="$there" "$@"); }
tar xJf "build/$name.tar.xz" -C "$work/elsewhere"
strangers=$(find "$there/bin" -type f -exec env -i /usr/bin/ldd {} + | awk '$2 == "=>" { print $1, $3 }' |
  grep -vE "$elsewhere|^lib(stdc\+\+|gcc_s)\.so| $there/.*/lib/" || true)
if [ -n "$strangers" ]; then echo "package: not from the package: $strangers" >&2; exit 1; fi
bare "$there/bin/weft" --version
tar xJf "build/$name-tests.tar.xz" -C "$work/elsewhere"
bare "$there/bin/weft" generate --model "$there/models/demo" --input "$there/configs/examples/prompts.jsonl" \
  --output "$work/answers.jsonl" --policy "$there/configs/policies/demo-three-tiers.json" --disk-dir "$work" \
  --backend cpu --quiet
bare "$there/scripts/gpu_check.sh" --dry-run --out "$work/gpu_check" >/dev/null
for tests in kernels offload policy runtime; do bare "$there/bin/tests/test_$tests"; done
echo "package: build/$name.tar.xz and its tests run in another folder"
