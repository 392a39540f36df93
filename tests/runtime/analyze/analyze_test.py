#!/usr/bin/env python3
"""weft analyze: its figures against those that transformers' attention matrices give (analysis.json of golden
checkpoints, by scripts/evaluate/verify_analysis.py), its page, its bad input.

Usage: analyze_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import Weft, write_lines, write_tiny_model  # noqa: E402

WEFT = None
SOURCE = None
USAGE = 2
MOST = 1e-3


def pairs(figures, wanted, name=""):
    """(name, figure, what was wanted) of all numbers in equal nests of lists and dictionaries."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            yield from pairs(figures[key], value, f"{name}.{key}")
    elif isinstance(wanted, list):
        assert len(figures) == len(wanted), name
        for i, value in enumerate(wanted):
            yield from pairs(figures[i], value, f"{name}[{i}]")
    else:
        yield name, figures, wanted


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-analyze-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.input, self.output, self.page = (self.folder / name for name in ("in.jsonl", "out.json", "page.html"))

    def analyze(self, model, *flags, code=0):
        done = WEFT.run("analyze", "--model", model, "--input", self.input, "--disk-dir", self.folder, *flags)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout.decode(), done.stderr.decode()

    def refused(self, model, *flags):
        said = self.analyze(model, *flags, code=USAGE)[1].splitlines()
        self.assertEqual(len(said), 1, said)
        return said[0]


class Figures(Case):
    def test_as_transformers_has_them(self):
        compared = 0
        for path in sorted((SOURCE / "tests/data/golden").glob("*/analysis.json")):
            wanted = json.loads(path.read_text())
            write_lines(self.input, [{"ids": wanted["ids"]}])
            self.analyze(path.parent, "--dtype", "float32", "--window", wanted["window"], "--queries", wanted["queries"],
                         "--output", self.output)
            for name, figure, right in pairs(json.loads(self.output.read_text())["layers"], wanted["layers"]):
                self.assertAlmostEqual(figure, right, delta=MOST, msg=f"{path.parent.name}{name}")
                compared += 1
        self.assertGreater(compared, 100)

    def test_a_layer_keeps_all_where_the_budget_holds_its_window(self):
        model = SOURCE / "tests/data/golden/gemma3-text-slides-bf16"
        sliding = json.loads((model / "config.json").read_text())["sliding_window"]
        write_lines(self.input, [{"ids": [(7 * i * i + 3 * i) % 131 for i in range(128)]}])
        self.analyze(model, "--window", 64, "--budget", 0.2, "--save-retention", self.folder / "policy.json", "--output",
                     self.output)
        layers = json.loads(self.output.read_text())["by_layer"]["kept_at_64ths"]
        for layer, curve in enumerate(layers):
            self.assertEqual(curve, sorted(curve), layer)
            self.assertAlmostEqual(curve[-1], 1, delta=1e-3)
            if layer % 2 == 0:
                self.assertAlmostEqual(curve[sliding - 1], 1, delta=1e-3)
            else:
                self.assertLess(curve[sliding - 1], 0.9)

    def test_lines_and_threads_do_not_matter_and_rests_are_left_out(self):
        text = " ".join(f"word{i % 97}" for i in range(1500))
        reports = []
        for lines, threads in (([text], 1), ([text], 2)):
            write_lines(self.input, [{"id": i, "text": line} for i, line in enumerate(lines)])
            self.analyze(SOURCE / "models/demo", "--window", 200, "--output", self.output, "--threads", threads)
            reports.append(json.loads(self.output.read_text()))
        self.assertEqual(reports[0], reports[1])
        self.assertEqual(reports[0]["tokens"], 200 * reports[0]["windows"])
        self.assertGreater(reports[0]["tokens_left_out"], 0)
        write_lines(self.input, [{"text": text}, {"text": "too short"}, {"text": text}])
        self.analyze(SOURCE / "models/demo", "--window", 200, "--output", self.output)
        both = json.loads(self.output.read_text())
        self.assertEqual(both["windows"], 2 * reports[0]["windows"])
        self.assertAlmostEqual(both["layers"][1]["sparsity"], reports[0]["layers"][1]["sparsity"], places=5)

    def test_what_figures_must_be(self):
        write_lines(self.input, [{"ids": [i * i % 60 for i in range(400)]}])
        table, _ = self.analyze(write_tiny_model(self.folder / "tiny", max_position_embeddings=128), "--window", 100,
                                "--output", self.output, "--queries", 50)
        report = json.loads(self.output.read_text())
        self.assertEqual(report["windows"], 4)
        for layer in report["layers"]:
            self.assertEqual(layer["best"], sorted(layer["best"], reverse=True))
            self.assertTrue(all(0 <= value <= 1 for value in [*layer["best"], *layer["held"], layer["overlap"]]))
            self.assertEqual(len(layer["heads"]), 2)
        self.assertEqual(len(table.splitlines()), 2 + 2 + 1)


class Pages(Case):
    def test_a_page_is_sound_and_loads_nothing(self):
        model = write_tiny_model(self.folder / "tiny", max_position_embeddings=128)
        write_lines(self.input, [{"ids": [i * i % 60 for i in range(400)]}])
        self.analyze(model, "--window", 100, "--page", self.page)
        text = self.page.read_text()
        self.assertNotRegex(text, r"https?:|src=|@import|url\(")
        pictures = re.findall(r"<svg.*?</svg>", text, re.S)
        self.assertEqual(len(pictures), 4)
        for picture in pictures:
            xml.etree.ElementTree.fromstring(picture)
        self.analyze(model, "--window", 100, "--page", self.page)  # its own page is replaced

    def test_only_own_files_are_replaced(self):
        model = write_tiny_model(self.folder / "tiny", max_position_embeddings=128)
        write_lines(self.input, [{"ids": [1] * 200}])
        for flag, path in ("--page", self.page), ("--output", self.output):
            path.write_text("mine")
            self.refused(model, "--window", 100, flag, path)
            self.assertEqual(path.read_text(), "mine")


    def test_the_example_of_the_readme(self):
        shutil.copy(SOURCE / "configs/examples/texts.jsonl", self.input)
        table, _ = self.analyze(SOURCE / "models/demo", "--window", 256, "--page", self.page)
        self.assertEqual(len(table.splitlines()), 2 + 4 + 1)


class Budgets(Case):
    def setUp(self):
        super().setUp()
        self.policy = self.folder / "policy.json"
        self.demo = SOURCE / "models/demo"
        shutil.copy(SOURCE / "configs/examples/texts.jsonl", self.input)

    def divide(self, budget, *flags):
        table, _ = self.analyze(self.demo, "--window", 256, "--max-tokens", 512, "--budget", budget, "--save-retention",
                                self.policy, "--output", self.output, *flags)
        return table, json.loads(self.output.read_text())["by_layer"]

    def test_a_budget_is_divided_so_that_it_costs_less(self):
        for budget in 0.1, 0.2, 0.5:
            with self.subTest(budget=budget):
                table, found = self.divide(budget)
                kept = json.loads(self.policy.read_text())["retention"]
                self.assertEqual(kept, found["retention"])
                self.assertEqual((kept["rule"], kept["heavy"], kept["recent"]), ("h2o", budget / 2, budget / 2))
                self.assertEqual(round(1e4 * sum(kept["layers"])), 4 * 10**4)
                self.assertTrue(all(0.2 - 1e-4 <= factor <= 1 / budget for factor in kept["layers"]), kept)
                self.assertLess(found["loss"], found["loss_evenly"])
                self.assertLessEqual(found["loss_evenly"], 1.02 * sum(max(0, loss) for loss in found["losses"]) + 2e-5)
                self.assertIn("times as much", table)
                for curve in found["kept_at_64ths"]:
                    self.assertEqual(len(curve), 64)
                    self.assertAlmostEqual(curve[-1], 1, delta=1e-3)
                    self.assertTrue(all(0 < share < 1.001 for share in curve))
        self.assertEqual(self.divide(1)[1]["retention"]["layers"], [1.0] * 4)

    def test_heads_keep_more_than_evenly(self):
        even = self.divide(0.2)[1]
        for what in "heads", "both":
            with self.subTest(what):
                table, found = self.divide(0.2, "--divide", what)
                kept = json.loads(self.policy.read_text())["retention"]
                self.assertEqual([len(heads) for heads in kept["layers"]], [4] * 4)
                self.assertEqual(round(1e4 * sum(map(sum, kept["layers"]))), 16 * 10**4)
                self.assertEqual(found["kept_at_64ths"], even["kept_at_64ths"])
                self.assertEqual(found["kept_evenly"], even["kept_evenly"])
                self.assertIn("the layers' heads get (", table)
                if what == "both":
                    self.assertLessEqual(found["loss"], even["loss"])
                    continue
                self.assertNotIn("losses", found)
                for heads, by_heads, evenly in zip(kept["layers"], found["kept"], found["kept_evenly"]):
                    self.assertAlmostEqual(sum(heads), 4, delta=2e-3)
                    self.assertGreaterEqual(by_heads, evenly - 1e-3)

    def test_what_is_saved_is_a_policy(self):
        self.divide(0.2, "--divide", "heads")
        self.generate("head")
        self.divide(0.2)
        self.generate("layer")

    def generate(self, by):
        lines, answers = self.folder / "prompts.jsonl", self.folder / "answers.jsonl"
        write_lines(lines, [{"prompt": "The sea was " * 30, "max_tokens": 8}])
        done = WEFT.run("generate", "--model", self.demo, "--input", lines, "--output", answers, "--policy", self.policy,
                        "--verbose")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"retention h2o by {by}", done.stderr.decode())
        answers.unlink()

    def test_the_same_whatever_the_threads(self):
        self.assertEqual(self.divide(0.2, "--threads", 1)[1], self.divide(0.2, "--threads", 2)[1])

    def test_mistakes_are_named(self):
        for flags, words in (
            (("--budget", 0.2), "--save-retention"),
            (("--save-retention", self.policy), "--budget"),
            (("--divide", "heads"), "--divide needs --budget"),
            (("--save-retention", self.policy, "--budget", 0.2, "--divide", "all"), "--divide"),
            (("--save-retention", self.policy, "--budget", 0), "--budget must be a share of all tokens from 0.001 to 1"),
            (("--save-retention", self.policy, "--budget", 1.5), "--budget"),
        ):
            self.assertIn(words, self.refused(self.demo, "--window", 256, *flags))
        self.policy.write_text("mine")
        self.assertIn("--save-retention", self.refused(self.demo, "--save-retention", self.policy, "--budget", 0.2))
        self.assertEqual(self.policy.read_text(), "mine")


class BadInput(Case):
    def test_is_refused_by_name(self):
        model = write_tiny_model(self.folder / "tiny", max_position_embeddings=128)
        write_lines(self.input, [{"ids": [1] * 200}])
        for flags, words in (
            (("--window", 128), "--window must be from 64 to 127"),
            (("--window", 8), "--window must be"),
            (("--window", 100, "--queries", 51), "--queries must be from 1 to half of --window, 50"),
            (("--window", 100, "--queries", 0), "--queries"),
        ):
            self.assertIn(words, self.refused(model, *flags))
        for line, words in (
            ({"ids": [1] * 99}, "no line has the 100 tokens"),
            ({"ids": [64] * 200}, "'ids' must be a list of ids from 0 to 63"),
            ({"ids": [1.5] * 200}, "'ids'"),
            ({"text": "words"}, "has no tokenizer"),
            ({"prompt": "words"}, "text"),
            ({"ids": [1] * 200, "more": 1}, "more"),
        ):
            write_lines(self.input, [line])
            self.assertIn(words, self.refused(model, "--window", 100))

    def test_one_kv_head_is_not_divided(self):
        model = write_tiny_model(self.folder / "tiny", num_attention_heads=1, max_position_embeddings=128)
        write_lines(self.input, [{"ids": [1] * 200}])
        flags = "--window", 64, "--budget", 0.2, "--save-retention", self.folder / "policy.json", "--divide", "heads"
        self.assertIn("one KV head a layer", self.refused(model, *flags))


if __name__ == "__main__":
    WEFT, SOURCE = Weft(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
