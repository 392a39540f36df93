#!/usr/bin/env bash
# Puts the sources of xgrammar's C++ core into build/xgrammar, from PyPI. With them CMake builds what answers of a given
# form need (docs/requests.md). Safe to run again; nothing is compiled here.
#   scripts/get_xgrammar.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.2.8
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
folder=${1:-build/xgrammar}
[ "$(cat "$folder/VERSION" 2>/dev/null)" = "$version" ] && exit 0

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
echo "$version" >"$work/xgrammar-$version/VERSION"
mkdir -p "$(dirname "$folder")"
rm -rf "$folder"
mv "$work/xgrammar-$version" "$folder"
