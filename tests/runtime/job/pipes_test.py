#!/usr/bin/env python3
"""--input - and --output -: requests through one pipe, answers through another, and whatever can happen to a pipe.

Usage: pipes_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import array
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, crowding, read_lines, wait_until_it_listens, write_lines, write_tiny_model  # noqa: E402

WEFT = None
SOURCE = None
USAGE, IO, STOPPED = 2, 6, 130
LAYOUT = "--gpu-batch-size", 4, "--num-gpu-batches", 2, "--percent", 100, 0, 100, 0, 100, 0


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-pipes-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = write_tiny_model(self.folder / "tiny")
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"
        self.requests = [{"id": i, "prompt_ids": [3, i % 50 + 1], "max_tokens": 6} for i in range(20)]
        write_lines(self.input, self.requests)

    def command(self, *flags, input="-", output="-"):
        return WEFT.command("generate", "--model", self.model, "--input", input, "--output", output, "--backend", "cpu",
                            "--threads", 1, *LAYOUT, *flags)

    def run_job(self, *flags, code=0, text=None, input="-", output="-", **options):
        options.setdefault("stdout", subprocess.PIPE)
        done = subprocess.run(self.command(*flags, input=input, output=output), stderr=subprocess.PIPE, timeout=HANGS,
                              cwd=self.folder, input=self.input.read_bytes() if text is None else text, **options)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout, done.stderr.decode()

    def in_files(self):
        self.output.unlink(missing_ok=True)
        self.run_job(input=self.input, output=self.output)
        return sorted(self.output.read_bytes().splitlines())


class Pipes(Case):
    def test_answers_are_those_of_files_and_nothing_else_is_printed(self):
        wanted = self.in_files()
        before = sorted(self.folder.rglob("*"))
        out, said = self.run_job()
        self.assertTrue(out.endswith(b"\n"))
        self.assertEqual(sorted(out.splitlines()), wanted)
        self.assertIn("standard output", said)
        self.assertIn("cannot be resumed", said)
        self.assertEqual(sorted(self.folder.rglob("*")), before)  # no record, no file of the name "-"

    def test_one_pipe_alone(self):
        wanted = self.in_files()
        self.assertEqual(sorted(self.run_job(input=self.input)[0].splitlines()), wanted)
        self.output.unlink()
        (self.folder / "out.jsonl.sums").unlink()
        (self.folder / "out.jsonl.run.json").unlink()
        out, _ = self.run_job(output=self.output)
        self.assertEqual(out, b"")
        self.assertEqual(sorted(self.output.read_bytes().splitlines()), wanted)
        lines = self.output.read_bytes().splitlines(keepends=True)
        self.output.write_bytes(b"".join(lines[:7]))
        self.run_job("--resume", output=self.output)  # the same requests through the pipe again
        self.assertEqual(sorted(self.output.read_bytes().splitlines()), wanted)

    def test_refused_requests_have_their_place_and_their_lines(self):
        text = self.input.read_bytes() + b'{"id":77,"prompt_ids":[]}\n'
        out, said = self.run_job(code=USAGE, text=text)
        self.assertEqual(out, b"")
        self.assertIn("standard input:21: 'prompt_ids'", said)
        out, _ = self.run_job("--on-bad-request", "record", code=1, text=text)
        self.assertEqual(len(out.splitlines()), 21)
        self.assertEqual([json.loads(line)["id"] for line in out.splitlines() if b"error" in line], [77])
        self.assertIn("standard input: no requests", self.run_job(code=USAGE, text=b"")[1])

    def test_what_needs_files_is_refused(self):
        for flags, words in ((["--resume"], "--resume"), (["--ordered"], "--ordered"),
                             (["--durability", "power"], "--durability power"), (["--report", "-"], "--report -"),
                             (["--trace", "-"], "--trace -")):
            out, said = self.run_job(*flags, code=USAGE)
            self.assertEqual(out, b"")
            self.assertIn(words, said)
            self.assertEqual(said.count("\n"), 1, said)
        self.assertFalse((self.folder / "-").exists())

    def test_standard_output_that_is_a_file_of_the_job(self):
        with self.input.open("ab") as file:
            _, said = self.run_job(code=USAGE, input=self.input, stdout=file)
        self.assertIn("standard output is", said)
        self.assertEqual(read_lines(self.input), self.requests)

    def test_a_full_device(self):
        with open("/dev/full", "wb") as full:
            _, said = self.run_job(code=IO, stdout=full)
        self.assertIn("standard output cannot be written", said)

    def test_a_closed_output(self):
        words = " ".join(map(str, self.command(input=self.input)))
        done = subprocess.run(["sh", "-c", f"exec {words} >&-"], stderr=subprocess.PIPE, timeout=HANGS, cwd=self.folder)
        self.assertEqual(done.returncode, IO, done.stderr)
        self.assertIn(b"standard output cannot be written", done.stderr)

    def test_a_reader_that_goes(self):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "wb") as pipe:
            _, said = self.run_job(code=IO, stdout=pipe)
        self.assertIn("its reader has gone", said)

    def test_a_reader_that_waits_does_not_keep_a_run_from_stopping(self):
        write_lines(self.input, [{"id": i, "prompt_ids": [3, 4], "max_tokens": 40} for i in range(1500)])
        read, write = os.pipe()  # holds 64 KiB
        process = subprocess.Popen(self.command(input=self.input), stdout=write, stderr=subprocess.PIPE, cwd=self.folder)
        os.close(write)
        waiting = array.array("i", [0])  # bytes in the pipe
        while waiting[0] < 40_000:  # the next lines but a few no longer fit
            self.assertIsNone(process.poll(), "it ended before the pipe was full")
            time.sleep(0.01)
            fcntl.ioctl(read, termios.FIONREAD, waiting)
        time.sleep(1)
        self.assertIsNone(process.poll(), "it did not wait for its reader")
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=HANGS)
        os.close(read)
        self.assertLess(time.monotonic() - begin, 10 * crowding())
        self.assertEqual(process.returncode, STOPPED, said)
        self.assertIn(b"went to standard output", said)

    def test_a_writer_that_waits_does_not_keep_a_run_from_stopping(self):
        process = subprocess.Popen(self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdin.write(b'{"id":1,"prompt_ids":[3]}\n')
        process.stdin.flush()
        wait_until_it_listens(process)
        time.sleep(0.2)  # until it waits
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(HANGS), STOPPED)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()

    def test_the_spool_is_private_and_leaves_nothing(self):
        spool = self.folder / "spool"
        spool.mkdir()
        environment = {**os.environ, "TMPDIR": str(spool)}
        process = subprocess.Popen(self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment)
        process.stdin.write(b'{"id":1,"prompt_ids":[3]}\n')
        process.stdin.flush()
        held = []
        while not held:
            self.assertIsNone(process.poll())
            time.sleep(0.01)
            held = [link for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir() if str(spool) in os.readlink(link)]
        self.assertEqual((len(held), list(spool.iterdir())), (1, []))
        self.assertEqual(held[0].stat().st_mode & 0o777, 0o600)
        out, said = process.communicate(timeout=HANGS)
        self.assertEqual(process.returncode, 0, said)
        self.assertEqual(len(out.splitlines()), 1)
        _, said = self.run_job(code=IO, env={**environment, "TMPDIR": str(self.folder / "none")})
        self.assertIn("TMPDIR", said)


class Commands(Case):
    def test_tokenize(self):
        demo = SOURCE / "models" / "demo"
        texts = b'{"text":"It was"}\n{"text":"The"}\n'
        done = WEFT.run("tokenize", "--model", demo, "--input", "-", "--output", "-", input=texts)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([line["id"] for line in lines], ["0", "1"])
        done = WEFT.run("tokenize", "--model", demo, "--input", "-", "--output", "-", input=b'{"txt":""}\n')
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"standard input:1", done.stderr)

    def test_merge(self):
        parts = [self.folder / f"{k}.jsonl" for k in (1, 2)]
        for k, part in enumerate(parts, 1):
            self.run_job("--shard", f"{k}/2", output=part)
        done = WEFT.run("merge", "--input", "-", "--output", "-", *parts, input=self.input.read_bytes(), cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([json.loads(line)["id"] for line in done.stdout.splitlines()], list(range(20)))
        self.assertFalse((self.folder / "-").exists())

    def test_the_rest_is_no_pipe(self):
        demo = SOURCE / "models" / "demo"
        machine = SOURCE / "configs/machines/cpu.json"
        for arguments in (["convert", "--model", demo, "--output", "-"],
                          ["plan", "--model", demo, "--machine", machine, "--output", "-"],
                          ["plan", "--model", demo, "--machine", machine, "--report", "-"],
                          ["bench", "--model", demo, "--report", "-"]):
            done = WEFT.run(*arguments, cwd=self.folder)
            self.assertEqual(done.returncode, USAGE, done.stderr)
            self.assertIn(b" -: this is not written to standard output", done.stderr)
            self.assertFalse((self.folder / "-").exists())


if __name__ == "__main__":
    WEFT, SOURCE = Weft(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
