"""weft serve-batches as tests of it start it: a server in a folder of its own, and what its clients ask."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from weft_process import HANGS, Weft, read_lines

LAID_OUT = ["--backend", "cpu", "--threads", "1", "--gpu-batch-size", "2", "--num-gpu-batches", "1", "--percent"]
FAST, SLOW = [*LAID_OUT, *"100 0 100 0 100 0".split()], [*LAID_OUT, *"0 0 100 0 100 0".split()]
SKIPPED = 77  # what ctest takes for it
OVER = {"completed", "failed", "cancelled"}


def lines_of(count, tokens=4, url="/v1/completions", start=0):
    return "".join(json.dumps({"custom_id": f"r{n}", "method": "POST", "url": url, "body": {
        "model": "demo", "prompt": f"It was {n}", "max_tokens": tokens, "temperature": 0}}) + "\n"
        for n in range(start, start + count))


class Refused(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Case(unittest.TestCase):
    """main() sets `weft`, the program, and `source`, the project's folder."""

    weft = source = None
    flags = FAST

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-serve-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.server, self.key = None, None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.addCleanup(self.kill)

    def command(self, *flags):
        return self.weft.command("serve-batches", "--model", self.source / "models" / "demo", "--dir", self.folder / "dir",
                                 "--port", self.port, *flags, "--", *self.flags)

    def start(self, *flags):
        self.server = subprocess.Popen(self.command(*flags), stderr=subprocess.PIPE)
        until = time.monotonic() + HANGS
        while time.monotonic() < until:
            assert self.server.poll() is None, self.server.stderr.read()
            try:
                return self.ask("/models")
            except (ConnectionError, urllib.error.URLError):
                time.sleep(0.02)
        raise AssertionError("it does not listen")

    def kill(self, with_signal=signal.SIGKILL):
        if self.server:
            self.server.send_signal(with_signal)
            self.server.wait(HANGS)
            self.server.stderr.close()
            self.server = None

    def ask(self, path, body=None, method=None, headers=None):
        head = {"Content-Type": "application/json", **(headers or {})}
        if self.key:
            head["Authorization"] = f"Bearer {self.key}"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1{path}", data, head, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                got = answer.read()
                return json.loads(got) if answer.headers["Content-Type"] == "application/json" else got.decode()
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, json.load(error)["error"]["message"]) from None

    def upload(self, text, purpose="batch", name="file"):
        parts = [("purpose", "", purpose), (name, '; filename="in.jsonl"', text)]
        body = "".join(f'--xyz\r\nContent-Disposition: form-data; name="{field}"{more}\r\n\r\n{value}\r\n'
                       for field, more, value in parts) + "--xyz--\r\n"
        return self.ask("/files", body.encode(), headers={"Content-Type": "multipart/form-data; boundary=xyz"})

    def create(self, file, endpoint="/v1/completions", **more):
        return self.ask("/batches", {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h", **more})

    def wait(self, batch):
        until = time.monotonic() + HANGS
        while (now := self.ask(f"/batches/{batch}"))["status"] not in OVER and time.monotonic() < until:
            time.sleep(0.05)
        return now

    def answers(self, file):
        return {line["custom_id"]: line["response"] for line in map(json.loads, self.ask(f"/files/{file}/content").splitlines())}

    def refused(self, code, words, call):
        with self.assertRaises(Refused) as caught:
            call()
        self.assertEqual((caught.exception.code, words in str(caught.exception)), (code, True), str(caught.exception))

    def of_generate(self, text):
        path = self.folder / "in.jsonl"
        path.write_text(text)
        done = self.weft.run("generate", "--model", self.source / "models" / "demo", "--input", path, "--output", self.folder / "out.jsonl",
                        "--quiet", *self.flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {line["custom_id"]: line["response"]["body"]["choices"] for line in read_lines(self.folder / "out.jsonl")}


def main():
    """Runs the tests of the script that was started as SCRIPT WEFT_BINARY SOURCE_FOLDER [unittest arguments]."""
    Case.weft, Case.source = Weft(os.path.abspath(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
    if b"built without" in Case.weft.run("serve-batches", "--model", "x", "--dir", "x").stderr:
        print("skipped: this weft was built without cpp-httplib")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
