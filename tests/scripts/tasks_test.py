#!/usr/bin/env python3
"""Tests of scripts/evaluate/tasks.py: tasks_test.py WEFT SOURCE_DIR."""

import argparse
import pathlib
import subprocess
import sys
import unittest

WEFT, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path.insert(0, str(SOURCE / "scripts/evaluate"))
import tasks  # noqa: E402


def make(**changes):
    wanted = dict(text=str(SOURCE / "tests/data/text/books-valid.txt.xz"), tasks=list(tasks.TASKS), items=3, seed=1,
                  tokens=400, question="last")
    return tasks.make_items(argparse.Namespace(**{**wanted, **changes}))


class Items(unittest.TestCase):
    def test_what_is_asked_for_stands_in_the_prompt(self):
        wanted, lines = make()
        prompts = {line["id"]: line["prompt"] for line in map(tasks.json.loads, lines.splitlines())}
        self.assertEqual(len(prompts), 3 * len(tasks.TASKS))
        for name, (task, answers) in wanted.items():
            for answer in answers:
                self.assertIn(answer, prompts[name], name)

    def test_a_seed_makes_the_same_items_and_another_makes_others(self):
        self.assertEqual(make(), make())
        self.assertNotEqual(make()[1], make(seed=2)[1])

    def test_a_question_may_come_first(self):
        _, lines = make(tasks=["needle"], items=1, question="first")
        self.assertTrue(tasks.json.loads(lines)["prompt"].startswith("What is the secret number"))

    def test_short_prompts_have_room_for_what_is_hidden(self):
        for tokens in 100, 300:
            wanted, lines = make(tokens=tokens)
            prompts = {line["id"]: line["prompt"] for line in map(tasks.json.loads, lines.splitlines())}
            for name, (_, answers) in wanted.items():
                self.assertTrue(all(answer in prompts[name] for answer in answers), name)

    def test_the_score_is_the_share_that_was_found(self):
        self.assertEqual(tasks.share_found("a Knight and a violin", ["knight", "stone"]), 0.5)


class Table(unittest.TestCase):
    def test_each_rule_has_a_row(self):
        command = [sys.executable, SOURCE / "scripts/evaluate/tasks.py", "--model", SOURCE / "models/demo", "--weft", WEFT, "--items",
                   "2", "--tokens", "200", "--tasks", "needle", "labels", "--rules", "full", "h2o:0.25:0.25"]
        done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True)
        rows = [line.split("|")[1].strip() for line in done.stdout.strip().splitlines() if line.startswith("| ")]
        self.assertEqual(rows[-2:], ["full", "h2o:0.25:0.25"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
