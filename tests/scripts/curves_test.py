#!/usr/bin/env python3
"""Tests of scripts/evaluate/curves.py, of what quality.py and tasks.py do with it, and of the pages that quality.py and
scripts/bench/ratios.py write: curves_test.py WEFT SOURCE_DIR."""

import argparse
import contextlib
import json
import lzma
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

WEFT, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path[:0] = [str(SOURCE / "scripts/evaluate"), str(SOURCE / "scripts/bench")]
import curves  # noqa: E402
import quality  # noqa: E402
import ratios  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def runs(rules, budgets=None, picture=None):
    return curves.runs(argparse.Namespace(rules=rules, budgets=budgets, picture=picture))


def lines_of(picture):
    return list(xml.parse(picture).getroot().iter(SVG + "polyline"))


def words_of(picture):
    return [text.text for text in xml.parse(picture).getroot().iter(SVG + "text")]


class Rules(unittest.TestCase):
    def test_a_factor_becomes_a_share_with_a_point_and_without_noise(self):
        for rule, budget, text in [("h2o:{0.5}:{0.5}", 0.2, "h2o:0.1:0.1"),
                                   ("h2o:{0.7}:{.3}", 0.1, "h2o:0.07:0.03"),  # 0.7 * 0.1 is 0.06999999999999999
                                   ("recent:{1}:sinks=4", 1.0, "recent:1.0:sinks=4"),
                                   ("heavy:{0.3333333}", 0.1, "heavy:0.033333"),
                                   ("heavy:{3}", 0.5, "heavy:1.0"),
                                   ("snapkv:{1}:0:window=4", 0.05, "snapkv:0.05:0:window=4"),
                                   ("recent:16", None, "recent:16")]:
            self.assertEqual(curves.at_budget(rule, budget), text)
        for rule in ["heavy:{}", "heavy:{half}", "heavy:{-1}", "heavy:1}", "heavy:{{1}}"]:
            with self.assertRaisesRegex(SystemExit, "in braces"):
                curves.at_budget(rule, 0.5)

    def test_rules_with_braces_run_at_every_budget_and_others_once(self):
        found = runs(["full", "recent:{1}", "h2o:4:4"], [0.5, 0.1])
        self.assertEqual([(run.text, run.budget, run.first) for run in found],
                         [("full", None, "full"), ("h2o:4:4", None, "full"), ("recent:0.5", 0.5, "full"),
                          ("recent:0.1", 0.1, "full")])
        self.assertEqual([(run.text, run.first) for run in runs(["heavy:{1}", "recent:{1}", "full"], [0.5, 0.1])],
                         [("full", None), ("heavy:0.5", "heavy:0.5"), ("recent:0.5", "heavy:0.5"),
                          ("heavy:0.1", "heavy:0.1"), ("recent:0.1", "heavy:0.1")])
        self.assertEqual([run.budget for run in runs(["heavy:{1}"])], curves.BUDGETS)
        with self.assertRaisesRegex(SystemExit, "none has any"):
            runs(["full"], picture="a.svg")


class Picture(unittest.TestCase):
    def draw(self, values, ends=None):
        """The picture of recent:{1} with these (value, error) at 50, 10 and 5 %."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "made", "a.svg")
            measured = [(run, *value) for run, value in zip(runs(["recent:{1}"], [0.5, 0.1, 0.05]), values)]
            with contextlib.redirect_stdout(None):
                curves.draw(path, "a <title> & more", "a note", "of y", measured, ends)
            places = [tuple(map(float, point.split(","))) for point in lines_of(path)[0].get("points").split()]
            return places, words_of(path)

    def test_more_is_higher_and_a_greater_budget_further_right(self):
        places, words = self.draw([(1, 0.5), (2, 0.5), (4, 0.5)])
        self.assertEqual(places, sorted(places))
        self.assertEqual([y for _, y in places], sorted(y for _, y in places))
        self.assertAlmostEqual(places[1][1] - places[0][1], 2 * (places[2][1] - places[1][1]), delta=0.3)
        for word in ["a <title> & more", "a note", "of y", "recent:{1}", "5", "10", "50"]:
            self.assertIn(word, words)

    def test_values_far_apart_are_drawn_by_their_logarithms(self):
        places, words = self.draw([(-1, 0.1), (30, 1), (900, 10)])
        self.assertIn("of y, logarithmic", words)
        for tick in ["-1", "0", "1", "10", "100", "500"]:
            self.assertIn(tick, words)
        steps = [b[1] - a[1] for a, b in zip(places, places[1:])]
        self.assertLess(max(steps) / min(steps), 3)  # in an even scale 28

    def test_an_axis_of_given_ends_is_even_and_holds_every_bar(self):
        places, words = self.draw([(1, 0.2), (0.01, 0.02), (0, 0)], (0, 1))
        self.assertIn("of y", words)
        self.assertIn("0.8", words)
        self.assertNotIn("-0.2", words)

    def test_nothing_but_zeros_can_be_drawn(self):
        self.draw([(0, 0)] * 3)


class Case(unittest.TestCase):
    """Runs a script in a folder of its own, with a weft that notes how it was called."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        book = lzma.open(SOURCE / "tests/data/text/books-valid.txt.xz", "rt").read(20000)
        (self.folder / "book.txt").write_text(book)
        (self.folder / "weft").write_text(f'#!/bin/sh\necho "$*" >>"{self.folder}/calls"\nexec "{WEFT}" "$@"\n')
        (self.folder / "weft").chmod(0o755)

    def script(self, *words, fails=False):
        command = [sys.executable, SOURCE / f"scripts/evaluate/{words[0]}.py", "--model", SOURCE / "models/demo", "--text",
                   "book.txt", "--weft", self.folder / "weft", *words[1:]]
        done = subprocess.run(list(map(str, command)), cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True)
        self.assertEqual(done.returncode != 0, fails, done.stderr)
        return done.stderr if fails else done.stdout

    def calls(self):
        """The subcommands, and rules, since the last call."""
        path = self.folder / "calls"
        calls = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        path.unlink(missing_ok=True)
        return [words[words.index("--retention") + 1] if "--retention" in words else words[0] for words in calls]

    def rows(self, said):
        return [line.split("|")[1].strip() for line in said.splitlines() if line.startswith("| ")]


class Pages(unittest.TestCase):
    def written_twice(self, page, script, write):
        """The page after two runs, between which a conclusion was written by hand."""
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
            path = pathlib.Path(folder, page)
            write(path)
            self.assertTrue(path.read_text().endswith(f"by hand; {script} keeps it. -->\n"))
            with path.open("a") as out:
                out.write("\n**Conclusion.** Mine.\n")
            before = path.read_text()
            write(path)
            self.assertEqual(path.read_text(), before)
            return before

    def test_the_page_of_a_model_keeps_what_is_written_by_hand(self):
        def write(path):
            args = argparse.Namespace(output=path, model=SOURCE / "models/demo", windows=2, prompt=512, scored=256)
            quality.write_page(args, 4, 0.25, [(0.2, "h2o", 54.75, 0.1, 0.01), (0.2, "random", 127.4, 1, 0.05)],
                               {"random": (-0.9, 0.02)}, [(0.5, 0.1, 0.01)])
        text = self.written_twice("demo-model.md", "scripts/evaluate/quality.py", write)
        self.assertIn("| 20% | h2o | 54.75 | +10.52% | 1.11% |\n", text)
        self.assertIn("Against random at the same budget it is better: -59.34% in perplexity", text)

    def test_the_page_of_a_ratio_keeps_what_is_written_by_hand(self):
        text = self.written_twice("overlap.md", "scripts/bench/ratios.py",
                                  lambda path: ratios.write_page(path, "overlap", "Why?", "weft bench", ["| a |", "|---|"]))
        self.assertLess(text.index("# Why?"), text.index("```\nweft bench\n```\n\n| a |"))

    def test_every_page_of_ratios_is_in_the_documents(self):
        for part in ratios.PARTS:
            self.assertIn(ratios.BY_HAND, (SOURCE / f"docs/lab/{part}.md").read_text())
        self.assertIn(quality.BY_HAND, (SOURCE / "docs/lab/demo-model.md").read_text())


class Quality(Case):
    def quality(self, rules, *words, prompt=24, **others):
        return self.script("quality", "--windows", "2", "--prompt", prompt, "--scored", "8", "--losses",
                           "kept/losses.json", "--rules", *rules, *words, **others)

    def test_what_was_measured_is_measured_no_more(self):
        rules = ["h2o:{0.5}:{0.5}", "recent:{1}", "recent:6"]
        said = self.quality(rules, "--budgets", "0.5", "--picture", "a.svg")
        of_half = ["recent:6", "h2o:0.25:0.25", "recent:0.5"]
        self.assertEqual(self.calls(), ["tokenize", "full", *of_half])
        self.assertEqual(self.rows(said), ["retention", "full", *of_half])
        self.assertIn("\nrecent:0.5 against h2o:0.25:0.25: ", said)
        self.assertEqual(said.count(" against "), 1, said)
        self.assertEqual(len(lines_of(self.folder / "a.svg")), 3)
        self.assertIn("demo, 24+8 tokens, 2 windows", words_of(self.folder / "a.svg"))

        again = self.quality(rules, "--budgets", "0.5", "--weft", "no-such-weft")
        self.assertEqual(again, said.replace("wrote a.svg\n", ""))
        self.assertEqual(self.calls(), [])
        more = self.quality(rules[:2], "--budgets", "1", "0.5", "--picture", "a.svg")
        self.assertEqual(self.calls(), ["tokenize", "h2o:0.5:0.5", "recent:1.0"])
        self.assertEqual(self.rows(more)[2:], ["h2o:0.5:0.5", "recent:1.0", "h2o:0.25:0.25", "recent:0.5"])
        self.assertEqual(more.count(" against "), 2, more)
        for line in lines_of(self.folder / "a.svg"):
            self.assertEqual(len(line.get("points").split()), 2)

        refused = self.quality(rules, prompt=25, fails=True)
        self.assertEqual(refused, "kept/losses.json was measured with another prompt: remove it or name another file\n")
        kept = self.folder / "kept/losses.json"
        held = json.loads(kept.read_text())
        for damaged in [kept.read_text()[:-9], "[]", json.dumps({**held, "rules": {"full": [1.0]}}),
                        json.dumps({**held, "rules": {"full": [1.0, "2"]}})]:
            kept.write_text(damaged)
            self.assertRegex(self.quality(rules, fails=True), r"\Akept/losses.json is damaged[^\n]*\n\Z")
        self.assertEqual(self.calls(), [])

    def test_a_picture_is_of_rules(self):
        self.assertIn("go with --rules", self.script("quality", "--picture", "a.svg", fails=True))
        self.assertIn("at most 1", self.script("quality", "--rules", "heavy:{1}", "--budgets", "20", fails=True))


class Tasks(Case):
    def tasks(self, rules, *words, items=2, **others):
        return self.script("tasks", "--items", items, "--tokens", "60", "--tasks", "labels", "needle", "--answers",
                           "answers.json", "--rules", *rules, *words, **others)

    def test_what_was_measured_is_measured_no_more(self):
        rules = ["full", "h2o:{0.5}:{0.5}"]
        said = self.tasks(rules, "--budgets", "0.5", "0.25", "--picture", "a.svg", "--output", "a.md")
        found = ["full", "h2o:0.25:0.25", "h2o:0.125:0.125"]
        self.assertEqual(self.calls(), found)
        self.assertEqual(self.rows((self.folder / "a.md").read_text()), ["rule", *found])
        self.assertTrue(said.endswith("wrote a.svg\n"))
        full, h2o = lines_of(self.folder / "a.svg")
        self.assertTrue(full.get("stroke-dasharray"))
        self.assertIsNone(h2o.get("stroke-dasharray"))

        # Scores that no answer had show that they are read.
        kept = self.folder / "answers.json"
        held = json.loads(kept.read_text())
        held["rules"]["full"] = [1.0, 0.5, 1.0, 0.0]
        held["rules"]["h2o:0.25:0.25"] = [0.5, 0.5, 0.0, 0.0]
        kept.write_text(json.dumps(held))
        self.tasks(rules, "--budgets", "0.5", "--output", "b.md", "--weft", "no-such-weft")
        self.assertEqual((self.folder / "b.md").read_text().splitlines()[2:],
                         ["| full | 0.75 | 0.50 | 0.625 | +0.000 (0.000) |",
                          "| h2o:0.25:0.25 | 0.50 | 0.00 | 0.250 | -0.375 (0.239) |"])
        self.tasks(["h2o:{0.5}:{0.5}", "full"], "--budgets", "0.5", "--output", "b.md", "--weft", "no-such-weft")
        self.assertEqual((self.folder / "b.md").read_text().splitlines()[2:],
                         ["| full | 0.75 | 0.50 | 0.625 |  |",
                          "| h2o:0.25:0.25 | 0.50 | 0.00 | 0.250 | +0.000 (0.000) |"])
        self.assertIn("with another items:", self.tasks(rules, items=3, fails=True))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
