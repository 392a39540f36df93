#!/usr/bin/env python3
"""Checks how comments, documents and names read.

- No comment of a header begins with a headless clause: "Of ...", "What of ...", "By what ...", "Whom ...".
- The tics of HEADLESS and PHRASES stay out of comments and documents.
- A word of the glossary has one meaning: `block` is the sequences of one pass and never a buffer, `step` is no sweep.
- No type has two definitions, and no two names of types differ in one letter, outside EXCEPTIONS (and tests).

Prints every finding; exit code 1 if there is any."""

import collections
import itertools
import pathlib
import re
import sys

FOLDERS = ["kernels", "offload", "policy", "runtime", "tests/support"]
HEADLESS = {"of", "by", "what", "where", "whom", "whose", "which", "how", "to", "amid", "beside", "for", "from", "with"}
PHRASES = [  # (what is wrong, what to write)
    (r"\bKV blocks?\b", "KV buffer"),
    (r"\bhomes? of (a|the|all|every) blocks?\b|\bblocks?'s? homes?\b", "the home of a buffer"),
    (r"\bblocks? (lives?|moves?|streams?)\b", "buffer"),
    (r"\bwhere its blocks are\b|\bblock that streams\b", "buffer"),
    (r"\bof which there (are|is)\b", "name the number first"),
    (r"\bis by as many\b|\bwhat of (the|these|it|this|its)\b", "say what it is: subject and verb first"),
    (r"\bby what (it|they|is|are)\b", "say what it is: subject and verb first"),
]
# Types that may share a name, or differ from another's in one letter, each with the reason.
NAME_EXCEPTIONS = {
    "Ops": "the Op of a schedule and the Ops of a backend have their names from what they are",
    "bf16": "bf16 and f16 are what the formats are called",
}
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/*.md", "docs/lab/*.md", "runtime/README.md"]
COMMENT = re.compile(r"^\s*///(?!<)\s*(.*)|^.*?///<\s*(.*)")
HEAD = re.compile(r"^// (\S+/\S+): (.*)")
TYPE = re.compile(r"^(?:struct|class|enum class) (\w+)(?!\w|::)[^;]*$")  # of a namespace, not of a class


def comments(path):
    """The first words of every comment that documents something: line number and text."""
    before = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        head, match = HEAD.match(line), COMMENT.match(line)
        if number == 1 and head:
            yield number, head.group(2)
        if match and match.group(2) is not None:
            yield number, match.group(2)
        elif match and not before:
            yield number, match.group(1)
        before = bool(match and match.group(2) is None)


def one_letter_apart(a, b):
    if abs(len(a) - len(b)) > 1 or a == b:
        return False
    if len(a) == len(b):
        return sum(x != y for x, y in zip(a, b)) == 1
    short, long = sorted((a, b), key=len)
    return any(long[:i] + long[i + 1:] == short for i in range(len(long)))


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
    faults, types, headers = [], collections.defaultdict(list), 0
    for path in sorted(itertools.chain.from_iterable((root / folder).glob("**/*") for folder in FOLDERS)):
        if path.suffix not in {".h", ".cc", ".cu"}:
            continue
        name = path.relative_to(root).as_posix()
        if path.suffix == ".h":
            headers += 1
            for number, text in comments(path):
                words = re.findall(r"[A-Za-z']+", text)
                if words and words[0].lower() in HEADLESS:
                    faults.append(f'{name}:{number}: begins with "{" ".join(words[:4])}"; begin with the subject')
        for number, line in enumerate(path.read_text().splitlines(), 1):
            comment = line[line.find("//"):] if "//" in line else ""
            faults += [f'{name}:{number}: "{match.group(0)}"; write: {better}'
                       for pattern, better in PHRASES if (match := re.search(pattern, comment, re.IGNORECASE))]
            if path.suffix == ".h" and not name.startswith("tests/") and (match := TYPE.match(line)):
                types[match.group(1)].append(f"{name}:{number}")
    for path in itertools.chain.from_iterable(root.glob(pattern) for pattern in DOCUMENTS):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            faults += [f'{path.relative_to(root)}:{number}: "{match.group(0)}"; write: {better}'
                       for pattern, better in PHRASES if (match := re.search(pattern, line, re.IGNORECASE))]
    for name, places in sorted(types.items()):
        if len(places) > 1 and name not in NAME_EXCEPTIONS:
            faults.append(f"{name} is defined {len(places)} times: {', '.join(places)}")
    for a, b in itertools.combinations(sorted(types), 2):
        if one_letter_apart(a, b) and a not in NAME_EXCEPTIONS and b not in NAME_EXCEPTIONS:
            faults.append(f"{a} ({types[a][0]}) and {b} ({types[b][0]}) differ in one letter")
    print("\n".join(faults) if faults else f"{headers} headers read as they should")
    return 1 if faults or headers == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
