#!/usr/bin/env python3
"""The door of weft serve-batches against clients that mean harm or are broken: heads and bodies that are huge, wrong or cut
short, names that lead elsewhere, thousands of files, many clients at once. Each gets an error of OpenAI's form, the server
goes on with little memory, and its folder has nothing of them.

Usage: door_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]; WEFT_TEST_FILES says how many small files (100)
"""

import concurrent.futures
import gzip
import json
import os
import pathlib
import re
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from batch_server import Case as ServerCase, Refused, lines_of, main  # noqa: E402

MOST_MIB = 96  # that the server may ever have had, its libraries included
PIECE = b"x" * (1 << 16)
FORM = "Content-Type: multipart/form-data; boundary=xyz"


def part(name, value, more=""):
    return f'--xyz\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'


GOOD = part("purpose", "batch") + part("file", lines_of(1), '; filename="in.jsonl"') + "--xyz--\r\n"


class Case(ServerCase):
    def setUp(self):
        super().setUp()
        self.start()

    def tearDown(self):
        """Whatever a test did, the server is well and has what it was told to keep."""
        self.assertEqual(self.ask("/models")["data"][0]["id"], "demo")
        kept = {file["id"] for file in self.ask("/files")["data"]}
        batches = {batch["id"] for batch in self.ask("/batches")["data"]}
        found = {str(path.relative_to(self.folder / "dir")) for path in (self.folder / "dir").glob("**/*") if path.is_file()}
        self.assertEqual(found, {"lock", *(f"files/{id}.json" for id in kept), *(f"files/{id}.jsonl" for id in kept),
                                 *(f"batches/{id}.json" for id in batches)})
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"dir"})
        if self.weft.sanitized():
            return
        peak = int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{self.server.pid}/status").read_text())[1]) >> 10
        self.assertLess(peak, MOST_MIB)

    def raw(self, *pieces, until=60):
        """What comes back for these bytes: status, head and body; a peer that closes first is no error."""
        with socket.create_connection(("127.0.0.1", self.port), until) as peer:
            try:
                for piece in pieces:
                    peer.sendall(piece.encode() if isinstance(piece, str) else piece)
                peer.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            got = b""
            try:
                while piece := peer.recv(1 << 16):
                    got += piece
            except ConnectionResetError:
                pass
        head, _, body = got.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 (\d+) ", head)
        return (int(status[1]) if status else None), head.decode(), body

    def refused_raw(self, statuses, words, *pieces):
        """The answer is one error as OpenAI's clients read it."""
        status, head, body = self.raw(*pieces)
        self.assertIn(status, statuses, (head, body[:200]))
        self.assertIn("Content-Type: application/json", head)
        self.assertEqual(head.count("HTTP/1.1"), 1)
        error = json.loads(body)["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertTrue(error["message"] and error["type"])
        self.assertIn(words, error["message"])

    def head(self, line, *headers):
        return "".join(f"{each}\r\n" for each in [line + " HTTP/1.1", "Host: 127.0.0.1", *headers]) + "\r\n"

    def post(self, path, body, *headers):
        body = body.encode() if isinstance(body, str) else body
        return self.head(f"POST /v1{path}", f"Content-Length: {len(body)}", *headers).encode() + body


class Heads(Case):
    def test_wrong_ones(self):
        for statuses, words, pieces in [
                ({400}, "", ["nonsense\r\n\r\n"]),
                ({400}, "", ["\x00\xff\r\n\r\n"]),
                ({400}, "", [self.head("BREW /v1/files")]),
                ({404}, "", [self.head("PUT /v1/files", "Content-Length: 0")]),
                ({404}, "", [self.head("PATCH /v1/files/x", "Content-Length: 0")]),
                ({403}, "only programs on this machine", ["GET /v1/files HTTP/1.1\r\n\r\n"]),
                ({414, 431}, "", [self.head("GET /v1/files/" + "x" * 100_000)]),
                ({431}, "", [self.head("GET /v1/files", "X: " + "x" * 100_000)]),
                ({431}, "", [self.head("GET /v1/files", *(f"X{n}: y" for n in range(100_000)))]),
                ({416}, "", [self.head("GET /v1/files", "Range: bytes=9-1")]),
                ({416}, "", [self.head("GET /v1/files", "Range: bytes=" + "0-1," * 1000)])]:
            with self.subTest(pieces[0][:60]):
                self.refused_raw(statuses, words, *pieces)

    def test_without_an_end(self):
        for begin, piece in [("GET /v1/files HTTP/1.1\r\nX: ", PIECE), ("GET /", PIECE),
                             ("GET /v1/files HTTP/1.1\r\n", b"X: y\r\n" * 10_000)]:
            with self.subTest(begin):
                self.refused_raw({431, 414}, "", begin, *[piece] * 100)

    def test_slow_ones_do_not_keep_others_out(self):
        idle = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(20)]
        try:
            for peer in idle:
                peer.sendall(b"GET /v1/files HTTP/1.1\r\nX:")
            self.assertEqual(self.ask("/models")["object"], "list")
        finally:
            for peer in idle:
                peer.close()


class Paths(Case):
    def test_none_leads_elsewhere(self):
        (self.folder / "dir" / "secret.jsonl").write_text("secret")
        for path in ["/v1/files/../secret/content", "/v1/files/..%2Fsecret/content", "/v1/files/%2e%2e%2fsecret/content",
                     "/v1/files//etc/passwd/content", "/v1/models/../files", "/v1/batches/../../x", "/v1/files/..", "/..",
                     "/v1/files/a%00b/content", "/v1/models/%ff", "*", "http://127.0.0.1/v1/files/../x"]:
            with self.subTest(path):
                self.refused_raw({404, 400}, "", self.head(f"GET {path}"))
                self.refused_raw({404, 400}, "", self.head(f"DELETE {path}"))
        (self.folder / "dir" / "secret.jsonl").unlink()

    def test_names_of_uploads_are_only_names(self):
        for name in ["../../x", "/etc/passwd", "a/b", "x" * 4000, "", "\xff\x00", "%2e%2e", "a\tb", "\u00e4\u65e5"]:
            body = part("file", "text", f'; filename="{name}"') + part("purpose", "batch") + "--xyz--\r\n"
            for encoding in "utf-8", "latin-1":
                try:
                    body_bytes = body.encode(encoding)
                except UnicodeEncodeError:
                    continue
                with self.subTest((name[:20], encoding)):
                    status, _, answer = self.raw(self.post("/files", body_bytes, FORM))
                    self.assertEqual(status, 200, answer)
                    file = json.loads(answer)
                    self.assertEqual(self.ask(f"/files/{file['id']}/content"), "text")
                    if encoding == "utf-8" and name:
                        self.assertEqual(file["filename"], name)


class Bodies(Case):
    def test_of_the_wrong_kind(self):
        asked = json.dumps({"input_file_id": "x", "endpoint": "/v1/completions", "completion_window": "24h"})
        for statuses, words, pieces in [
                ({404}, "there is no file", [self.post("/batches", asked, "Content-Type: text/plain")]),  # the body counts
                ({404}, "there is no file", [self.post("/batches", asked)]),
                ({400, 413}, "", [self.post("/batches", "a=b&" * 9000, "Content-Type: application/x-www-form-urlencoded")]),
                ({400}, "the body", [self.post("/batches", GOOD, FORM)]),
                ({400}, "multipart", [self.post("/files", "{}", "Content-Type: application/json")]),
                ({400}, "multipart", [self.post("/files", "{}")]),
                ({400}, "", [self.post("/files", GOOD, "Content-Type: multipart/form-data")]),
                ({400}, "", [self.post("/files", GOOD, "Content-Type: multipart/form-data; boundary=")]),
                ({400}, "", [self.post("/files", GOOD, "Content-Type: multipart/form-data; boundary=other")]),
                ({400, 415}, "Content-Encoding", [self.post("/files", gzip.compress(GOOD.encode()), FORM, "Content-Encoding: gzip")]),
                ({400, 415}, "Content-Encoding", [self.post("/batches", gzip.compress(b"[" * 10_000_000), "Content-Encoding: gzip")]),
                ({400}, "the body", [self.post("/batches", b"\xff" * 100)]),
                ({400}, "the body", [self.post("/batches", "[" * 100_000)]),
                ({413}, "", [self.head("POST /v1/batches", "Content-Length: 1000000000000")]),
                ({413}, "", [self.head("POST /v1/nothing", "Content-Length: 1000000000000"), PIECE]),
                ({411, 413}, "", [self.head("POST /v1/batches", "Transfer-Encoding: chunked"), *[b"10000\r\n" + PIECE + b"\r\n"] * 800]),
                ({400, 411}, "", [self.head("POST /v1/batches")])]:
            with self.subTest(pieces[0][:120]):
                self.refused_raw(statuses, words, *pieces)

    def test_cut_short(self):
        whole = self.post("/files", GOOD, FORM)
        begin = whole.index(b"\r\n\r\n") + 4
        for end in [begin, begin + 1, begin + 10, (begin + len(whole)) // 2, len(whole) - 1]:
            with self.subTest(end):
                self.refused_raw({400}, "", whole[:end])
        for length in "-1", "abc", "1e3", "99999999999999999999999999", "10, 20":
            with self.subTest(length):
                self.refused_raw({400, 413}, "", self.head("POST /v1/files", f"Content-Length: {length}", FORM), GOOD)
                self.refused_raw({400, 413}, "", self.head("POST /v1/batches", f"Content-Length: {length}"), "{}")
        for body in ["5\r\nab", "zz\r\nab\r\n0\r\n\r\n", "ffffffffffffffff\r\nab", "-5\r\nab\r\n0\r\n\r\n", "0\r\n\r\n", ""]:
            with self.subTest(body):
                self.refused_raw({400}, "", self.head("POST /v1/files", "Transfer-Encoding: chunked", FORM), body)
        chunked = f"{len(GOOD):x}\r\n{GOOD}\r\n0\r\n\r\n"  # a sound one
        self.assertEqual(self.raw(self.head("POST /v1/files", "Transfer-Encoding: chunked", FORM), chunked)[0], 200)

    def test_forms_without_an_end(self):
        for body in [part("file", "text"), part("file", "text") + "--xyz", "--xyz\r\nContent-Disposition: form-data",
                     "--xyz\r\n" + "X: y\r\n" * 1000, "\r\n" * 1000, part("file", "a") + part("file", "b") + "--xyz--\r\n",
                     part("purpose", "batch") + "--xyz--\r\n", part("purpose", "batch" * 100) + part("file", "a") + "--xyz--\r\n",
                     part("file", "a") + part("other", "a" * 10_000) + "--xyz--\r\n"]:
            with self.subTest(body[:60]):
                self.refused_raw({400}, "", self.post("/files", body, FORM))
        for begin, piece in [("--xyz\r\nContent-Disposition: ", PIECE), ("--xyz\r\n", b"X: y\r\n" * 10_000), ("", PIECE),
                             (part("file", "a") + "--xyz", PIECE), (part("purpose", "batch"), PIECE), ("", part("z", "y").encode() * 500)]:
            with self.subTest(begin):
                self.refused_raw({400, 413}, "", self.head("POST /v1/files", f"Content-Length: {1 << 40}", FORM), begin,
                                 *[piece] * (1500 if begin.endswith("--xyz") else 150))


class Numbers(Case):
    def test_many_small_files(self):
        count = int(os.environ.get("WEFT_TEST_FILES", 100))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            files = list(pool.map(lambda n: self.upload(lines_of(1, start=n))["id"], range(count)))
        self.assertEqual(len(set(files)), count)
        begin = time.monotonic()
        self.kill()
        self.start()
        print(f"{count} files: the start took {time.monotonic() - begin:.1f} s", flush=True)
        seen, after = [], ""
        while True:
            page = self.ask(f"/files?limit=100{after}")
            seen += [file["id"] for file in page["data"]]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        self.assertEqual(set(seen), set(files))
        self.assertEqual(len(seen), count)
        self.assertEqual(self.ask(f"/files/{files[count // 2]}/content"), lines_of(1, start=count // 2))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            self.assertTrue(all(pool.map(lambda id: self.ask(f"/files/{id}", method="DELETE")["deleted"], files)))
        self.assertEqual(self.ask("/files")["data"], [])

    def test_clients_at_once(self):
        def client(number):
            text = lines_of(2, start=10 * number)
            file, gone = self.upload(text)["id"], self.upload("gone")["id"]
            batch = self.create(file)
            self.ask(f"/files/{gone}", method="DELETE")
            done = self.wait(batch["id"])
            answers = self.answers(done["output_file_id"])
            return batch["id"], file, done["status"], set(answers), {json.loads(line)["custom_id"] for line in text.splitlines()}

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = list(pool.map(client, range(4)))
        for batch, file, status, got, wanted in results:
            self.assertEqual((status, got), ("completed", wanted))
        self.assertEqual(len({file for _, file, *_ in results}), 4)
        self.assertEqual({batch["id"] for batch in self.ask("/batches")["data"]}, {batch for batch, *_ in results})

    def test_one_batch_deleted_and_cancelled_by_many(self):
        file = self.upload(lines_of(40, 24))["id"]
        batch = self.create(file)["id"]

        def ask(*arguments, **options):
            try:
                self.ask(*arguments, **options)
                return 200
            except Refused as error:
                return error.code

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, f"/batches/{batch}/cancel", b"") for _ in range(4)]
            asked += [pool.submit(ask, f"/files/{file}", method="DELETE") for _ in range(4)]
            codes = [each.result() for each in asked]
        self.assertTrue(set(codes) <= {200, 404, 409}, codes)
        self.assertEqual(self.wait(batch)["status"], "cancelled")


if __name__ == "__main__":
    main()
