#!/usr/bin/env python3
"""Requests of very different lengths run in classes, each with a block of its own, and answer as in one block.

Usage: classes_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
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
from weft_process import HANGS, Weft, read_lines, write_lines  # noqa: E402

WEFT = None
SOURCE = None
LONG, ANSWER, SHORT = 2, 50, 40


def slowed(value, factor):
    """A machine's rates of computing by a factor."""
    if isinstance(value, dict):
        return {key: each * factor if key in ("flop_per_second", "bytes_per_second") and not isinstance(each, dict)
                else slowed(each, factor) for key, each in value.items()}
    return [slowed(each, factor) for each in value] if isinstance(value, list) else value


class Classes(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-lengths-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"
        self.machine, self.report = self.folder / "machine.json", self.folder / "report.json"
        machine = json.loads((SOURCE / "configs/machines/cpu.json").read_text())
        for engine in ("device", "host"):
            machine[engine] = slowed(machine[engine], 1e-3)
        self.machine.write_text(json.dumps(machine))
        generator = random.Random(3)

        def line(number, prompt, answer):
            return {"id": number, "prompt_ids": [generator.randrange(5, 4000) for _ in range(prompt)],
                    "max_tokens": answer, "ignore_eos": True, "temperature": 0.8, "seed": number}

        lines = [line(i, generator.randrange(4, 12), 16) for i in range(SHORT)] + \
                [line(100 + i, 500, ANSWER) for i in range(LONG)]
        generator.shuffle(lines)
        write_lines(self.input, lines)

    def command(self, *flags, output=None, memory="16MiB"):
        return ["generate", "--model", SOURCE / "models/demo", "--input", self.input, "--output", output or self.output,
                "--backend", "cpu", "--device-memory", memory, "--machine", self.machine, *flags]

    def in_one_block(self):
        output = self.folder / "one.jsonl"
        done = WEFT.run(*self.command("--gpu-batch-size", 42, "--num-gpu-batches", 1, output=output, memory="1GiB"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(b" classes", done.stderr)
        return sorted(output.read_bytes().splitlines())

    def test_answers_and_report(self):
        done = WEFT.run(*self.command("--report", self.report, "--ordered"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"requests of very different lengths run in 2 classes", done.stderr)
        self.assertIn(b"  2 requests of up to 550 tokens", done.stderr)
        self.assertIn(b"  40 requests of up to ", done.stderr)
        self.assertEqual(sorted(self.output.read_bytes().splitlines()), self.in_one_block())
        ids = [line["id"] for line in read_lines(self.input)]
        self.assertEqual([line["id"] for line in read_lines(self.folder / "out.sorted.jsonl")], ids)
        report = json.loads(self.report.read_text())
        self.assertEqual([one["requests"] for one in report["classes"]], [LONG, SHORT])
        long, short = (one["policy"]["gpu_batch_size"] * one["policy"]["num_gpu_batches"] for one in report["classes"])
        self.assertGreater(short, 4 * long)
        self.assertEqual(report["tokens"]["generated"], LONG * ANSWER + SHORT * 16)
        for name in ("load", "prefill", "decode"):
            self.assertAlmostEqual(report["seconds"][name], sum(one["seconds"][name] for one in report["classes"]))
        predicted = [one["predicted"]["tokens_per_second"]["total"] for one in report["classes"]]
        self.assertTrue(min(predicted) < report["predicted"]["tokens_per_second"]["total"] < max(predicted))

    def test_one_class_if_the_block_is_given_or_a_trace_is_wanted(self):
        done = WEFT.run(*self.command("--trace", self.folder / "trace.json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(b" classes", done.stderr)

    def test_a_run_that_is_stopped_amid_a_class_goes_on_there(self):
        saved = pathlib.Path(f"{self.output}.inflight")
        process = WEFT.start(*self.command("--checkpoint-every", "0.02s"))
        while process.poll() is None and not saved.exists():
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=HANGS)[1]
        self.assertEqual(process.returncode, 130, said)
        done = WEFT.run(*self.command("--resume", "--report", self.report))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(self.output.read_bytes().splitlines()), self.in_one_block())
        self.assertGreater(json.loads(self.report.read_text())["checkpoints"]["resumed_sequences"], 0)


if __name__ == "__main__":
    WEFT, SOURCE = Weft(sys.argv[1]), pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
