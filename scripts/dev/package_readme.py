#!/usr/bin/env python3
"""The README and the reference pages of the package that scripts/package.sh makes: this repository's, for a program that is
built already.

    scripts/dev/package_readme.py PACKAGE_FOLDER

Leaves out what is about building and the code, says bin/weft in place of build/release/weft, and writes
PACKAGE_FOLDER/README.md and the pages of PAGES. A link to what the package does not hold becomes plain text. Fails if a
page would name a script or a document that the package does not hold.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {  # each with its sections about the sources
    "README.md": ["Try it", "The code"],
    "docs/requests.md": [],
    "docs/policies.md": [],
    "docs/retention.md": [],
    "docs/resume.md": [],
    "docs/gpu.md": ["Building for older drivers", "Building for a card", "Installing and packaging"],
    "docs/cluster.md": [],
    "docs/evaluate.md": [],
    "docs/serve.md": [],
    "docs/python.md": ["Making a wheel"],
}
RUN_IT = """## Run it

This package runs where it is unpacked, on any x86-64 Linux with AVX2 and glibc 2.34. For the GPU it wants a driver and
cuBLAS; without these it runs on the CPU. `scripts/gpu_check.sh` tests and measures it on a machine with a GPU.

"""


def of_package(page, package):
    title, *sections = re.split(r"(?m)^(?=## )", (ROOT / page).read_text())
    kept = [section for section in sections if section.splitlines()[0].removeprefix("## ") not in PAGES[page]]
    assert len(kept) + len(PAGES[page]) == len(sections), f"{page} has other sections than this script knows"
    if page == "README.md":
        kept.insert(1, RUN_IT)
    text = title + "".join(kept)
    text = re.sub(r",\s+in\s+the\s+package\s+too,", "", text).replace("build/release/weft", "bin/weft")
    text = re.sub(r"\bbuild/(?=[\w.]+)", "", text)

    def link_or_text(match):
        words, target = match.groups()
        there = re.match(r"\w+:|#", target) or (package / page).parent.joinpath(target.partition("#")[0]).exists()
        return match.group() if there else words

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", link_or_text, text)


def named_files(text):
    return sorted(set(re.findall(r"(?<![\w/.-])(?:scripts|docs|configs|tests)/[\w./-]*\w", text)))


def main():
    package = pathlib.Path(sys.argv[1]).resolve()
    if (package / "docs").is_symlink():
        sys.exit("package_readme: the package's docs are a link, and would be written through it; copy them")
    (package / "README.md").touch()  # which the pages may link to
    texts = {page: of_package(page, package) for page in PAGES}
    missing = [f"{page} names {name}" for page, text in texts.items() for name in named_files(text)
               if not (package / name).exists()]
    if missing:
        sys.exit(f"package_readme: the package does not hold all that it names: {', '.join(missing)}")
    for page, text in texts.items():
        (package / page).write_text(text)


if __name__ == "__main__":
    main()
