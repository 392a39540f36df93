#!/usr/bin/env bash
# Puts the sources of xgrammar's C++ core into build/xgrammar, from PyPI. With them CMake builds what answers of a given
# form need (docs/requests.md). Safe to run again; nothing is compiled here.
#   scripts/get_xgrammar.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.2.8
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
folder=${1:-build/xgrammar}
mended="$version, mended 1"  # the number of what mend() does
[ "$(cat "$folder/VERSION" 2>/dev/null)" = "$mended" ] && exit 0

# Two automata of 0.2.8 take texts that their regular expressions do not: (xy+)? takes "y", as it goes to an end that has a
# loop, and (yz*|x){2,} takes "xxz", as it goes on at the end of another branch.
mend() {
  # A start of its own that is an end too.
  sed -i '/::Optional() const {/,/^}/ s/fsm.AddEpsilonEdge(start_, .*;/std::vector<int32_t> ends = ends_;\
    ends.push_back(fsm.AddState());\
    fsm.AddEpsilonEdge(ends.back(), start_);\
    return FSMWithStartEnd(fsm, ends.back(), ends);/' "$1/cpp/fsm.cc"
  # The last copy repeats itself.
  sed -i '/Handling {n,}/,/allow_zero_repetitions(&result)/ {
    /No end state found/,$ s/{result, child}/{result, child.Plus()}/
    /AddEpsilonEdge(end, end_state/ s/.*/;/
  }' "$1/cpp/fsm_builder.cc"
  [ "$(grep -c 'fsm.AddEpsilonEdge(ends.back(), start_)' "$1/cpp/fsm.cc")" = 1 ] &&
    [ "$(grep -c '{result, child.Plus()}' "$1/cpp/fsm_builder.cc")" = 1 ] &&
    ! grep -q 'AddEpsilonEdge(end, end_state' "$1/cpp/fsm_builder.cc"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || { echo "get_xgrammar: needs python3-venv (scripts/setup.sh --grammar installs it)" >&2; exit 1; }
# What pip asks a package's own build for, before it hands over the archive: its name and version.
"$work/venv/bin/pip" -q install scikit-build-core setuptools_scm
"$work/venv/bin/pip" -q download --no-deps --no-binary :all: --no-build-isolation -d "$work" "xgrammar==$version"
archive=$work/xgrammar-$version.tar.gz
found=$(sha256sum "$archive" | cut -d' ' -f1)
[ "$found" = "$sha256" ] ||
  { echo "get_xgrammar: the archive of xgrammar $version has sha256 $found, wanted $sha256; nothing is taken from it" >&2; exit 1; }
tar -xzf "$archive" -C "$work" --no-same-owner "xgrammar-$version"/{LICENSE,NOTICE,cpp,include,3rdparty/picojson,3rdparty/dlpack/include}
mend "$work/xgrammar-$version" || { echo "get_xgrammar: xgrammar $version is not as it was when this was written" >&2; exit 1; }
echo "$mended" >"$work/xgrammar-$version/VERSION"
mkdir -p "$(dirname "$folder")"
rm -rf "$folder"
mv "$work/xgrammar-$version" "$folder"
