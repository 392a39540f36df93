#!/usr/bin/env python3
"""The documents keep their word: the commands of README.md and docs/*.md run and end with 0, or are named here with the
reason; flags, scripts, files and links exist; tests/README.md has every source.

Usage: docs_test.py WEFT SOURCE_DIR [unittest arguments]
"""

import concurrent.futures
import fnmatch
import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

WEFT = SOURCE = None
LINKS = {}  # what stands in for folders of the project
MOST_README_LINES = 160
REFERENCE = ["README.md", "docs/requests.md", "docs/policies.md", "docs/retention.md", "docs/resume.md", "docs/gpu.md",
             "docs/cluster.md", "docs/evaluate.md"]  # each has an example that runs here
WITHOUT_COMMANDS = ["docs/design.md"]  # a sketch of what commands look like
OTHERS_WITH_PATHS = ["CONTRIBUTING.md", "runtime/README.md", "tests/README.md"]

# Commands that do not run here, with the reason. Their flags, scripts and files are checked all the same.
NOT_HERE = [
    (r"\bpip install\b|\bapt-get\b|scripts/get_model\.sh", "needs a network"),
    (r"scripts/(quickstart|test|package|wheel)\.sh|\bcmake\b|\bctest\b", "builds, or tests what was built"),
    (r"--backend cuda", "needs a GPU"),
    (r"docker (build|run)", "needs Docker; scripts/dev/dockerfile_steps.py runs the same steps"),
    (r"/shared/opt-30b|\$job\b", "needs Slurm and a checkpoint of 60 GB; sbatch_test.py starts the script"),
    (r"scripts/cluster/ray_job\.py", "needs Ray; ray_job_test.py starts it"),
    (r"weft serve-batches", "serves until it is stopped; serve_test.py starts it"),
    (r"weft-lm-eval", "needs lm-eval, and a task of the Hub; lm_eval_test.py starts what it starts"),
    (r"scripts/gpu_check\.sh", "takes half a minute; gpu_check_test.py starts it"),
    (r"scripts/(evaluate|compare|bench)/", "needs packages of PyPI, SmolLM2 or minutes; tests/scripts has tests of most"),
]
HARMLESS = {"echo", "head", "tail"}  # programs that weft is piped to or from
COMMANDS = ["generate", "score", "merge", "plan", "bench", "inspect", "analyze", "tokenize", "convert", "serve-batches"]
SHELL, NO_SHELL = {"sh", "bash"}, {"json", "text", "cpp", "python"}  # python_test.py runs Python
# Where a fence has no language, a line that begins so is a command.
LOOKS_LIKE_ONE = re.compile(r"(\w+=\S+ )*(build/\S+/(weft|python)|weft [a-z]|scripts/|tests/|python3 |cmake |ctest )")
IN_FRONT_OF_WEFT = re.compile(r"(?<![\w/.-])(?:build/release/|bin/)?weft(?= (?:%s|--version)\b)" % "|".join(COMMANDS))
SECONDS = 60  # for one command, on a machine that does other things as well


def pages():
    names = ["README.md", *sorted(path.relative_to(SOURCE).as_posix() for path in (SOURCE / "docs").glob("*.md"))]
    return [name for name in names if name not in WITHOUT_COMMANDS]


def text_of(page):
    return (SOURCE / page).read_text()


def fences(text):
    """(language, lines) of every fenced block."""
    language, lines = None, []
    for line in text.splitlines():
        mark = re.match(r"\s*```(\w*)\s*$", line)
        if mark and language is None:
            language, lines = mark.group(1), []
        elif mark:
            yield language, lines
            language = None
        elif language is not None:
            lines.append(line.strip())


def is_whole(text):
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return not text.endswith(("\\", "|", "&&"))


def commands(page):
    """The commands of a page, in its order, each on one line."""
    found = []
    for language, lines in fences(text_of(page)):
        if language in NO_SHELL:
            continue
        whole = ""
        for line in lines:
            if not whole and (not line or line.startswith("#") or language not in SHELL and not LOOKS_LIKE_ONE.match(line)):
                continue
            whole += line
            if is_whole(whole):
                found.append(whole)
                whole = ""
            else:
                whole = whole.removesuffix("\\").rstrip() + " "
        assert not whole, f"{page}: a command without an end: {whole}"
    return found


def parts(command):
    """The simple commands that a line consists of, as words, without the variables that are set for them."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    simple = [[]]
    for word in lexer:
        if re.fullmatch(r"[|&;()<>]+", word):
            simple.append([])
        elif simple[-1] or not re.fullmatch(r"\w+=.*", word):
            simple[-1].append(word)
    return [words for words in simple if words]


def is_weft(words):
    return words[0] in {"weft", "build/release/weft", "bin/weft"}


def reason_not_here(command):
    return next((reason for pattern, reason in NOT_HERE if re.search(pattern, command)), None)


def runs_here(command):
    return not reason_not_here(command) and all(is_weft(words) or words[0] in HARMLESS for words in parts(command))


@functools.cache
def help_of(command):
    return subprocess.run([WEFT, command, "--help"], capture_output=True, text=True, check=True, timeout=SECONDS).stdout


def has_flag(text, flag):
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None


@functools.cache
def scripts_text():
    return "\n".join(path.read_text() for path in sorted((SOURCE / "scripts").glob("**/*"))
                     if path.suffix in {".py", ".sh", ".sbatch"})


def flags_of(words):
    return [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]


def run_page(page):
    """Runs a page's commands one after another in a folder of their own; what failed."""
    failures = []
    with tempfile.TemporaryDirectory(prefix="weft-docs-") as name:
        folder = pathlib.Path(name)
        for link in "configs", "models", "tests/data":
            (folder / link).parent.mkdir(exist_ok=True)
            (folder / link).symlink_to(LINKS.get(link, SOURCE / link))
        (folder / "build").mkdir()
        for command in filter(runs_here, commands(page)):
            line = IN_FRONT_OF_WEFT.sub(lambda _: shlex.quote(WEFT), command)
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", line], cwd=folder, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=SECONDS, env={**os.environ, "TMPDIR": name})
            if done.returncode != 0:
                failures.append(f"{page}: {command}\nends with {done.returncode}: {done.stderr[-600:]}")
    return failures


class Case(unittest.TestCase):
    def none(self, faults):
        self.assertEqual(list(faults), [], "\n" + "\n".join(faults))


class Commands(Case):
    def test_they_run(self):
        longest_first = sorted(pages(), key=lambda page: -sum(map(runs_here, commands(page))))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            self.none([failure for failures in pool.map(run_page, longest_first) for failure in failures])

    def test_reference_pages_have_an_example_that_runs(self):
        self.none(page for page in REFERENCE if not any(map(runs_here, commands(page))))

    def test_what_does_not_run_here_has_a_reason(self):
        self.none(f"{page}: {command}" for page in pages() for command in commands(page)
                  if not runs_here(command) and not reason_not_here(command))

    def test_every_reason_is_needed(self):
        all_commands = [command for page in pages() for command in commands(page)]
        self.none(pattern for pattern, _ in NOT_HERE if not any(re.search(pattern, line) for line in all_commands))

    def test_fences_of_reference_pages_name_their_language(self):
        self.none(f"{page}: a fence of '{language}': {lines[:1]}" for page in REFERENCE
                  for language, lines in fences(text_of(page)) if language not in SHELL | NO_SHELL)


class Flags(Case):
    def test_flags_of_weft_are_in_its_help(self):
        faults = []
        for page in pages():
            for words in (words for command in commands(page) for words in parts(command) if is_weft(words)):
                self.assertIn(words[1], COMMANDS, f"{page}: {words}")
                faults += [f"{page}: weft {words[1]} has no {flag}" for flag in flags_of(words[:words.index("--")] if "--" in words else words)
                           if not has_flag(help_of(words[1]), flag)]
        self.none(faults)

    def test_scripts_exist_and_know_their_flags(self):
        faults = []
        for page in pages():
            for words in (words for command in commands(page) for words in parts(command)):
                at = next((i for i, word in enumerate(words) if re.match(r"(scripts|tests)/.*\.(py|sh|sbatch)$", word)), None)
                if at is None:
                    continue
                script, rest = SOURCE / words[at], words[at + 1:]
                if not script.is_file():
                    faults.append(f"{page}: there is no {words[at]}")
                    continue
                # Behind --, and behind an sbatch script, stand weft's flags; lm-evaluation-harness has its own.
                if script.suffix == ".sbatch" or script.name == "lm_eval_weft.py":
                    continue
                rest = rest[:rest.index("--")] if "--" in rest else rest
                helpers = "".join(path.read_text() for path in script.parent.glob("*.py")) if script.suffix == ".py" else ""
                faults += [f"{page}: {words[at]} has no {flag}" for flag in flags_of(rest)
                           if not has_flag(script.read_text() + helpers, flag)]
        self.none(faults)

    def test_flags_in_the_text_exist(self):
        known = scripts_text() + "".join(map(help_of, COMMANDS))
        self.none(f"{page}: {flag}" for page in REFERENCE for code in re.findall(r"`([^`\n]+)`", text_of(page))
                  for flag in flags_of(re.findall(r"(?<!\S)--[\w-]+", code)) if not has_flag(known, flag))


class Text(Case):
    def test_the_readme_is_short(self):
        self.assertLessEqual(len(text_of("README.md").splitlines()), MOST_README_LINES)

    def test_files_in_the_text_exist(self):
        path = re.compile(r"`((?:kernels|offload|policy|runtime|scripts|tests|configs|docs|models/demo)/[\w./*{},-]*)")
        faults = []
        for page in REFERENCE + OTHERS_WITH_PATHS:
            for name in path.findall(text_of(page)):
                if re.search(r"[A-Z]{3}", name.replace("README", "").replace("CMakeLists", "")):
                    continue  # a name that the reader puts in
                before, _, rest = name.partition("{")
                names, _, after = rest.partition("}")
                roots = [SOURCE, SOURCE / "tests"] if page == "tests/README.md" else [SOURCE]
                if not all(any(list(root.glob(f"{before}{one}{after}".rstrip("/"))) for root in roots)
                           for one in names.split(",")):
                    faults.append(f"{page}: there is no {name}")
        self.none(faults)

    def test_links_lead_somewhere(self):
        faults = []
        for page in ["README.md", *(path.relative_to(SOURCE).as_posix() for path in (SOURCE / "docs").glob("*.md")),
                     *OTHERS_WITH_PATHS]:
            for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
                if re.match(r"\w+:", target):
                    continue
                name, _, anchor = target.partition("#")
                file = (SOURCE / page).parent / name if name else SOURCE / page
                if not file.exists() or anchor and anchor not in anchors(file.read_text()):
                    faults.append(f"{page}: {target}")
        self.none(faults)


def anchors(text):
    """Those that GitHub gives to headings."""
    outside = re.sub(r"(?ms)^```.*?^```$", "", text)
    titles = re.findall(r"(?m)^#+ (.*)$", outside)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]|\]\([^)]*\)", "", title).lower()).replace(" ", "-") for title in titles}


class Map(Case):
    """The table of tests/README.md: sources in the first column, the tests that cover them in the second."""

    def rows(self):
        for line in text_of("tests/README.md").splitlines():
            cells = [re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|")]
            if line.startswith("|") and cells[0] and re.match(r"(kernels|offload|policy|runtime)/", cells[0][0]):
                yield cells[0], [name for name in cells[1] if name.endswith((".cc", ".py"))]

    def sources(self):
        return [path.relative_to(SOURCE).as_posix() for floor in ("kernels", "offload", "policy", "runtime")
                for path in sorted((SOURCE / floor).glob("**/*")) if path.suffix in {".cc", ".cu"}]

    def test_every_source_has_a_row_and_every_row_a_source(self):
        sources = self.sources()
        self.assertGreater(len(sources), 100)
        patterns = [pattern for row, _ in self.rows() for pattern in row]
        self.none([f"{name} is in no row of tests/README.md" for name in sources
                   if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)] +
                  [f"tests/README.md: {pattern} is no source" for pattern in patterns
                   if not fnmatch.filter(sources, pattern)])

    def test_tests_exist(self):
        self.none(f"{row}: there is no tests/{name}" for row, tests in self.rows() for name in tests
                  if not list((SOURCE / "tests").glob(name)))
        self.none(f"{row} names no test" for row, tests in self.rows() if not tests)


if __name__ == "__main__":
    WEFT, SOURCE = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
