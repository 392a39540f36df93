#!/usr/bin/env bash
# Sets up, builds, and makes build/weft-VERSION-linux-x86_64.tar.xz: weft, its tests, the demo model, and the libraries
# that a bare machine lacks. It runs where it is unpacked, on any x86-64 Linux with AVX2 and glibc 2.34 (and a C++
# library as new as GCC 12's; the one in the package wants glibc 2.36). For the GPU it wants a driver and cuBLAS of
# nvcc's CUDA (13, or 12 with that toolkit's nvcc on the PATH), cuBLAS from /usr/local/cuda, the system's folders, pip
# or LD_LIBRARY_PATH; without these it runs on the CPU.
#
#   tar xJf weft-*.tar.xz && cd weft-*/
#   bin/weft generate --model models/demo --input configs/examples/prompts.jsonl --output answers.jsonl
#   bin/tests/test_kernels; python3 tests/runtime/cli/cli_test.py bin/weft .   # from elsewhere WEFT_SOURCE_DIR says where
set -euo pipefail
cd "$(dirname "$0")/.."
most_bytes=30000000
scripts/setup.sh

build=build/package
flags=(-DWEFT_PACKAGE=ON "-DCMAKE_CXX_FLAGS=-ffile-prefix-map=$PWD/=")
if command -v nvcc >/dev/null; then
  cuda=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  # Where cuBLAS may be if the system does not know: NVIDIA's packages, containers' mounts, pip's for the whole machine.
  folders=(/usr/local/cuda/lib64 "/usr/local/cuda-$cuda/lib64" /usr/local/nvidia/lib64
           /usr/local/lib/python3.{10..14}/{dist,site}-packages/nvidia/{"cu$cuda",cublas}/lib)  # cublas: of CUDA 12
  flags+=(-DWEFT_CUDA=ON "-DCMAKE_INSTALL_RPATH=$(IFS=';'; echo "${folders[*]}")")
else
  echo "package: there is no nvcc, so this package is for the CPU alone"
  flags+=(-DWEFT_CUDA=OFF)
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${flags[@]}" >/dev/null
cmake --build "$build" --target packaged

name=weft-$("$build/weft" --version | cut -d' ' -f2)-linux-x86_64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=$work/$name
cmake --install "$build" --prefix "$package" --strip >/dev/null
mkdir -p "$package"/{lib/gcc,models,scripts/compare,tests/support}
cp -r configs docs CHANGELOG.md LICENSE "$package"
cp -r models/demo "$package/models"
cp -r tests/data "$package/tests"
cp tests/support/*.py "$package/tests/support"
for test in tests/runtime/*/*.py; do install -D "$test" "$package/$test"; done
cp -r scripts/{gpu_check.sh,cluster,evaluate,get_model.sh,get_model.py} "$package/scripts"
cp scripts/compare/{lm_eval,race_gpu,generation_loop,run_accelerate,run_deepspeed,run_flexgen,run_kvpress}.py \
  scripts/compare/tiny-opt.json "$package/scripts/compare"
scripts/dev/package_readme.py "$package"

# Every library that a program here names or that those name, without glibc's and CUDA's.
elsewhere='^(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread)|lib(cuda|cudart|cublas|cublasLt))\.so'
find "$package"/{bin,lib} -type f -exec ldd {} + | awk '$2 == "=>" { print $1, $3 }' | sort -u |
  while read -r library path; do
    if [[ $library =~ $elsewhere ]]; then continue; fi
    if [ "$path" = not ]; then echo "package: $library was not found" >&2; exit 1; fi
    case $library in
      libstdc++.so.* | libgcc_s.so.*) cp "$path" "$package/lib/gcc/$library" ;;  # for systems that have none
      *) cp "$path" "$package/lib/$library" ;;
    esac
    file=$(readlink -f "$path")
    owner=$(dpkg -S "*${file#/usr}" | head -1 | cut -d: -f1)
    cp "/usr/share/doc/$owner/copyright" "$package/lib/$library.copyright"
  done
newest_glibc() {  # FOLDER...: that any program or library in it wants
  find "$@" -maxdepth 1 -type f ! -name '*.copyright' -exec objdump -T {} + |
    grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -1
}
own=$(newest_glibc "$package"/{bin,bin/tests,lib}) gcc=$(newest_glibc "$package/lib/gcc")

out=build/$name.tar.xz
tar --sort=name --owner=0 --group=0 --numeric-owner -C "$work" -c "$name" | xz -9 -T0 >"$out"
bytes=$(stat -c %s "$out")
echo "package: $out, $bytes bytes; wants $own, and $gcc where the system has no C++ library"
if [ "$bytes" -gt "$most_bytes" ]; then echo "package: more than $most_bytes bytes" >&2; exit 1; fi

# As on another machine: unpacked in another folder, started from a third one, with nothing in the environment.
mkdir "$work/elsewhere"
tar xJf "$out" -C "$work/elsewhere"
there=$work/elsewhere/$name
bare() { (cd / && env -i PATH=/usr/bin:/bin WEFT_SOURCE_DIR="$there" "$@"); }
strangers=$(find "$there/bin" -type f -exec env -i /usr/bin/ldd {} + | awk '$2 == "=>" { print $1, $3 }' |
  grep -vE "$elsewhere|^lib(stdc\+\+|gcc_s)\.so| $there/.*/lib/" || true)
if [ -n "$strangers" ]; then echo "package: not from the package: $strangers" >&2; exit 1; fi
bare "$there/bin/weft" --version
bare "$there/bin/weft" generate --model "$there/models/demo" --input "$there/configs/examples/prompts.jsonl" \
  --output "$work/answers.jsonl" --policy "$there/configs/policies/demo-three-tiers.json" --disk-dir "$work" \
  --backend cpu --quiet
bare "$there/scripts/gpu_check.sh" --dry-run --out "$work/gpu_check" >/dev/null
for tests in kernels offload policy runtime; do bare "$there/bin/tests/test_$tests"; done
