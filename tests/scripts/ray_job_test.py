#!/usr/bin/env python3
"""scripts/cluster/ray_job.py on a Ray cluster of two nodes on this machine: two shards answer as one process does, also
when a weft process or a worker is killed amid them, and a mistake in the requests ends the job at once.

Usage: ray_job_test.py WEFT_BINARY SOURCE_FOLDER, by a python3 that has Ray (pip install ray); says so where there is none
"""

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "runtime" / "job")]
from kill_test import REQUESTS, requests, whole_lines  # noqa: E402
from weft_process import Weft, write_lines  # noqa: E402

WEFT = SOURCE = None
SKIPPED = 77  # what ctest takes for it


def processes_with(word):
    """Ids of the weft processes that have `word` in their command lines."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        if command[0] == WEFT.binary.encode() and any(word.encode() in each for each in command):
            found.append(int(folder.name))
    return found


def parent_of(process):
    return int(pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


class RayJob(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from ray.cluster_utils import Cluster
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        cls.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        cls.cluster.add_node(num_cpus=1)
        cls.model = ["--model", SOURCE / "models" / "demo", "--backend", "cpu", "--gpu-batch-size", "5",
                     "--num-gpu-batches", "2", "--percent", "0", "0", "100", "0", "100", "0"]

    @classmethod
    def tearDownClass(cls):
        cls.cluster.shutdown()

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-ray-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"
        write_lines(self.input, requests())

    def as_one_process(self):
        """The answers of one process, in the order of the requests."""
        alone, sorted_ = self.folder / "alone.jsonl", self.folder / "sorted.jsonl"
        done = WEFT.run("generate", *self.model, "--input", self.input, "--output", alone, "--quiet")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = WEFT.run("merge", "--input", self.input, "--output", sorted_, alone)
        self.assertEqual(done.returncode, 0, done.stderr)
        return whole_lines(sorted_)

    def start(self):
        return subprocess.Popen([sys.executable, SOURCE / "scripts/cluster/ray_job.py", "--shards", "2", "--address",
                                 self.cluster.address, "--weft", WEFT.binary, "--input", self.input, "--output", self.output,
                                 "--", "generate", *map(str, self.model)],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, job, code=0):
        said = job.communicate(timeout=400)[0]
        print(said, end="", flush=True)
        self.assertEqual(job.returncode, code, said)
        return said

    def kill_amid(self, job, victim_of):
        part = self.folder / "out.jsonl.1-of-2"
        while job.poll() is None and len(whole_lines(part)) < 3:
            time.sleep(0.01)
        (process,) = processes_with(str(part))
        print(f"{len(whole_lines(part))} answers of shard 1/2 are there; killing process {victim_of(process)}", flush=True)
        os.kill(victim_of(process), signal.SIGKILL)
        self.assertLess(len(whole_lines(part)), REQUESTS // 2)

    def test_two_shards_answer_as_one_process(self):
        said = self.finish(self.start())
        self.assertIn("shard 1/2, attempt 1: done", said)
        self.assertIn("shard 2/2, attempt 1: done", said)
        self.assertEqual(whole_lines(self.output), self.as_one_process())

    def test_a_killed_weft_goes_on(self):
        job = self.start()
        self.kill_amid(job, lambda process: process)
        said = self.finish(job)
        self.assertIn("shard 1/2, attempt 1: killed by SIGKILL; it goes on where it was", said)
        self.assertIn("shard 1/2, attempt 2: done", said)
        self.assertEqual(whole_lines(self.output), self.as_one_process())

    def test_a_killed_worker_takes_its_weft_along_and_is_replaced(self):
        job = self.start()
        self.kill_amid(job, parent_of)
        said = self.finish(job)
        self.assertIn("shard 1/2, attempt 2: done", said)
        self.assertEqual(whole_lines(self.output), self.as_one_process())

    def test_what_no_other_run_would_do_better(self):
        write_lines(self.input, [{"id": 1, "prompt": "a", "max_token": 1}])
        said = self.finish(self.start(), code=1)
        self.assertIn("attempt 1: exit code 2: weft: error: ", said)
        self.assertIn("did you mean 'max_tokens'?", said)
        self.assertNotIn("attempt 2", said)
        self.assertFalse(self.output.exists())


if __name__ == "__main__":
    if not importlib.util.find_spec("ray"):
        print("skipped: this python3 has no Ray; pip install ray")
        sys.exit(SKIPPED)
    WEFT, SOURCE = Weft(os.path.abspath(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
