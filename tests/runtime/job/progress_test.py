#!/usr/bin/env python3
"""What a run shows while it works: on a terminal, in a log, and at its end.

Usage: progress_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import fcntl
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, write_lines  # noqa: E402

WEFT = None
SOURCE = None


class Case(unittest.TestCase):
    TOKENS = 100  # of each answer

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-progress-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"
        write_lines(self.input, [{"id": i, "prompt": "It was a long day. " * 3, "max_tokens": self.TOKENS} for i in range(48)])

    def command(self, *flags):
        return WEFT.command("generate", "--model", SOURCE / "models" / "demo", "--input", self.input, "--output",
                            self.output, "--backend", "cpu", "--threads", 1, *flags)

    def on_terminal(self, columns, *flags, **environment):
        """All that a run writes to a terminal of this width."""
        for file in self.folder.glob("out.jsonl*"):
            file.unlink()
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(self.command(*flags), stderr=slave, stdout=slave, stdin=subprocess.DEVNULL,
                                   env={**os.environ, "TERM": "xterm", **environment})
        os.close(slave)
        said = b""
        try:
            while piece := os.read(master, 65536):
                said += piece
        except OSError:  # the other end is closed
            pass
        os.close(master)
        self.assertEqual(process.wait(60), 0, said)
        return said.decode()

    def drawn(self, said):
        """The lines that were drawn over each other: those that end where they began."""
        return re.findall(r"\r\x1b\[K([^\r\n]+)\r(?!\n)", said)


class Terminal(Case):
    TOKENS = 30
    # Six blocks from the disk, which take some seconds.
    SLOW = "--gpu-batch-size", 4, "--num-gpu-batches", 2, "--percent", 0, 0, 100, 0, 100, 0, "--no-overlap"

    def test_the_time_left_is_known_from_the_first_line_on(self):
        lines = self.drawn(self.on_terminal(200, *self.SLOW, "--machine", SOURCE / "configs/machines/cpu.json"))
        self.assertGreater(len(lines), 2)
        of_sweeps = [line for line in lines if "requests" in line and "ETA" in line]
        self.assertTrue(of_sweeps, lines)
        for line in of_sweeps:
            self.assertRegex(line, r"^\d+/48 requests, ETA \d+:\d\d, (prefill \d+ %|[\d.]+ tokens/s)")

    def test_a_narrow_terminal_is_not_flooded(self):
        for columns, environment in ((24, {}), (200, {"COLUMNS": "24"})):
            lines = self.drawn(self.on_terminal(columns, *self.SLOW, **environment))
            self.assertGreater(len(lines), 2)
            self.assertLess(max(map(len, lines)), 24)

    def test_quiet_draws_nothing(self):
        self.assertEqual(self.on_terminal(80, *self.SLOW, "--quiet"), "")


class Log(Case):
    def test_whole_lines_and_a_summary(self):
        done = subprocess.run(self.command("--gpu-batch-size", 8, "--num-gpu-batches", 1, "--percent", 100, 0, 100, 0, 100, 0),
                              capture_output=True, timeout=HANGS)
        said = done.stderr.decode()
        self.assertEqual(done.returncode, 0, said)
        self.assertNotIn("\r", said)
        self.assertNotIn("\x1b", said)
        self.assertRegex(said.splitlines()[-1], r"^weft: 48 of 48 requests answered, in \d+:\d\d; [\d.]+ tokens/s; the answers "
                                                f"are in {re.escape(str(self.output))}$")
        self.output.write_bytes(b"".join(self.output.read_bytes().splitlines(keepends=True)[:40]))
        write_lines(self.input, [{"id": i, "prompt": "It was a long day. " * 3, "max_tokens": 100} for i in range(48)]
                    + [{"id": 48, "prompt_ids": []}])
        done = subprocess.run(self.command("--gpu-batch-size", 8, "--num-gpu-batches", 1, "--percent", 100, 0, 100, 0, 100, 0,
                                           "--resume=force", "--on-bad-request", "record"), capture_output=True, timeout=HANGS)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr.decode(), "weft: 48 of 49 requests answered \\(40 of them by earlier runs\\), 1 without an "
                                               "answer, in ")


if __name__ == "__main__":
    WEFT, SOURCE = Weft(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
