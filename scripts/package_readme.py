#!/usr/bin/env python3
"""The README of the package that scripts/package.sh makes: this repository's, for a program that is built already.

    scripts/package_readme.py PACKAGE_FOLDER

Leaves out what is about building, measuring and the code, says bin/weft in place of build/release/weft, and writes
PACKAGE_FOLDER/README.md. Fails if that would name a script or a document that the package does not hold.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ABOUT_THE_SOURCES = "Start", "How fast", "The code"


def of_package(readme):
    title, *sections = re.split(r"(?m)^(?=## )", readme)
    kept = [section for section in sections if section.splitlines()[0].removeprefix("## ") not in ABOUT_THE_SOURCES]
    assert len(kept) + len(ABOUT_THE_SOURCES) == len(sections), "README.md has other sections than this script knows"
    text = title + "".join(kept)
    text = re.sub(r"(?m)^- `scripts/package\.sh`.*\n(?:  .*\n)*", "", text)
    # Of the item about drivers the first sentence; then comes how to build for older ones.
    text = re.sub(r"(?m)^(- Drivers:.*?\bon\.).*\n(?:(?:  .*)?\n)*?(?=- )", r"\1\n", text)
    text = text.replace("in the package too, ", "").replace("build/release/weft", "bin/weft")
    return re.sub(r"\bbuild/(?=[\w.]+)", "", text)


def named_files(text):
    return sorted(set(re.findall(r"(?<![\w/.-])(?:scripts|docs|configs|tests)/[\w./-]*\w", text)))


def main():
    package = pathlib.Path(sys.argv[1])
    text = of_package((ROOT / "README.md").read_text())
    missing = [name for name in named_files(text) if not (package / name).exists()]
    if missing:
        sys.exit(f"package_readme: README.md names what the package does not hold: {', '.join(missing)}")
    (package / "README.md").write_text(text)


if __name__ == "__main__":
    main()
