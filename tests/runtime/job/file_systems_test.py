#!/usr/bin/env python3
"""File systems that lack something (locks, owners, modes, files without a name, O_DIRECT, space that was reserved): a job
runs as elsewhere, says so in one line where it matters, and goes on after a kill.

Usage: file_systems_test.py WEFT_BINARY OTHER_FILE_SYSTEM_LIBRARY [unittest arguments]

tests/support/other_file_system.cc, preloaded, plays these file systems.
"""

import errno
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, crowding, read_lines, write_lines, write_tiny_model  # noqa: E402

WEFT = LIBRARY = None
INPUT_OUTPUT = 6
REQUESTS = [{"id": i, "prompt_ids": [3, i + 1], "max_tokens": 6} for i in range(10)]
ON_DISK = ("--percent", 0, 0, 0, 0, 0, 0, "--disk-engine", "threads")


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-file-systems-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = write_tiny_model(self.folder / "tiny")
        (self.folder / "out").mkdir()
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out" / "a.jsonl"
        write_lines(self.input, REQUESTS)

    def command(self, *flags):
        return WEFT.command("generate", "--model", self.model, "--input", self.input, "--output", self.output, "--backend",
                            "cpu", "--threads", 1, "--gpu-batch-size", 5, "--num-gpu-batches", 1, *flags)

    def environment(self, lacks, **more):
        return {**os.environ, "LD_PRELOAD": LIBRARY, "OTHER_FILE_SYSTEM": lacks, **more}

    def run_job(self, lacks, *flags, code=0, **more):
        done = subprocess.run(self.command(*flags), env=self.environment(lacks, **more), capture_output=True, timeout=HANGS)
        said = done.stderr.decode()
        self.assertEqual(done.returncode, code, said)
        return said

    def answers(self):
        return sorted((line["id"], line["token_ids"]) for line in read_lines(self.output))

    def undisturbed(self):
        self.run_job("", "--quiet", *ON_DISK)
        answers = self.answers()
        self.clear()
        return answers

    def clear(self):
        for left in self.output.parent.iterdir():
            left.unlink()


class Lacks(Case):
    def job_and_resume(self, lacks, wanted, warning, **more):
        """Runs a job, cuts its output and resumes it. Says what is lacking once a run, and leaves no other files."""
        for flags in [], ["--resume"]:
            said = self.run_job(lacks, "--quiet", *ON_DISK, *flags, **more)
            self.assertEqual(said.count("\n"), 1 if warning else 0, said)
            self.assertIn(warning, said)
            self.assertEqual(self.answers(), wanted)
            self.assertEqual(sorted(file.name for file in self.output.parent.iterdir()), ["a.jsonl", "a.jsonl.run.json", "a.jsonl.sums"])
            self.output.write_bytes(b"".join(self.output.read_bytes().splitlines(keepends=True)[:4]) + b"{")
        self.clear()

    def test_locks(self):
        wanted = self.undisturbed()
        self.job_and_resume("nfs", wanted, "")
        self.job_and_resume("smb", wanted, "")
        for code in errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP:
            self.job_and_resume("nolocks", wanted, "this file system has no locks", FLOCK_ERRNO=str(code))
        self.output = pathlib.Path("here.jsonl")  # relative: the folder has a name all the same
        done = subprocess.run(self.command("--quiet"), cwd=self.folder, capture_output=True,
                              env=self.environment("nolocks", FLOCK_ERRNO="38"))
        self.assertEqual(done.stderr.decode().split(": ")[:2], ["weft", "."])

    def test_owners_and_modes(self):
        wanted = self.undisturbed()
        self.job_and_resume("owner,nameless", wanted, "")
        self.job_and_resume("owner", wanted, "")
        self.job_and_resume("nochmod", wanted, "this file system has no permissions")
        self.job_and_resume("nochmod,nolocks,nameless", wanted, "no permissions and no locks", FLOCK_ERRNO="38")

    def test_a_conversion(self):
        packed = self.folder / "packed"
        for lacks in "nfs", "smb", "nolocks", "owner,nameless":
            done = subprocess.run(WEFT.command("convert", "--model", self.model, "--output", packed), capture_output=True,
                                  env=self.environment(lacks, FLOCK_ERRNO="38"))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(file.name for file in packed.iterdir()), ["config.json", "model.safetensors"])
            shutil.rmtree(packed)

    def test_direct_transfers(self):
        wanted = self.undisturbed()
        said = self.run_job("direct", *ON_DISK)
        self.assertIn("page cache for", said)
        self.assertIn("whose file system has no O_DIRECT", said)
        self.assertEqual(self.answers(), wanted)
        self.clear()
        self.assertNotIn("page cache", self.run_job("", *ON_DISK))

    def test_what_killed_runs_left_is_removed(self):
        """Without files that have no name, a killed writer leaves one of another name. Whoever writes next removes it."""
        report = self.output.parent / "report.json"
        left = self.output.parent / ".report.json.weft-part-4711-0"
        theirs = self.output.parent / ".report.json.weft-part-4712-0"
        for lacks in "", "nameless":
            left.write_text("{")
            theirs.symlink_to(self.model)
            self.run_job(lacks, "--quiet", "--report", report, *ON_DISK)
            self.assertFalse(left.exists())
            self.assertTrue(theirs.is_symlink())
            self.clear()


class FullSpill(Case):
    """Another program fills the disk of the spill file, whose reservation does not hold."""

    def setUp(self):
        super().setUp()
        self.full = self.folder / "full"
        write_lines(self.input, [{**request, "max_tokens": 40} for request in REQUESTS])
        self.wanted = self.undisturbed()

    def start(self):
        return subprocess.Popen(self.command("--quiet", *ON_DISK), stderr=subprocess.PIPE, bufsize=0,
                                env=self.environment("full", OTHER_FILE_SYSTEM_FULL=str(self.full)))

    def start_to_wait(self):
        """A run that has said that it waits."""
        self.full.touch()
        process = self.start()
        self.assertRegex(process.stderr.readline().decode(), r"No space left on device; trying again for \d+ s")
        self.assertIsNone(process.poll())
        return process

    def test_it_waits_for_space(self):
        process = self.start_to_wait()
        time.sleep(0.5)  # in which it tries again
        self.assertIsNone(process.poll())
        self.full.unlink()
        said = process.communicate(timeout=HANGS)[1].decode()
        self.assertEqual(process.returncode, 0, said)
        self.assertEqual(self.answers(), self.wanted)

    def test_a_stop_ends_the_waiting(self):
        process = self.start_to_wait()
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=HANGS)[1].decode()
        seconds = time.monotonic() - begin
        self.assertEqual(process.returncode, 130, said)
        self.assertLess(seconds, 10 * crowding())
        self.full.unlink()
        self.run_job("", "--resume", "--quiet", *ON_DISK)
        self.assertEqual(self.answers(), self.wanted)

    def test_in_the_end_it_says_how_to_go_on(self):
        self.full.touch()
        process = self.start()
        said = process.communicate(timeout=HANGS)[1].decode()
        self.assertEqual(process.returncode, INPUT_OUTPUT, said)
        self.assertIn("run the same command with --resume, which goes on from", said)
        self.full.unlink()
        self.run_job("", "--resume", "--quiet", *ON_DISK)
        self.assertEqual(self.answers(), self.wanted)


if __name__ == "__main__":
    WEFT, LIBRARY = Weft(os.path.abspath(sys.argv[1])), os.path.abspath(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
