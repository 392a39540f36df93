#!/usr/bin/env python3
"""Prompts that begin alike: they are computed once, and the answers are those of prompts that are computed alone.

Usage: prefix_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, write_lines  # noqa: E402

WEFT = None
SOURCE = None


def requests():
    """Lines over three prefixes, in turn, and lines of their own; greedy, sampled, several choices."""
    dice = random.Random(5)

    def tokens(count):
        return [dice.randrange(10, 3900) for _ in range(count)]

    prefixes = [tokens(150), tokens(200), tokens(97)]
    lines = []
    for i in range(48):
        more = [{}, {"temperature": 0.8, "seed": i, "n": 2}, {"logprobs": 1}][i % 3]
        prefix = prefixes[i % 4] if i % 4 < 3 else []
        lines.append({"id": i, "prompt_ids": prefix + tokens(1 + i % 9), "max_tokens": 3 + 5 * i % 7, **more})
    return lines


class Prefixes(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-prefix-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.input, self.report = self.folder / "in.jsonl", self.folder / "report.json"
        write_lines(self.input, requests())

    def command(self, output, *flags):
        return ["generate", "--model", SOURCE / "models" / "demo", "--input", self.input, "--output", output, "--backend",
                "cpu", "--gpu-batch-size", 8, "--num-gpu-batches", 2, "--report", self.report, *flags]

    def answers(self, output, *flags):
        done = WEFT.run(*self.command(output, *flags))
        self.assertEqual(done.returncode, 0, done.stderr)
        return sorted(output.read_bytes().splitlines()), json.loads(self.report.read_text())["tokens"]

    def test_the_same_bytes(self):
        for retention in ("full", "h2o:0.1:0.1", "snapkv:0.2:0.1:window=4"):
            with self.subTest(retention=retention):
                alone, none = self.answers(self.folder / f"{retention}-alone", "--no-prefix-sharing", "--retention",
                                           retention)
                shared, tokens = self.answers(self.folder / f"{retention}-shared", "--retention", retention)
                self.assertEqual(alone, shared)
                self.assertEqual(none["prompt"], tokens["prompt"])
                # What is shared without it are second choices, whose prompts are whole.
                self.assertGreater(tokens["shared_prompt"] - none["shared_prompt"], 0.5 * tokens["prompt"])

    def test_a_prefix_is_held(self):
        """A full cache has a prefix in its slots, so that a gpu batch computes it once, however its places fill."""
        dice = random.Random(7)
        prefix = [dice.randrange(10, 3900) for _ in range(200)]
        lines = [{"id": i, "prompt_ids": prefix + [dice.randrange(10, 3900) for _ in range(1 + i % 5)],
                  "max_tokens": 2 + 7 * i % 11} for i in range(60)]
        write_lines(self.input, lines)
        alone, _ = self.answers(self.folder / "alone", "--no-prefix-sharing", "--retention", "full")
        placements = {"all": ["--percent", 100, 0, 100, 0, 100, 0], "host": ["--percent", 0, 100, 0, 100, 100, 0],
                      "disk": ["--percent", 0, 100, 0, 0, 100, 0], "float16": ["--kv-dtype", "float16"]}
        for name, flags in placements.items():
            with self.subTest(name):
                expected = alone
                if name == "float16":
                    expected, _ = self.answers(self.folder / "alone16", "--no-prefix-sharing", *flags)
                shared, tokens = self.answers(self.folder / name, "--retention", "full", *flags)
                self.assertEqual(shared, expected)
                self.assertEqual(tokens["shared_prompt"], (len(lines) - 2) * len(prefix))
        # Slots of int8 have other numbers than attention reads: each time some begin, they compute the prefix.
        other, _ = self.answers(self.folder / "alone8", "--no-prefix-sharing", "--kv-dtype", "int8")
        shared, tokens = self.answers(self.folder / "int8", "--kv-dtype", "int8")
        self.assertEqual(shared, other)
        self.assertLess(tokens["shared_prompt"], (len(lines) - 2) * len(prefix))

    def test_killed(self):
        whole, _ = self.answers(self.folder / "whole")
        output = self.folder / "killed"
        for moment in range(4):
            process = WEFT.start(*self.command(output, *(["--resume"] if moment else []), "--checkpoint-every", "0.05s"))
            time.sleep(0.15 + 0.1 * moment)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=HANGS)
        answers, _ = self.answers(output, "--resume")
        self.assertEqual(answers, whole)


if __name__ == "__main__":
    WEFT, SOURCE = Weft(sys.argv[1]), pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
