#!/usr/bin/env python3
"""weft serve-batches as clients meet it: files, batches, models, refusals, cancelled batches, and PyPI's client openai, where
it is installed.

Usage: serve_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from batch_server import SLOW, Case, lines_of, main  # noqa: E402
from weft_process import HANGS  # noqa: E402


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
        for _ in range(20):  # a page of files has 10,000 without a limit
            files.append(self.upload("\n")["id"])
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
                self.weft.run("serve-batches", "--model", self.source / "models/demo", "--port", self.port, *flags, text=True)
            self.assertEqual((done.returncode, words in done.stderr), (2, True), done.stderr)
        for flags, words in [(["--", "--retention", "h3o"], "h3o"), (["--", "--output=x"], "--output is set by serve-batches"),
                             (["--port", 0], "--port must be")]:
            done = self.weft.run("serve-batches", "--model", self.source / "models/demo", "--dir", self.folder / "c", *flags, text=True)
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


class Client(Case):
    @unittest.skipUnless(importlib.util.find_spec("openai"), "openai is not installed")
    def test_the_example_of_the_page(self):
        self.key = "secret"
        self.start("--api-key", "secret")
        (example,) = re.findall(r"(?ms)^```python\n(.*?)^```", (self.source / "docs" / "serve.md").read_text())
        done = subprocess.run([sys.executable, "-c", example.replace("8321", str(self.port))], cwd=self.source, capture_output=True,
                              text=True, timeout=HANGS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count('"custom_id"'), len((self.source / "configs/examples/openai.jsonl").read_text().splitlines()))

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
    main()
