#!/usr/bin/env python3
"""weft serve-batches as clients meet it: files, batches, models, refusals, cancelled batches, a server that is killed at
random moments and started again; and PyPI's client openai, where it is installed.

Usage: serve_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]; WEFT_TEST_KILLS says how many kills (6)
"""

import importlib.util
import json
import os
import pathlib
import random
import re
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, read_lines  # noqa: E402

WEFT = SOURCE = None
SKIPPED = 77  # what ctest takes for it
LAID_OUT = ["--backend", "cpu", "--threads", "1", "--gpu-batch-size", "2", "--num-gpu-batches", "1", "--percent"]
FAST, SLOW = [*LAID_OUT, *"100 0 100 0 100 0".split()], [*LAID_OUT, *"0 0 100 0 100 0".split()]
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
        return WEFT.command("serve-batches", "--model", SOURCE / "models" / "demo", "--dir", self.folder / "dir", "--port",
                            self.port, *flags, "--", *self.flags)

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
        done = WEFT.run("generate", "--model", SOURCE / "models" / "demo", "--input", path, "--output", self.folder / "out.jsonl",
                        "--quiet", *self.flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {line["custom_id"]: line["response"]["body"]["choices"] for line in read_lines(self.folder / "out.jsonl")}


class Api(Case):
    def test_from_upload_to_download(self):
        models = self.start()
        self.assertEqual([model["id"] for model in models["data"]], ["demo"])
        self.assertEqual(self.ask("/models/demo")["owned_by"], "weft")
        bad = lines_of(1, tokens=-1, start=9)
        file = self.upload(lines_of(5) + bad)
        self.assertEqual(self.ask(f"/files/{file['id']}/content"), lines_of(5) + bad)
        batch = self.create(file["id"], metadata={"a": "b"})
        self.assertEqual(batch["status"], "validating")
        done = self.wait(batch["id"])
        self.assertEqual((done["status"], done["metadata"], done["request_counts"]),
                         ("completed", {"a": "b"}, {"total": 6, "completed": 5, "failed": 1}))
        answers = self.answers(done["output_file_id"])
        self.assertEqual({key: answer["body"]["choices"] for key, answer in answers.items()}, self.of_generate(lines_of(5)))
        self.assertEqual({key: answer["status_code"] for key, answer in self.answers(done["error_file_id"]).items()}, {"r9": 400})
        self.assertEqual(self.ask(f"/files/{file['id']}", method="DELETE")["deleted"], True)
        self.refused(404, "there is no file", lambda: self.ask(f"/files/{file['id']}"))
        self.kill(signal.SIGTERM)
        self.start()
        self.assertEqual(self.ask(f"/batches/{batch['id']}"), done)
        self.assertEqual(self.answers(done["output_file_id"]), answers)
        self.assertEqual(list((self.folder / "dir" / "batches").iterdir()), [self.folder / "dir/batches" / (batch["id"] + ".json")])

    def test_lists(self):
        self.start()
        files = [self.upload(lines_of(1))["id"] for _ in range(3)]
        batches = [self.create(file)["id"] for file in files]
        self.assertEqual({file["id"] for file in self.ask("/files?purpose=batch")["data"]}, set(files))
        page = self.ask("/batches?limit=2")
        self.assertEqual(([batch["id"] for batch in page["data"]], page["has_more"]), ([batches[2], batches[1]], True))
        rest = self.ask(f"/batches?limit=2&after={page['last_id']}")
        self.assertEqual(([batch["id"] for batch in rest["data"]], rest["has_more"]), ([batches[0]], False))
        self.refused(400, "'limit' must be", lambda: self.ask("/batches?limit=0"))
        for batch in batches:
            self.wait(batch)

    def test_what_is_refused(self):
        self.key = "secret"
        self.start("--api-key", "secret")
        file = self.upload(lines_of(2))["id"]
        for code, words, call in [
                (400, "'purpose' must be batch, got", lambda: self.upload("x", purpose="assistants")),
                (400, "unknown field", lambda: self.upload("x", name="data")),
                (400, "wanted multipart", lambda: self.ask("/files", b"{}")),
                (404, "there is no file", lambda: self.create("file-none")),
                (404, "there is no batch", lambda: self.ask("/batches/none")),
                (404, "there is no model", lambda: self.ask("/models/none")),
                (404, "there is nothing at", lambda: self.ask("/chat")),
                (400, "'endpoint' must be", lambda: self.create(file, "/v1/embeddings")),
                (400, "unknown field", lambda: self.create(file, more=1)),
                (400, "'metadata' must be", lambda: self.create(file, metadata={"a": 1})),
                (400, "the body", lambda: self.ask("/batches", b"{")),
                (403, "only programs on this machine", lambda: self.ask("/models", headers={"Origin": "http://a"})),
                (403, "only programs on this machine", lambda: self.ask("/models", headers={"Host": "a.example"}))]:
            with self.subTest(words):
                self.refused(code, words, call)
        for text, words in [(lines_of(1) + "nonsense\n", "not a JSON object"), ("", "no requests"),
                            (lines_of(1, url="/v1/chat/completions"), "'url' must be that of the batch")]:
            failed = self.wait(self.create(self.upload(text)["id"])["id"])
            self.assertEqual(failed["status"], "failed")
            self.assertIn(words, failed["errors"]["data"][0]["message"])
        self.key = "other"
        self.refused(401, "the API key", lambda: self.ask("/models"))

    def test_what_ends_at_once(self):
        self.start()
        for flags, words in [([], "another weft serve-batches works there"), (["--dir", self.folder / "b"], "is taken")]:
            done = subprocess.run(self.command(*flags), capture_output=True, text=True, timeout=HANGS) if not flags else \
                WEFT.run("serve-batches", "--model", SOURCE / "models/demo", "--port", self.port, *flags, text=True)
            self.assertEqual((done.returncode, words in done.stderr), (2, True), done.stderr)
        for flags, words in [(["--", "--retention", "h3o"], "h3o"), (["--", "--output=x"], "--output is set by serve-batches"),
                             (["--port", 0], "--port must be")]:
            done = WEFT.run("serve-batches", "--model", SOURCE / "models/demo", "--dir", self.folder / "c", *flags, text=True)
            self.assertEqual((done.returncode, words in done.stderr), (2, True), done.stderr)


class Ends(Case):
    flags = SLOW

    def test_cancelled_batches(self):
        self.start()
        running = self.create(self.upload(lines_of(24, 24))["id"])["id"]
        waiting = self.create(self.upload(lines_of(2))["id"])["id"]
        self.assertEqual(self.ask(f"/batches/{waiting}/cancel", b"")["status"], "cancelled")
        while self.ask(f"/batches/{running}")["request_counts"]["completed"] < 2:
            time.sleep(0.05)
        self.refused(409, "is the input of a batch", lambda: self.ask(
            f"/files/{self.ask(f'/batches/{running}')['input_file_id']}", method="DELETE"))
        self.assertEqual(self.ask(f"/batches/{running}/cancel", b"")["status"], "cancelling")
        done = self.wait(running)
        self.assertEqual(done["status"], "cancelled")
        answers = self.answers(done["output_file_id"])
        self.assertEqual(len(answers), done["request_counts"]["completed"])
        self.assertTrue(2 <= len(answers) < 24, len(answers))
        self.refused(409, "is over", lambda: self.ask(f"/batches/{running}/cancel", b""))

    def test_kills_lose_and_double_nothing(self):
        kills, seed = int(os.environ.get("WEFT_TEST_KILLS", 6)), int(os.environ.get("WEFT_TEST_SEED", time.time()))
        print(f"{kills} kills, WEFT_TEST_SEED={seed}", flush=True)
        draw = random.Random(seed)
        texts, batches, killed = {}, {}, 0
        sizes = [3] * (kills // 2) + [12, 20, 8]
        while killed < kills or len(batches) < len(sizes):
            self.start()
            until = time.monotonic() + draw.choice([0, 0.02, 0.1, 0.3, 0.6, 1.2])
            while len(batches) < len(sizes) and time.monotonic() < until:
                text = lines_of(sizes[len(batches)], 16, start=draw.randrange(100))
                file = self.upload(text)["id"]
                batch = self.create(file)["id"]
                texts[batch], batches[batch] = text, file
            time.sleep(max(0, until - time.monotonic()))
            self.kill()
            killed += 1
        self.start()
        for batch, file in batches.items():
            done = self.wait(batch)
            self.assertEqual((done["status"], done["input_file_id"], done["error_file_id"]), ("completed", file, None))
            answers = self.ask(f"/files/{done['output_file_id']}/content").splitlines()
            self.assertEqual(sorted(json.loads(line)["custom_id"] for line in answers),
                             sorted(json.loads(line)["custom_id"] for line in texts[batch].splitlines()))
        self.assertEqual(len(self.ask("/batches?limit=1000")["data"]), len(batches))
        self.assertEqual(len(self.ask("/files?limit=1000")["data"]), 2 * len(batches))
        longest = max(texts, key=lambda batch: len(texts[batch]))
        found = self.answers(self.ask(f"/batches/{longest}")["output_file_id"])
        self.assertEqual({key: answer["body"]["choices"] for key, answer in found.items()}, self.of_generate(texts[longest]))


class Client(Case):
    @unittest.skipUnless(importlib.util.find_spec("openai"), "openai is not installed")
    def test_the_example_of_the_page(self):
        self.key = "secret"
        self.start("--api-key", "secret")
        (example,) = re.findall(r"(?ms)^```python\n(.*?)^```", (SOURCE / "docs" / "serve.md").read_text())
        done = subprocess.run([sys.executable, "-c", example.replace("8321", str(self.port))], cwd=SOURCE, capture_output=True,
                              text=True, timeout=HANGS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count('"custom_id"'), len((SOURCE / "configs/examples/openai.jsonl").read_text().splitlines()))

    @unittest.skipUnless(importlib.util.find_spec("openai"), "openai is not installed")
    def test_openais_client(self):
        import openai
        self.key = "secret"
        self.start("--api-key", "secret")
        with openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="secret", max_retries=0) as client:
            self.assertEqual([model.id for model in client.models.list()], ["demo"])
            file = client.files.create(file=("in.jsonl", lines_of(4).encode()), purpose="batch")
            batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h",
                                          metadata={"job": "test"})
            self.wait(batch.id)
            batch = client.batches.retrieve(batch.id)
            self.assertEqual((batch.status, batch.request_counts.completed), ("completed", 4))
            lines = client.files.content(batch.output_file_id).text.splitlines()
            self.assertEqual({json.loads(line)["custom_id"] for line in lines}, {"r0", "r1", "r2", "r3"})
            more = [client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h").id
                    for _ in range(3)]
            with self.assertRaises(openai.ConflictError):
                client.batches.cancel(batch.id)
            client.batches.cancel(more[2])
            self.assertEqual([each.id for each in client.batches.list(limit=1)], [*reversed(more), batch.id])
            self.assertIn(self.wait(more[2])["status"], ("cancelled", "completed"))
            self.wait(more[1])
            self.assertIn(file.id, [each.id for each in client.files.list(purpose="batch")])
            self.assertTrue(client.files.delete(file.id).deleted)
        with openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="x", max_retries=0) as client:
            with self.assertRaises(openai.AuthenticationError):
                client.models.list()


if __name__ == "__main__":
    WEFT, SOURCE = Weft(os.path.abspath(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
    if b"built without" in WEFT.run("serve-batches", "--model", "x", "--dir", "x").stderr:
        print("skipped: this weft was built without cpp-httplib")
        sys.exit(SKIPPED)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
