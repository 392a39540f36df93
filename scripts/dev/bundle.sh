# What scripts/package.sh and scripts/wheel.sh share, to be sourced: the libraries that a bare machine lacks.

# What every machine has, and what comes with a GPU's driver or CUDA.
elsewhere='^(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread)|lib(cuda|cudart|cublas|cublasLt))\.so'

# bundle_libraries FOLDER NAME: every library that a program in FOLDER/bin or FOLDER/lib names, or that those name, into
# FOLDER/lib with its copyright; the C++ library, for systems that have none, into FOLDER/lib/gcc.
bundle_libraries() {
  local folder=$1 name=$2 library path file owner
  mkdir -p "$folder/lib/gcc"
  find "$folder"/{bin,lib} -type f -exec ldd {} + | awk '$2 == "=>" { print $1, $3 }' | sort -u |
    while read -r library path; do
      if [[ $library =~ $elsewhere ]]; then continue; fi
      if [ "$path" = not ]; then echo "$name: $library was not found" >&2; exit 1; fi
      case $library in
        libstdc++.so.* | libgcc_s.so.*) cp "$path" "$folder/lib/gcc/$library" ;;
        *) cp "$path" "$folder/lib/$library" ;;
      esac
      file=$(readlink -f "$path")
      owner=$(dpkg -S "*${file#/usr}" | head -1 | cut -d: -f1)
      cp "/usr/share/doc/$owner/copyright" "$folder/lib/$library.copyright"
    done
}

# newest_glibc FOLDER...: that any program or library in it wants, such as GLIBC_2.34.
newest_glibc() {
  find "$@" -maxdepth 1 -type f ! -name '*.copyright' -exec objdump -T {} + |
    grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -1
}

# require_no_empty_path FOLDER NAME: what is empty between two colons of a path is the folder in which a program is started.
require_no_empty_path() {
  local empty
  empty=$(find "$1"/{bin,lib} -type f ! -name '*.copyright' -exec sh -c 'readelf -W -d "$1" 2>/dev/null |
    grep -qE "\((RUN|R)PATH\).*\[(:|.*::|.*:\])" && echo "$1"' sh {} \;)
  if [ -n "$empty" ]; then echo "$2: an empty entry in the library path of $empty" >&2; exit 1; fi
}
