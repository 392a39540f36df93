#!/usr/bin/env python3
"""Request files of both dialects as users meet them: answers, refused requests, exit codes, resume.

Usage: request_files_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import gzip
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import Weft, read_lines, write_lines, write_tiny_model  # noqa: E402

WEFT = None
SOURCE = None
REFUSED, USAGE = 1, 2
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
          "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def completion(custom_id, prompt, **body):
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions",
            "body": {"model": "demo", "prompt": prompt, "temperature": 0, "max_tokens": 6, **body}}


def chat(custom_id, *turns, **body):
    messages = [{"role": role, "content": content} for role, content in turns]
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 6, **body}}


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-requests-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.demo = SOURCE / "models" / "demo"
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"

    def run_job(self, model, *flags, command="generate"):
        return WEFT.run(command, "--model", model, "--input", self.input, "--output", self.output, "--backend", "cpu",
                        "--quiet", "--gpu-batch-size", 4, "--num-gpu-batches", 1, "--percent", 100, 0, 100, 0, 100, 0,
                        *flags)

    def answers(self, model, *flags, code=0, key="id"):
        done = self.run_job(model, *flags)
        self.assertEqual(done.returncode, code, done.stderr)
        return {answer[key]: answer for answer in read_lines(self.output)}

    def refused(self, words, model, *flags):
        """Nothing ran and nothing was written; what was said."""
        before = sorted(self.folder.rglob("*"))
        done = self.run_job(model, *flags)
        said = done.stderr.decode()
        self.assertEqual(done.returncode, USAGE, said)
        self.assertEqual(sorted(self.folder.rglob("*")), before)
        for word in words:
            self.assertIn(word, said)
        return said

    def native(self, requests):
        """What Weft's own lines are answered."""
        write_lines(self.input, requests)
        self.output.unlink(missing_ok=True)
        answers = self.answers(self.demo)
        self.output.unlink()
        return answers


class OpenAi(Case):
    def test_completions_are_what_native_requests_get(self):
        texts = {"a": "It was a dark", "é": "The old man", "c": "Once"}
        native = self.native([{"id": i, "prompt": t, "max_tokens": 6} for i, t in texts.items()])
        write_lines(self.input, [completion(i, t) for i, t in texts.items()])
        answers = self.answers(self.demo, key="custom_id")
        self.assertEqual(set(answers), set(texts))
        for custom_id, line in answers.items():
            self.assertEqual(list(line), ["id", "custom_id", "response", "error"])
            self.assertIsNone(line["error"])
            self.assertEqual(line["response"]["status_code"], 200)
            body = line["response"]["body"]
            self.assertEqual(list(body), ["id", "object", "created", "model", "choices", "usage"])
            self.assertEqual((body["object"], body["model"]), ("text_completion", "demo"))
            (choice,) = body["choices"]
            self.assertEqual(choice, {"index": 0, "text": native[custom_id]["text"], "logprobs": None,
                                      "finish_reason": native[custom_id]["finish_reason"]})
            usage = native[custom_id]["usage"]
            self.assertEqual(body["usage"], {**usage, "total_tokens": sum(usage.values())})

    def test_a_chat_is_the_prompt_that_its_template_makes(self):
        model = self.folder / "demo"
        shutil.copytree(self.demo, model)
        (model / "chat_template.jinja").write_text(CHATML)
        text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        write_lines(self.input, [{"id": 1, "text": text}])
        WEFT.run("tokenize", "--model", model, "--input", self.input, "--output", self.folder / "ids.jsonl")
        ids = read_lines(self.folder / "ids.jsonl")[0]["ids"][1:]  # without the first token that a prompt gets
        expected = self.native([{"id": "x", "prompt_ids": ids, "max_tokens": 6}])["x"]
        write_lines(self.input, [chat("x", ("system", "Be brief."), ("user", "Hello"))])
        body = self.answers(model, key="custom_id")["x"]["response"]["body"]
        self.assertEqual(body["object"], "chat.completion")
        (choice,) = body["choices"]
        self.assertEqual(choice["message"], {"role": "assistant", "content": expected["text"], "refusal": None})
        self.assertEqual(body["usage"]["prompt_tokens"], len(ids))

    def test_a_model_whose_template_cannot_be_run_answers_completions(self):
        model = self.folder / "demo"
        shutil.copytree(self.demo, model)
        (model / "chat_template.jinja").write_text("{{ messages[0].content }}\n{% if %}")
        write_lines(self.input, [chat("a", ("user", "Hello")), completion("b", "Hello")])
        self.refused(["in.jsonl:1: the model's chat template cannot be run: chat_template.jinja:2:7: ", "--chat-template",
                      "chatml", "use /v1/completions"], model)
        answers = self.answers(model, "--on-bad-request", "record", code=REFUSED, key="custom_id")
        self.assertEqual(answers["a"]["response"]["body"]["error"]["code"], "unknown_chat_template")
        self.assertEqual(answers["b"]["response"]["status_code"], 200)

    def test_a_template_by_its_name_or_its_text(self):
        model = self.folder / "demo"
        shutil.copytree(self.demo, model)
        (model / "chat_template.jinja").write_text(CHATML)
        conversation = [chat("x", ("system", "Be brief."), ("user", "Hello"))]
        write_lines(self.input, conversation)
        text = lambda answers: answers["x"]["response"]["body"]["choices"]  # noqa: E731
        expected = text(self.answers(model, key="custom_id"))
        (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
        known = self.folder / "known.jinja"
        known.write_text(CHATML)
        for name, identity in ("chatml", "chatml"), (known, "sha256 " + hashlib.sha256(CHATML.encode()).hexdigest()):
            self.output.unlink()
            self.assertEqual(text(self.answers(model, "--chat-template", name, key="custom_id")), expected)
            record = json.loads((self.folder / "out.jsonl.run.json").read_text())
            self.assertEqual(record.get("run", record)["chat_template"], identity)
        self.output.unlink()
        body = conversation[0]["body"]
        write_lines(self.input, [{"id": "x", "messages": body["messages"], "max_tokens": body["max_tokens"]}])
        self.assertEqual(self.answers(model, "--chat-template", "chatml")["x"]["text"], expected[0]["message"]["content"])
        self.output.unlink()
        self.refused(["--chat-template vicuna", "chatml"], model, "--chat-template", "vicuna")
        write_lines(self.input, [{"id": 1, "prompt": "It"}])
        self.refused(["leave out --chat-template"], model, "--chat-template", "chatml")

    def test_names_of_the_model(self):
        write_lines(self.input, [completion("a", "It", model="gpt-4")])
        self.refused(["in.jsonl:1: the model 'gpt-4' is not there, only 'demo' is", "--served-model-name"], self.demo)
        self.refused(["only 'other' is"], self.demo, "--served-model-name", "other")
        body = self.answers(self.demo, "--served-model-name", "gpt-4", key="custom_id")["a"]["response"]["body"]
        self.assertEqual(body["model"], "gpt-4")
        self.output.unlink()
        snapshot = self.folder / "models--org--demo" / "snapshots" / "0a1b2c"
        shutil.copytree(self.demo, snapshot)
        write_lines(self.input, [completion(name, "It", model=name) for name in ("org/demo", "0a1b2c")])
        answers = self.answers(snapshot, key="custom_id")
        self.assertEqual(answers["org/demo"]["response"]["body"]["model"], "org/demo")
        self.output.unlink()
        write_lines(self.input, [completion("a", "It", model="gpt-4")])
        self.refused(["only 'org/demo' is"], snapshot)
        model = self.folder / "here"
        shutil.copytree(self.demo, model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "_name_or_path": "facebook/demo"}))
        write_lines(self.input, [completion(name, "It", model=name) for name in ("here", str(model), "facebook/demo")])
        answers = self.answers(model, key="custom_id")
        self.assertEqual({line["response"]["body"]["model"] for line in answers.values()}, set(answers))

    def test_flags_that_only_these_lines_need(self):
        write_lines(self.input, [{"id": 1, "prompt": "It"}])
        self.refused(["--strict-openai is for OpenAI's"], self.demo, "--strict-openai")
        self.refused(["leave out --served-model-name"], self.demo, "--served-model-name", "x")
        self.refused(["--on-bad-request must be fail or record, got 'skip'"], self.demo, "--on-bad-request", "skip")
        write_lines(self.input, [completion("x" * 65, "It")])
        self.refused(["1 to 64 characters"], self.demo, "--strict-openai")


class BadRequests(Case):
    native_lines = ['{"id":"a","prompt":"It was","max_tokens":3}', '{"id":"b","prompt":"It","max_tokens":0}', "nonsense",
                    '{"id":"a","prompt":"again"}', '{"id":"c","prompt":"The","max_tokens":3}']

    def test_they_are_listed_and_nothing_runs(self):
        self.input.write_text("\n".join(self.native_lines))
        said = self.refused(["in.jsonl:2: 'max_tokens' must be an integer from 1", "in.jsonl:3: byte 2: not valid JSON",
                             'in.jsonl:4: id "a" is also that of line 1'], self.demo)
        self.assertIn("in.jsonl: 3 of 5 requests are refused:\n", said)
        self.input.write_text("x\n" * 30)
        said = self.refused(["30 of 30 requests are refused, the first 20 are:\n"], self.demo)
        self.assertEqual(said.count("in.jsonl:"), 21)

    def test_they_are_recorded_and_the_others_run(self):
        self.input.write_text("\n".join(self.native_lines))
        done = self.run_job(self.demo, "--on-bad-request", "record")
        self.assertEqual(done.returncode, REFUSED, done.stderr)
        self.assertIn(b"3 of 5 requests have no answer", done.stderr)
        lines = read_lines(self.output)
        self.assertEqual(len(lines), 5)
        answers = {line["id"]: line for line in lines if line["id"] is not None}
        self.assertEqual(set(answers), {"a", "b", "c"})
        self.assertEqual(answers["b"]["error"]["code"], "invalid_value")
        self.assertEqual([len(answers[i]["token_ids"]) for i in "ac"], [3, 3])
        nameless = {line["line"]: line["error"]["code"] for line in lines if line["id"] is None}
        self.assertEqual(nameless, {3: "invalid_json_line", 4: "duplicate_custom_id"})

        whole = self.output.read_bytes()  # in whatever state a run was ended, another one completes it
        for count in range(6):
            self.output.write_bytes(b"".join(whole.splitlines(True)[:count]) + b'{"id":')
            done = self.run_job(self.demo, "--on-bad-request", "record", "--resume")
            self.assertEqual(done.returncode, REFUSED, done.stderr)
            self.assertEqual(sorted(self.output.read_bytes().splitlines()), sorted(whole.splitlines()))

    def test_openai_lines_are_refused_in_their_form(self):
        lines = [completion("a", "It was"), completion("b", "It", stream=True), completion("c", "It", model="gpt-4"),
                 chat("d", ("user", "Hello")), completion("a", "again"), completion("e", "The")]
        write_lines(self.input, lines)
        answers = self.answers(self.demo, "--on-bad-request", "record", code=REFUSED, key="custom_id")
        status = {custom_id: line["response"]["status_code"] for custom_id, line in answers.items()}
        self.assertEqual(status, {"a": 200, "b": 400, "c": 404, "d": 400, None: 400, "e": 200})
        self.assertTrue(all(line["error"] is None for line in answers.values()))
        error = {custom_id: line["response"]["body"].get("error") for custom_id, line in answers.items()}
        self.assertEqual(error["b"], {"message": "'stream' is not supported, got true", "type": "invalid_request_error",
                                      "param": "stream", "code": "unsupported_parameter"})
        self.assertEqual(error["d"]["code"], "unknown_chat_template")
        self.assertEqual((error[None]["code"], error[None]["line"]), ("duplicate_custom_id", 5))

        whole = self.output.read_bytes().splitlines(True)
        for count in range(len(whole) + 1):
            self.output.write_bytes(b"".join(whole[:count]))
            self.output.with_name("out.jsonl.sums").unlink(missing_ok=True)  # of lines with another "created"
            again = self.answers(self.demo, "--on-bad-request", "record", "--resume", code=REFUSED, key="custom_id")
            self.assertEqual(len(read_lines(self.output)), len(whole))
            for line in [*answers.values(), *again.values()]:
                line["response"]["body"].pop("created", None)
            self.assertEqual(again, answers)

    def test_a_file_of_nothing_else(self):
        self.input.write_text("x\ny\n")
        done = self.run_job(self.demo, "--on-bad-request", "record")
        self.assertEqual(done.returncode, REFUSED, done.stderr)
        self.assertEqual([line["line"] for line in read_lines(self.output)], [1, 2])

    def test_scores_too(self):
        tiny = write_tiny_model(self.folder / "tiny")
        self.input.write_text('{"id":1,"prompt_ids":[3],"continuation_ids":[4]}\n{"id":2,"prompt_ids":[3]}\n')
        for flags in [], ["--resume"]:
            done = self.run_job(tiny, "--on-bad-request", "record", *flags, command="score")
            self.assertEqual(done.returncode, REFUSED, done.stderr)
            self.assertEqual({line["id"]: "error" in line for line in read_lines(self.output)}, {1: False, 2: True})

    def test_the_place_of_a_line_is_its_id_where_none_has_one(self):
        self.input.write_text('{"prompt":"It","max_tokens":2}\n\n{"prompt":"It","max_tokens":2}\n')
        self.assertEqual(set(self.answers(self.demo)), {"0", "2"})
        first = self.output.read_bytes().splitlines(True)[0]
        whole = self.output.read_bytes()
        self.output.write_bytes(first)
        self.answers(self.demo, "--resume")
        self.assertEqual(sorted(self.output.read_bytes().splitlines()), sorted(whole.splitlines()))

    def test_a_file_of_another_kind(self):
        for text, words in [(json.dumps([{"id": 1}]).encode(), "this is JSON, not JSONL"),
                            ('{"id":1}'.encode("utf-16"), "this is UTF-16"), (b"\n \n", "no requests"),
                            (b"x" * (17 << 20), "longer than 16 MiB")]:
            self.input.write_bytes(text)
            for mode in "fail", "record":
                self.refused([words], self.demo, "--on-bad-request", mode)

    def test_the_input_under_another_name_is_no_output(self):
        write_lines(self.input, [{"id": 1, "prompt": "It"}])
        os.link(self.input, self.output)
        self.refused(["is also the file of --input"], self.demo, "--resume")


class Inputs(Case):
    """Tables, packed files and several files, which become one file of lines."""

    def plain(self):
        write_lines(self.input, [{"prompt": f"It was {n}"} for n in range(6)])
        answers = self.answers(self.demo, "--max-tokens", 5)
        self.output.unlink()
        return {key: answer["text"] for key, answer in answers.items()}

    def run_inputs(self, *flags, code=0):
        done = WEFT.run("generate", "--model", self.demo, "--output", self.output, "--backend", "cpu", "--quiet",
                        "--gpu-batch-size", 4, "--num-gpu-batches", 1, "--percent", 100, 0, 100, 0, 100, 0,
                        "--max-tokens", 5, *flags)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr.decode()

    def write(self, name, text):
        path = self.folder / name
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode()))
        elif name.endswith(".zst"):
            path.write_bytes(subprocess.run(["zstd", "-c"], input=text.encode(), capture_output=True, check=True).stdout)
        else:
            path.write_text(text)
        return path

    def test_tables_and_packed_files_answer_as_lines_do(self):
        plain = self.plain()
        lines = "".join(f'{{"prompt": "It was {n}"}}\n' for n in range(6))
        table = "n,note\n" + "".join(f'{n},"a, ""{n}"""\n' for n in range(6))
        names = ["a.jsonl.gz", *(["a.jsonl.zst"] if shutil.which("zstd") else [])]
        for flags in [["--input", self.write(name, lines)] for name in names] + [
                ["--input", self.write("a.csv", table), "--prompt-template", "It was {n}"],
                ["--input", self.write("1.jsonl", lines[:len(lines) // 2]), self.write("2.csv.gz", "n\n3\n4\n5\n"),
                 "--prompt-template", "It was {n}"],
                ["--input", self.write("q.csv", table.replace("n,note", "q,note").replace("\n", "\nIt was ", 6)),
                 "--prompt-column", "q"]]:
            with self.subTest(flags):
                self.run_inputs(*flags)
                answers = {answer["id"]: answer for answer in read_lines(self.output)}
                self.assertEqual({key: answer["text"] for key, answer in answers.items()}, plain)
                if flags[1].name in ("a.csv", "q.csv"):
                    self.assertEqual(answers["2"]["metadata"]["note"], 'a, "2"')
                before = self.output.read_bytes()
                self.output.write_bytes(before[:len(before) // 2])  # as a kill leaves it
                self.run_inputs(*flags, "--resume")
                self.assertEqual(sorted(self.output.read_bytes().splitlines()), sorted(before.splitlines()))
                for path in self.folder.glob("out.jsonl*"):
                    path.unlink()

    def test_shards_of_a_table_are_merged(self):
        table = self.write("A.CSV", "prompt\n" + "".join(f"It was {n}\n" for n in range(6)))
        parts = []
        for shard in 1, 2:
            self.output = self.folder / f"{shard}.jsonl"
            self.run_inputs("--input", table, "--shard", f"{shard}/2")
            parts.append(self.output)
        done = WEFT.run("merge", "--input", table, "--output", self.folder / "all.jsonl", *parts)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line["id"] for line in read_lines(self.folder / "all.jsonl")], [str(n) for n in range(6)])

    def test_scores_of_a_table(self):
        table = self.write("a.csv", "p,c,n\nThe sea, was calm,1\n")
        done = WEFT.run("score", "--model", self.demo, "--input", table, "--prompt-column", "p", "--continuation-column", "c",
                        "--output", self.output, "--backend", "cpu", "--quiet")
        self.assertEqual(done.returncode, 0, done.stderr)
        (answer,) = read_lines(self.output)
        self.assertEqual((answer["metadata"], len(answer["logprobs"])), ({"n": "1"}, 2))

    def test_bad_inputs_are_named(self):
        bad = self.write("bad.csv", 'prompt\na\n"b\nc')
        self.assertIn(f"{bad}:3: a quoted field has no closing quote", self.run_inputs("--input", bad, code=USAGE))
        long = self.write("long.csv", f'prompt\n"a\nb"\n{"x " * 3000}\n')
        self.assertIn(f"{long}:4: the prompt has ", self.run_inputs("--input", long, code=USAGE))
        lines = self.write("b.jsonl", '{"prompt": 3}\n')
        good = self.write("a.jsonl", '{"prompt": "a"}\n')
        self.assertIn(f"{lines}:1: ", self.run_inputs("--input", good, lines, code=USAGE))
        self.assertIn("is no table", self.run_inputs("--input", good, "--prompt-column", "a", code=USAGE))
        self.assertIn("is also the file of --input", self.run_inputs("--input", good, good, code=USAGE))
        self.assertFalse(self.output.exists())

    def test_a_dry_run_computes_nothing(self):
        write_lines(self.input, [{"prompt": f"It was {n}", "max_tokens": 3} for n in range(6)])
        before = sorted(self.folder.rglob("*"))
        done = WEFT.run("generate", "--model", self.demo, "--input", self.input, "--output", self.output, "--backend", "cpu",
                        "--dry-run")
        said = done.stderr.decode()
        self.assertEqual(done.returncode, 0, said)
        self.assertIn("dry run: 6 of 6 requests would run: ", said)
        self.assertIn(", at most 18 generated", said)
        self.assertRegex(said, r"dry run: \S+ predicted in all")
        self.assertEqual(sorted(self.folder.rglob("*")), before)
        write_lines(self.input, [{"prompt": 1}])
        self.refused(["in.jsonl:1: "], self.demo, "--dry-run")
        self.assertIn("excludes", self.run_inputs("--input", self.input, "--dry-run", "--resume", code=USAGE))


if __name__ == "__main__":
    WEFT, SOURCE = Weft(os.path.abspath(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
