#!/usr/bin/env python3
"""The fields of requests that decide which token comes next and what of it is shown, and the flags that stand for them.

Usage: fields_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import math
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import Weft, read_lines, write_lines, write_tiny_model  # noqa: E402

WEFT = None
SOURCE = None
PROMPT = "The old man looked at the"


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-fields-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.demo = SOURCE / "models" / "demo"
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"

    def run_job(self, requests, *flags, model=None, command="generate", batch=8):
        write_lines(self.input, requests)
        return WEFT.run(command, "--model", model or self.demo, "--input", self.input, "--output", self.output, "--backend", "cpu",
                        "--gpu-batch-size", batch, "--num-gpu-batches", 2, "--percent", 100, 0, 100, 0, 100, 0, *flags)

    def job(self, requests, *flags, **options):
        """The answers in the order of the requests."""
        self.output.unlink(missing_ok=True)
        done = self.run_job(requests, "--quiet", *flags, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        key = "custom_id" if "custom_id" in requests[0] else "id"
        answers = {answer[key]: answer for answer in read_lines(self.output)}
        return [answers[request[key]] for request in requests]

    def refused(self, words, requests, *flags, **options):
        self.output.unlink(missing_ok=True)
        done = self.run_job(requests, *flags, **options)
        self.assertEqual(done.returncode, 2, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr.decode())


class Logits(Case):
    def test_as_transformers(self):
        cases = [json.loads(line.rstrip(",")) for line in
                 (SOURCE / "tests/data/golden/fields.json").read_text().splitlines()[1:-1]]
        self.assertGreater(len(cases), 8)
        requests = [{"id": i, "max_tokens": len(case["token_ids"]), "ignore_eos": True,
                     **{key: value for key, value in case.items() if key != "token_ids"}} for i, case in enumerate(cases)]
        for case, answer in zip(cases, self.job(requests, "--dtype", "float32"), strict=True):
            self.assertEqual(answer["token_ids"], case["token_ids"], case)
        # OpenAI's lines mean the same, and every block gives the same answers.
        lines = [{"custom_id": str(r.pop("id")), "method": "POST", "url": "/v1/completions",
                  "body": {"model": "demo", "temperature": 0, **r}} for r in requests]
        for case, answer in zip(cases, self.job(lines, "--dtype", "float32", batch=1), strict=True):
            choice = answer["response"]["body"]["choices"][0]
            self.assertEqual(answer["response"]["status_code"], 200)
            self.assertEqual(answer["response"]["body"]["usage"]["completion_tokens"], len(case["token_ids"]), choice)

    def test_tokens_that_must_or_must_not_come(self):
        base = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "logprobs": 1}
        plain, forced, allowed, banned, sampled = self.job(
            [{"id": 1, **base}, {"id": 2, **base, "logit_bias": {"264": 100}}, {"id": 3, **base, "allowed_token_ids": [5, 264]},
             {"id": 4, **base, "bad_words": ["he"]},
             {"id": 5, **base, "allowed_token_ids": [5, 7, 9], "temperature": 30, "n": 3, "min_p": 0.01}])
        self.assertEqual(forced["token_ids"], [264] * 12)
        self.assertLessEqual(set(allowed["token_ids"]), {5, 264})
        self.assertIn("he", plain["text"].split())
        self.assertNotIn("he", banned["text"].split())
        tokens = [token for choice in sampled["choices"] for token in choice["token_ids"]]
        self.assertEqual(set(tokens), {5, 7, 9})
        # Log-probabilities are the model's own, whatever changes before the choice.
        scored = self.job([{"id": 1, "prompt": PROMPT, "continuation_ids": forced["token_ids"]}], command="score")[0]
        for token, logprob in zip(forced["logprobs"], scored["logprobs"], strict=True):
            self.assertTrue(math.isclose(token["logprob"], logprob, abs_tol=1e-6))
            self.assertGreaterEqual(token["top"][0]["logprob"], token["logprob"])
        self.assertEqual(forced["logprobs"][0]["top"], plain["logprobs"][0]["top"])

    def test_min_p(self):
        request = {"prompt": PROMPT, "max_tokens": 12, "temperature": 1.5, "n": 4}
        greedy, one, some = self.job([{"id": 1, "prompt": PROMPT, "max_tokens": 12}, {"id": 2, **request, "min_p": 1},
                                      {"id": 3, **request, "min_p": 0.2, "logprobs": 20}])
        self.assertEqual([choice["token_ids"] for choice in one["choices"]], [greedy["token_ids"]] * 4)
        for token in (token for choice in some["choices"] for token in choice["logprobs"]):
            self.assertGreaterEqual((token["logprob"] - token["top"][0]["logprob"]) / 1.5, math.log(0.2) - 1e-4)

    def test_a_resumed_job_goes_on_alike(self):
        rules = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.2, "bad_words": ["sea"]}
        requests = [{"id": i, "prompt": PROMPT, "max_tokens": 10 + i, "temperature": 0.8, "n": 2, **rules} for i in range(6)]
        whole = self.job(requests)
        lines = self.output.read_bytes().splitlines(keepends=True)
        self.output.write_bytes(b"".join(lines[:2]))
        pathlib.Path(f"{self.output}.sums").unlink(missing_ok=True)
        done = self.run_job(requests, "--quiet", "--resume", batch=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        again = {answer["id"]: answer for answer in read_lines(self.output)}
        self.assertEqual([again[request["id"]] for request in requests], whole)


class Texts(Case):
    def test_what_ends_an_answer(self):
        base = {"prompt": PROMPT, "max_tokens": 12}
        plain = self.job([{"id": 1, **base}])[0]
        stop, token = plain["text"][9:12], plain["token_ids"][4]
        left, kept, without, with_token = self.job(
            [{"id": 1, **base, "stop": stop}, {"id": 2, **base, "stop": stop, "include_stop_str_in_output": True},
             {"id": 3, **base, "stop_token_ids": [token]},
             {"id": 4, **base, "stop_token_ids": [token], "include_stop_str_in_output": True}])
        self.assertEqual(kept["text"], left["text"] + stop)
        self.assertTrue(plain["text"].startswith(kept["text"]))
        self.assertTrue(plain["text"].startswith(with_token["text"]))
        self.assertGreater(len(with_token["text"]), len(without["text"]))
        self.assertEqual(with_token["token_ids"], without["token_ids"])

    def test_special_tokens(self):
        base = {"prompt": PROMPT, "max_tokens": 3, "allowed_token_ids": [2], "ignore_eos": True}
        hidden, shown, ended = self.job([{"id": 1, **base}, {"id": 2, **base, "skip_special_tokens": False},
                                         {"id": 3, **base, "ignore_eos": False, "skip_special_tokens": False,
                                          "include_stop_str_in_output": True}])
        self.assertEqual((hidden["text"], shown["text"], ended["text"]), ("", "</s>" * 3, "</s>"))

    def test_a_prompt_that_is_cut(self):
        ids = [2, 837, 322, 262, 1125, 828]
        cut, same = self.job([{"id": 1, "prompt": "It was a dark night", "truncate_prompt_tokens": 3, "max_tokens": 5},
                              {"id": 2, "prompt_ids": [2, *ids[-2:]], "max_tokens": 5}])
        self.assertEqual({**cut, "id": 2}, same)
        self.assertEqual(cut["usage"]["prompt_tokens"], 3)


class Prompts(Case):
    def test_log_probabilities_of_the_prompt(self):
        base = {"prompt": "It was a dark night", "max_tokens": 6}
        ids = [2, 837, 322, 262, 1125, 828]
        plain, asked, alone = self.job([{"id": 1, **base, "logprobs": 2}, {"id": 2, **base, "prompt_logprobs": 3, "logprobs": 2},
                                        {"id": 3, **base, "prompt_logprobs": 0, "max_tokens": 0, "echo": True}])
        report = self.folder / "report.json"
        both = self.job([{"id": 2, **base, "prompt_logprobs": 3}, {"id": 1, **base}], "--report", report)
        said, wanted = json.loads(report.read_text())["tokens"], [answer["usage"] for answer in both]
        self.assertEqual((said["prompt"], said["generated"]), (sum(usage["prompt_tokens"] for usage in wanted),
                                                               sum(usage["completion_tokens"] for usage in wanted)))
        scored = self.job([{"id": 1, "prompt_ids": ids[:1], "continuation_ids": ids[1:]}], command="score")[0]
        for answer, count in (asked, 3), (alone, 0):
            first, *rest = answer["prompt_logprobs"]
            self.assertIsNone(first)
            self.assertEqual([token["token_id"] for token in rest], ids[1:])
            self.assertEqual([token["logprob"] for token in rest], scored["logprobs"])
            self.assertEqual({len(token["top"]) for token in rest}, {count})
        self.assertEqual((alone["text"], alone["token_ids"]), (base["prompt"], []))
        self.assertEqual(alone["usage"], {"prompt_tokens": 6, "completion_tokens": 0})
        self.assertEqual({key: asked[key] for key in ("text", "token_ids", "usage")},
                         {key: plain[key] for key in ("text", "token_ids", "usage")})
        self.assertEqual([len(token["top"]) for token in asked["logprobs"]], [2] * 6)

    def test_echo_with_logprobs_in_completions(self):
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions",
                "body": {"model": "demo", "prompt": "It was a dark night", "max_tokens": 0, "echo": True, "logprobs": 1}}
        more = {**line, "custom_id": "b", "body": {**line["body"], "max_tokens": 2, "temperature": 0}}
        cut = {**line, "custom_id": "d", "body": {**line["body"], "truncate_prompt_tokens": 3}}
        alone, longer, shorter = (answer["response"]["body"] for answer in self.job([line, more, cut]))
        self.assertEqual(shorter["choices"][0]["text"], " dark night")
        for body, count in (alone, 6), (longer, 8), (shorter, 3):
            (choice,) = body["choices"]
            logprobs = choice["logprobs"]
            self.assertEqual({len(each) for each in logprobs.values()}, {count})
            self.assertEqual((logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]), (None, None))
            for token, offset in list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True))[1:]:
                self.assertEqual(choice["text"][offset:offset + len(token)], token)
        written = {**line, "custom_id": "c", "body": {**line["body"], "prompt": "</s>It was", "add_special_tokens": False}}
        (choice,) = self.job([written])[0]["response"]["body"]["choices"]
        self.assertEqual(choice["logprobs"]["text_offset"], [0, 4, 6])  # the first token is of the text here
        self.assertEqual(alone["choices"][0]["text"], "It was a dark night")
        self.assertEqual(longer["choices"][0]["logprobs"]["token_logprobs"][:6], alone["choices"][0]["logprobs"]["token_logprobs"])

    def test_refusals(self):
        self.refused(["'n' must be 1 with log-probabilities of the prompt"],
                     [{"id": 1, "prompt": "a", "prompt_logprobs": 1, "n": 2, "temperature": 1}])
        self.refused(["'max_tokens' must be an integer from 1"], [{"id": 1, "prompt": "a", "max_tokens": 0}])
        self.refused(["one token has no log-probability"], [{"id": 1, "prompt_ids": [5], "max_tokens": 0, "prompt_logprobs": 1}])
        self.refused(["in.jsonl:2: 'prompt_logprobs'", "need --retention full"],
                     [{"id": 1, "prompt": "a"}, {"id": 2, "prompt": "a", "prompt_logprobs": 1}], "--retention", "h2o:0.2:0.2")
        self.refused(["'echo' goes with 'logprobs'"], [{"id": 1, "prompt": "a", "echo": True, "logprobs": 1}])

    def test_one_refused_leaves_the_others(self):
        def line(name, **more):
            return {"custom_id": name, "method": "POST", "url": "/v1/completions",
                    "body": {"model": "demo", "prompt": "a", "max_tokens": 2, **more}}
        done = self.run_job([line("a"), line("b", echo=True, logprobs=1)], "--retention", "h2o:0.2:0.1", "--on-bad-request", "record")
        self.assertEqual(done.returncode, 1, done.stderr)
        answers = {answer["custom_id"]: answer["response"] for answer in read_lines(self.output)}
        self.assertEqual(answers["a"]["status_code"], 200)
        error = answers["b"]["body"]["error"]
        self.assertEqual((error["code"], error["param"]), ("invalid_value", "echo"))
        self.assertIn("need --retention full", error["message"])


class Flags(Case):
    def test_defaults(self):
        asked = {"temperature": 0.9, "top_p": 0.8, "top_k": 30, "min_p": 0.05, "seed": 7, "stop": ["the", "and"]}
        flags = [part for key, value in asked.items() for each in (value if isinstance(value, list) else [value])
                 for part in ("--" + key.replace("_", "-"), each)]
        said, own = {"id": 1, "prompt": PROMPT}, {"id": 2, "prompt": PROMPT, "temperature": 0, "stop": []}
        self.assertEqual(self.job([said, own], "--max-tokens", 12, *flags),
                         self.job([{**said, **asked}, own], "--max-tokens", 12))
        # They are part of what a resume compares.
        self.job([said], *flags)
        done = self.run_job([said], "--resume", *flags, "--system-prompt", "b", "--chat", "--chat-template", "chatml")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("'defaults' was", done.stderr.decode().replace('"', "'"))

    def test_conversations(self):
        flags = ["--chat-template", "chatml", "--max-tokens", 6]
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": PROMPT}]
        whole = self.job([{"id": 1, "messages": messages}, {"id": 2, "messages": messages[1:]}], *flags)
        self.assertEqual(self.job([{"id": 1, "prompt": PROMPT}, {"id": 2, "messages": messages}], *flags, "--chat",
                                  "--system-prompt", "Be brief."), [whole[0], {**whole[0], "id": 2}])
        self.assertEqual(self.job([{"id": 2, "prompt": PROMPT}], *flags, "--chat"), [whole[1]])
        self.refused(["has no conversation; leave out --system-prompt"], [{"id": 1, "prompt": "a"}], "--system-prompt", "b")
        self.refused(["has no conversation; leave out --reasoning-parser"], [{"id": 1, "prompt": "a"}],
                     "--reasoning-parser", "qwen3")

    def test_generation_config(self):
        model = self.folder / "model"
        shutil.copytree(self.demo, model)
        request = {"id": 1, "prompt": PROMPT}
        config = {"eos_token_id": 2, "temperature": 0.8, "top_k": 20, "repetition_penalty": 1.2, "max_new_tokens": 7}
        (model / "generation_config.json").write_text(json.dumps(config))
        config.pop("eos_token_id")
        config["max_tokens"] = config.pop("max_new_tokens")
        taken = self.job([request], "--generation-config", "auto", model=model)
        self.assertEqual(taken, self.job([{**request, **config}], model=model))
        self.assertEqual(self.job([request], "--generation-config", "auto", "--temperature", 0, "--max-tokens", 5, model=model),
                         self.job([{**request, **config, "temperature": 0, "max_tokens": 5}], model=model))
        plain = self.job([{**request, "max_tokens": 7}], model=model)
        self.assertNotEqual(taken, plain)  # without the flag answers are those of before, and a line says what there is
        self.output.unlink()
        done = self.run_job([{**request, "max_tokens": 7}], model=model)
        self.assertIn("generation_config.json suggests", done.stderr.decode())
        self.assertEqual(read_lines(self.output), plain)

    def test_reasoning(self):
        lines = [{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {
            "model": "demo", "temperature": 0, "max_tokens": 4, "messages": [{"role": "user", "content": PROMPT}]}}]
        flags = ["--chat-template", "chatml"]
        text = self.job(lines, *flags)[0]["response"]["body"]["choices"][0]["message"]["content"]
        message = self.job(lines, *flags, "--reasoning-parser", "deepseek_r1")[0]["response"]["body"]["choices"][0]["message"]
        self.assertEqual(message, {"role": "assistant", "content": None, "reasoning_content": text, "refusal": None})
        message = self.job(lines, *flags, "--reasoning-parser", "qwen3")[0]["response"]["body"]["choices"][0]["message"]
        self.assertEqual(message, {"role": "assistant", "content": text, "refusal": None})

    def test_flags_out_of_range(self):
        for flags, words in [(["--temperature", -1], "--temperature must be a number from 0.0 to 100.0, got -1"),
                             (["--top-p", 0], "--top-p must be over 0"), (["--top-k", -1], "--top-k must be an integer from 0"),
                             (["--min-p", "nan"], "--min-p must be a number"), (["--stop", "x" * 513], "--stop must have 1 to 512"),
                             (["--generation-config", "vllm"], "--generation-config must be auto or none, got 'vllm'"),
                             (["--reasoning-parser", "x"], "--reasoning-parser must be deepseek_r1 or qwen3, got 'x'")]:
            self.refused([words], [{"id": 1, "prompt": "a"}], *flags)
        self.refused(["--stop needs a tokenizer"], [{"id": 1, "prompt_ids": [3]}], "--stop", "a",
                     model=write_tiny_model(self.folder / "tiny"))


if __name__ == "__main__":
    WEFT, SOURCE = Weft(os.path.abspath(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
