#!/usr/bin/env python3
"""weft serve-batches killed (SIGKILL) while PyPI's client openai uploads, creates, waits for and downloads a batch, and
started again: each batch is completed, no line is lost or doubled, files are as they were sent, and nothing else is left.
Where openai is not installed, the same requests are made without it.

Usage: serve_kill_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]; WEFT_TEST_KILLS says how many kills (4),
WEFT_TEST_SEED which moments
"""

import http.client
import importlib.util
import json
import os
import pathlib
import random
import sys
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from batch_server import SLOW, Case as ServerCase, lines_of, main  # noqa: E402

STEPS = ["upload", "create", "run", "download"]
LINES = 10


class Bare:
    """What the test wants of a client, by urllib: for where openai is not installed."""

    def __init__(self, case):
        self.case = case

    def upload(self, content):
        return self.case.upload(content.decode())["id"]

    def create(self, file):
        return self.case.create(file)["id"]

    def batches(self):
        return {batch["id"]: batch["input_file_id"] for batch in self.case.ask("/batches?limit=1000")["data"]}

    def status(self, batch):
        found = self.case.ask(f"/batches/{batch}")
        return found["status"], found["request_counts"]["completed"], found["output_file_id"]

    def download(self, file, half_way):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.case.port}/v1/files/{file}/content", timeout=60) as answer:
            begin = answer.read(64)
            half_way()
            return begin + answer.read()


class OpenAi:
    errors = ()

    def __init__(self, case):
        import openai
        self.client = openai.OpenAI(base_url=f"http://127.0.0.1:{case.port}/v1", api_key="x", max_retries=0, timeout=60)
        below = sys.modules.get("httpx2") or sys.modules["httpx"]  # which one it stands on depends on its version
        OpenAi.errors = (openai.APIConnectionError, below.HTTPError)

    def upload(self, content):
        return self.client.files.create(file=("in.jsonl", content), purpose="batch").id

    def create(self, file):
        return self.client.batches.create(input_file_id=file, endpoint="/v1/completions", completion_window="24h").id

    def batches(self):
        return {batch.id: batch.input_file_id for batch in self.client.batches.list(limit=100)}

    def status(self, batch):
        found = self.client.batches.retrieve(batch)
        return found.status, found.request_counts.completed if found.request_counts else 0, found.output_file_id

    def download(self, file, half_way):
        with self.client.files.with_streaming_response.content(file) as answer:
            pieces = answer.iter_bytes(64)
            begin = next(pieces)
            half_way()
            return begin + b"".join(pieces)


class Case(ServerCase):
    flags = SLOW


class Kills(Case):
    def setUp(self):
        super().setUp()
        self.client = (OpenAi if importlib.util.find_spec("openai") else Bare)(self)
        self.lost = (ConnectionError, urllib.error.URLError, http.client.HTTPException, TimeoutError, *OpenAi.errors)
        self.killed = 0

    def kill_in(self, seconds):
        """Kills the server so much later, once."""
        server = self.server
        thread = threading.Timer(seconds, server.kill)
        thread.start()
        return thread

    def again(self):
        self.server.wait(60)
        self.server.stderr.close()
        self.server = None
        self.killed += 1
        self.start()

    def until_it_works(self, call, kill=None):
        """What a client does: it asks again once the server is there again. Kills amid the first try if asked to."""
        try:
            if kill is not None:
                timer = self.kill_in(kill)
            answer = call()
            if kill is None:
                return answer
            timer.join()
        except self.lost:
            answer = None
            timer.join()
        self.again()
        return answer

    def one_job(self, step, draw, number):
        content = "".join(lines_of(LINES, 6, start=number * LINES)) + "\n" * 400_000  # blank lines are no requests
        content = content.encode()
        amid = {"upload": draw.uniform(0, 0.05), "create": draw.uniform(0, 0.02)}
        file = self.until_it_works(lambda: self.client.upload(content), amid["upload"] if step == "upload" else None)
        file = file or self.client.upload(content)
        batch = self.until_it_works(lambda: self.client.create(file), amid["create"] if step == "create" else None)
        if batch is None:
            there = [id for id, of in self.client.batches().items() if of == file]
            self.assertLessEqual(len(there), 1)
            batch = there[0] if there else self.client.create(file)
        at = draw.randrange(LINES + 1) if step == "run" else None
        while True:
            status, done, output = self.client.status(batch)
            if at is not None and (done >= at or status == "completed"):
                time.sleep(draw.uniform(0, 0.1))
                self.server.kill()
                self.again()
                at = None
                continue
            if status == "completed":
                break
            self.assertIn(status, ("validating", "in_progress", "finalizing"))
            time.sleep(0.02)
        if step == "download":
            try:
                self.client.download(output, self.server.kill)
            except self.lost:
                pass
            self.again()
        return file, batch, content, output

    def test_nothing_is_lost_or_doubled(self):
        kills, seed = int(os.environ.get("WEFT_TEST_KILLS", 4)), int(os.environ.get("WEFT_TEST_SEED", time.time()))
        print(f"{kills} kills with {type(self.client).__name__}, WEFT_TEST_SEED={seed}", flush=True)
        draw = random.Random(seed)
        self.start()
        jobs = [self.one_job(STEPS[number % len(STEPS)], draw, number) for number in range(kills)]
        self.assertEqual(self.killed, kills)
        for number, (file, batch, content, output) in enumerate(jobs):
            self.assertEqual(self.ask(f"/files/{file}/content").encode(), content)
            done = self.ask(f"/batches/{batch}")
            self.assertEqual((done["status"], done["error_file_id"], done["output_file_id"]), ("completed", None, output))
            self.assertEqual(done["request_counts"], {"total": LINES, "completed": LINES, "failed": 0})
            lines = [json.loads(line) for line in self.client.download(output, lambda: None).splitlines()]
            self.assertEqual(sorted(int(line["custom_id"][1:]) for line in lines),
                             list(range(number * LINES, number * LINES + LINES)))
            found = {line["custom_id"]: line["response"]["body"]["choices"] for line in lines}
            if number == 0:
                self.assertEqual(found, self.of_generate(content.decode()))
        self.assertEqual(set(self.client.batches()), {batch for _, batch, *_ in jobs})
        kept = {file["id"] for file in self.ask("/files")["data"]}
        self.assertGreaterEqual(kept, {each for file, _, _, output in jobs for each in (file, output)})
        self.assertLessEqual(len(kept), 2 * len(jobs) + sum(STEPS[n % 4] == "upload" for n in range(kills)))
        found = {str(path.relative_to(self.folder / "dir")) for path in (self.folder / "dir").glob("**/*") if path.is_file()}
        self.assertEqual(found, {"lock", *(f"files/{id}{end}" for id in kept for end in (".json", ".jsonl")),
                                 *(f"batches/{batch}.json" for _, batch, *_ in jobs)})


if __name__ == "__main__":
    main()
