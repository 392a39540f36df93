#!/usr/bin/env python3
"""scripts/cluster/weft.sbatch without Slurm: its variables set by hand, srun and scontrol played by scripts.

Usage: sbatch_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from weft_process import Weft, read_lines, write_lines, write_tiny_model  # noqa: E402

WEFT = SOURCE = None


class Sbatch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-sbatch-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = write_tiny_model(self.folder / "tiny")
        self.input, self.output = self.folder / "in put.jsonl", self.folder / "out.jsonl"
        write_lines(self.input, [{"id": i, "prompt_ids": [i % 60, 2], "max_tokens": 4} for i in range(10)])
        (self.folder / "bin").mkdir()
        self.program("srun", 'exec "$@"')
        self.program("scontrol", 'echo "scontrol $*"')

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def task(self, number, count, *flags, weft=None, **variables):
        """What the task printed, and its exit code."""
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "WEFT": str(weft or WEFT.binary),
                       "SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_MIN": "1",
                       "SLURM_ARRAY_TASK_MAX": str(count), "SLURM_ARRAY_TASK_COUNT": str(count), **variables}
        done = subprocess.run([SOURCE / "scripts/cluster/weft.sbatch", *(flags or self.job())], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, cwd=self.folder)
        return done.returncode, done.stdout

    def job(self):
        return ["generate", "--model", self.model, "--backend", "cpu", "--quiet", "--input", self.input, "--output", self.output]

    def merge(self, output, *parts):
        done = WEFT.run("merge", "--input", self.input, "--output", output, *parts)
        self.assertEqual(done.returncode, 0, done.stderr)
        return read_lines(output)

    def test_three_tasks_answer_as_one_process(self):
        for number in 1, 2, 3:
            code, said = self.task(number, 3)
            self.assertEqual(code, 0, said)
            self.assertIn(f"shard {number}/3", said)
        alone = self.folder / "alone.jsonl"
        self.assertEqual(WEFT.run(*self.job()[:-1], alone).returncode, 0)
        parts = [self.folder / f"out.jsonl.{number}-of-3" for number in (3, 1, 2)]
        self.assertEqual([len(read_lines(part)) for part in parts], [3, 4, 3])
        self.assertEqual(self.merge(self.output, *parts), self.merge(self.folder / "one.jsonl", alone))

    def test_a_failed_task_is_requeued_and_goes_on(self):
        part = self.folder / "out.jsonl.2-of-3"
        for fails, code in (("kill -9 $$", 137), ("exit 5", 5), ("exit 6", 6), ("exit 130", 130)):
            done, said = self.task(2, 3, weft=self.program("weft-that-fails", fails))
            self.assertEqual(done, code, said)
            self.assertIn("scontrol requeue 77_2", said)
        self.assertEqual(self.task(2, 3)[0], 0)
        whole = part.read_text()
        part.write_text(whole[:len(whole) // 2])  # as a kill within a line leaves it
        code, said = self.task(2, 3, SLURM_RESTART_COUNT="1")
        self.assertEqual(code, 0, said)
        self.assertIn("attempt 2", said)
        self.assertEqual(sorted(part.read_text().splitlines()), sorted(whole.splitlines()))

    def test_the_list_of_codes_is_that_of_the_program(self):
        said = WEFT.run("--help").stdout.decode()
        codes = {int(code): "again" if "with --resume" in rest else "never" if "of no use" in rest else "done"
                 for code, rest in re.findall(r"^  (\d+) +(.*)", said.partition("Exit codes:")[2], re.MULTILINE)}
        self.assertEqual(len(codes), 9, said)
        script = (SOURCE / "scripts/cluster/weft.sbatch").read_text()
        done, never = re.findall(r"^  ([\d |]+)\) exit", script, re.MULTILINE)
        listed = lambda text: {int(code) for code in text.split("|")}  # noqa: E731
        self.assertEqual(listed(done), {code for code, what in codes.items() if what == "done"})
        self.assertEqual(listed(never), {code for code, what in codes.items() if what == "never"})
        page = (SOURCE / "docs/requests.md").read_text().partition("## Exit codes")[2]
        rows = {int(code): again for code, again in re.findall(r"^\| (\d+) \|.*\| (\w+) \|$", page, re.MULTILINE)}
        self.assertEqual(rows, {code: {"again": "yes", "never": "no", "done": "done"}[what] for code, what in codes.items()})

    def test_what_is_not_requeued(self):
        for code in 2, 3, 4, 70:
            done, said = self.task(1, 2, weft=self.program("weft-that-fails", f"exit {code}"))
            self.assertEqual(done, code)
            self.assertNotIn("scontrol", said)
        done, said = self.task(1, 2, weft=self.program("weft-that-fails", "exit 6"), SLURM_RESTART_COUNT="3", RETRIES="3")
        self.assertEqual(done, 6)
        self.assertIn("shard 1/2 ended with 6 for the last time", said)
        self.assertNotIn("scontrol", said)

    def test_some_shards_alone(self):
        some = {"SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_MAX": "5", "SLURM_ARRAY_TASK_COUNT": "2"}
        code, said = self.task(5, 0, **some)
        self.assertEqual(code, 2)
        self.assertIn("SHARDS=8", said)
        code, said = self.task(5, 0, SHARDS="8", **some)
        self.assertEqual(code, 0, said)
        self.assertEqual([answer["id"] for answer in read_lines(self.folder / "out.jsonl.5-of-8")], [4])

    def test_weft_gets_all_cores_of_the_task(self):
        echo = self.program("weft-that-tells", 'echo "cores $SRUN_CPUS_PER_TASK"; printf "<%s>" "$@"')
        code, said = self.task(1, 2, "score", f"--output={self.output}", "--model", "a b", weft=echo, SLURM_CPUS_PER_TASK="16")
        self.assertEqual(code, 0, said)
        self.assertIn("cores 16\n", said)
        self.assertIn(f"<score><--model><a b><--output><{self.output}.1-of-2><--shard><1/2><--resume>", said)

    def test_mistakes(self):
        for flags, words in ((["generate"], "wanted --output FILE"), (["generate", "--output"], "--output has no value"),
                             ([*self.job(), "--resume"], "--resume is set by this script"),
                             ([*self.job(), "--shard=1/2"], "--shard=1/2 is set by this script")):
            code, said = self.task(1, 2, *flags)
            self.assertEqual(code, 2, said)
            self.assertIn(words, said)
            self.assertEqual(said.count("\n"), 1, said)
        self.assertIn("set WEFT", self.task(1, 2, weft=self.folder / "nowhere")[1])
        self.assertIn("sbatch --array=1-N", self.task("", 2)[1])


if __name__ == "__main__":
    WEFT, SOURCE = Weft(os.path.abspath(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
