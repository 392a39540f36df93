#!/usr/bin/env python3
"""The command line as users meet it: answers in the promised form, and errors that name the place in one line.

Usage: cli_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import math
import os
import pathlib
import re
import resource
import shutil
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import (Weft, read_lines, read_safetensors, safetensors, tiny_tensors, write_lines,  # noqa: E402
                          write_tiny_model)

WEFT = None
SOURCE = None
USAGE, DATA, CAPACITY, DEVICE, IO = 2, 3, 4, 5, 6


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-cli-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.demo = SOURCE / "models" / "demo"
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"

    def tiny(self, **options):
        folder = self.folder / "tiny"
        return folder if folder.exists() else write_tiny_model(folder, **options)

    def job(self, model, requests, *flags, command="generate", planned=False):
        """The answers by id of a run that succeeds. Unless `planned`, nothing is: that takes long under sanitizers."""
        if requests is not None:
            write_lines(self.input, requests)
        self.output.unlink(missing_ok=True)
        if not planned and not {"--policy", "--gpu-batch-size", "--percent"} & set(flags):
            flags += "--gpu-batch-size", 4, "--num-gpu-batches", 2, "--percent", 100, 0, 100, 0, 100, 0
        done = WEFT.run(command, "--model", model, "--input", self.input, "--output", self.output, "--backend", "cpu",
                        "--quiet", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {answer["id"]: answer for answer in read_lines(self.output)}

    def refused(self, code, words, *arguments):
        """One line on stderr, the exit code, and nothing written where nothing was."""
        before = sorted(self.folder.rglob("*"))
        done = WEFT.run(*arguments)
        said = re.sub(r"^(planning, [0-9:]+\n)+", "", done.stderr.decode())  # after ten seconds, as under a sanitizer
        with self.subTest(arguments=" ".join(map(str, arguments[-6:]))):
            self.assertEqual(done.returncode, code, said)
            self.assertEqual(done.stdout, b"")
            self.assertTrue(said.startswith("weft: error: ") and said.endswith("\n"), said)
            self.assertEqual(said.count("\n"), 1, said)
            for word in [words] if isinstance(words, str) else words:
                self.assertIn(word, said)
            self.assertEqual(sorted(self.folder.rglob("*")), before)

    def refused_job(self, code, words, *flags, model=None, command="generate"):
        self.refused(code, words, command, "--model", model or self.tiny(), "--input", self.input, "--output", self.output,
                     "--backend", "cpu", *flags)


class Answers(Case):
    def test_form_of_an_answer(self):
        write_lines(self.input, [{"id": "a1", "prompt": "It was", "max_tokens": 5}, {"id": 7, "prompt_ids": [2, 100, 7]},
                                 {"id": "é\\\"", "prompt": "The", "max_tokens": 1}])
        answers = self.job(self.demo, None, "--max-tokens", 9)
        self.assertEqual(set(answers), {"a1", 7, "é\\\""})
        for answer in answers.values():
            self.assertEqual(list(answer), ["id", "text", "token_ids", "finish_reason", "usage"])
            self.assertEqual(list(answer["usage"]), ["prompt_tokens", "completion_tokens"])
            self.assertEqual(answer["usage"]["completion_tokens"], len(answer["token_ids"]))
            self.assertIsInstance(answer["text"], str)
        self.assertEqual(answers[7]["usage"]["prompt_tokens"], 3)
        self.assertLessEqual(len(answers[7]["token_ids"]), 9)
        self.assertEqual(len(answers["é\\\""]["token_ids"]), 1)

    def test_text_prompt_begins_with_the_first_token(self):
        write_lines(self.input, [{"id": 1, "text": "It was a dark night"}])
        done = WEFT.run("tokenize", "--model", self.demo, "--input", self.input, "--output", self.folder / "ids.jsonl")
        self.assertEqual(done.returncode, 0, done.stderr)
        (line,) = read_lines(self.folder / "ids.jsonl")
        self.assertEqual(list(line), ["id", "ids"])
        self.assertEqual(line["ids"][0], 2)
        answers = self.job(self.demo, [{"id": "text", "prompt": "It was a dark night", "max_tokens": 12},
                                       {"id": "ids", "prompt_ids": line["ids"], "max_tokens": 12}])
        self.assertEqual(answers["text"]["token_ids"], answers["ids"]["token_ids"])
        self.assertEqual(answers["text"]["usage"]["prompt_tokens"], len(line["ids"]))

    def test_without_tokenizer(self):
        answers = self.job(self.tiny(), [{"id": 1, "prompt_ids": [3, 4]}], "--max-tokens", 6)
        self.assertIsNone(answers[1]["text"])
        self.assertEqual(answers[1]["finish_reason"], "length")
        self.assertEqual(len(answers[1]["token_ids"]), 6)

    def test_default_length_ends_at_the_context(self):
        answers = self.job(self.tiny(), [{"id": 1, "prompt_ids": [3] * 40}])
        self.assertEqual(len(answers[1]["token_ids"]), 8)

    def test_config_file_with_random_weights(self):
        config = self.tiny() / "config.json"
        requests = [{"id": 1, "prompt_ids": [3, 4], "max_tokens": 6}]
        first = self.job(config, requests, "--weights", "random:1")
        self.assertEqual(first, self.job(config, requests, "--weights", "random:1"))
        self.assertNotEqual(first, self.job(config, requests, "--weights", "random:2"))

    def test_a_text_model_beside_towers_for_images(self):
        requests = [{"id": 1, "prompt_ids": [3, 4, 5, 6, 7], "max_tokens": 30}]  # 35 tokens, windows of 16
        for type, golden, names in (
                ("gemma3", "gemma3-text-slides-bf16", {"model.": "model.language_model."}),
                ("mistral3", "mistral-ministral3-f16", {"model.": "model.language_model."}),
                ("mistral3", "mistral-slides-f16", {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."}),
                ("qwen2_5_vl", "qwen2-untied-f32", {}),
                ("qwen3_vl", "qwen3-biases-untied-bf16", {"model.": "model.language_model."})):
            with self.subTest(golden):
                golden, model = SOURCE / "tests/data/golden" / golden, self.folder / golden
                shutil.copytree(golden, model)
                tensors, data = read_safetensors(model / "model.safetensors")
                header = {}
                for name, tensor in tensors.items():
                    old = next((old for old in names if name.startswith(old)), "")
                    header[names.get(old, "") + name.removeprefix(old)] = tensor
                header["vision_tower.layer_norm1.weight"] = {"dtype": "BF16", "shape": [4],
                                                             "data_offsets": [len(data), len(data) + 8]}
                (model / "model.safetensors").write_bytes(safetensors(header, data + bytes(8)))
                config = json.loads((model / "config.json").read_text())
                (model / "config.json").write_text(json.dumps({"model_type": type, "text_config": config, "vision_config": {}}))
                self.assertEqual(self.job(model, requests), self.job(golden, requests))

    def test_stop_token(self):
        plain = self.job(self.tiny(), [{"id": 1, "prompt_ids": [3, 4, 5], "max_tokens": 16}])[1]["token_ids"]
        end = plain[len(plain) // 2]
        stopped = self.job(self.tiny(), [{"id": 1, "prompt_ids": [3, 4, 5], "max_tokens": 16, "stop_token_ids": [end]}])[1]
        self.assertEqual(stopped["token_ids"], plain[:plain.index(end) + 1])
        self.assertEqual(stopped["finish_reason"], "stop")

    def test_end_of_sequence(self):
        requests = [{"id": 1, "prompt_ids": [3, 4, 5], "max_tokens": 16}]
        plain = self.job(self.tiny(), requests)[1]["token_ids"]
        end = plain[5]
        for name, value in ("one", end), ("several", [end]):
            model = write_tiny_model(self.folder / name, eos_token_id=value)
            answer = self.job(model, requests)[1]
            self.assertEqual(answer["token_ids"], plain[:plain.index(end) + 1])
            self.assertEqual(answer["finish_reason"], "stop")

    def test_stop_string_and_token_leave_the_text(self):
        request = {"id": 1, "prompt": "The old man looked at the", "max_tokens": 32}
        plain = self.job(self.demo, [request])[1]
        middle = len(plain["text"]) // 2
        stop = plain["text"][middle:middle + 4]
        cut = self.job(self.demo, [{**request, "stop": ["\0never", stop]}])[1]
        self.assertEqual(cut["text"], plain["text"][:plain["text"].index(stop)])
        self.assertEqual(cut["finish_reason"], "stop")
        self.assertEqual(cut["token_ids"], plain["token_ids"][:len(cut["token_ids"])])
        self.assertEqual(self.job(self.demo, [{**request, "stop": stop}])[1], cut)
        end = plain["token_ids"][3]
        at = plain["token_ids"].index(end)
        by_id = self.job(self.demo, [{**request, "stop_token_ids": [end]}])[1]
        shorter = self.job(self.demo, [{**request, "max_tokens": at}])[1] if at else {"text": ""}
        self.assertEqual(by_id["token_ids"], plain["token_ids"][:at + 1])
        self.assertEqual(by_id["text"], shorter["text"])

    def test_sampling_depends_on_seed_and_id_alone(self):
        requests = [{"id": i, "prompt_ids": [3 + i, 9], "max_tokens": 10 + i, "temperature": 1.5, "seed": 5} for i in range(8)]
        one = self.job(self.tiny(), requests)
        self.assertEqual(one, self.job(self.tiny(), requests[::-1], "--gpu-batch-size", 3, "--num-gpu-batches", 2))
        self.assertNotEqual(one, self.job(self.tiny(), [{**r, "seed": 6} for r in requests]))
        narrow = self.job(self.tiny(), [{**r, "top_k": 1} for r in requests])
        self.assertEqual(narrow, self.job(self.tiny(), [{k: v for k, v in r.items() if k != "temperature"} for r in requests]))

    def test_several_choices(self):
        requests = [{"id": i, "prompt_ids": [3 + i, 9], "max_tokens": 6 + i, "temperature": 1.5, "seed": 5, "n": 1 + i} for i in range(6)]
        answers = self.job(self.tiny(), requests)
        singles = self.job(self.tiny(), [{**r, "n": 1} for r in requests])
        self.assertEqual(answers[0], singles[0])
        for i in range(1, 6):
            self.assertEqual(list(answers[i]), ["id", "choices", "usage"])
            choices = answers[i]["choices"]
            self.assertEqual([c["index"] for c in choices], list(range(1 + i)))
            for choice in choices:
                self.assertEqual(list(choice), ["index", "text", "token_ids", "finish_reason"])
            self.assertEqual(choices[0]["token_ids"], singles[i]["token_ids"])
            self.assertEqual(len({tuple(c["token_ids"]) for c in choices}), 1 + i)
            self.assertEqual(answers[i]["usage"], {"prompt_tokens": 2, "completion_tokens": (1 + i) * (6 + i)})
        for flags in (["--gpu-batch-size", 1, "--num-gpu-batches", 2], ["--gpu-batch-size", 4, "--num-gpu-batches", 3]):
            self.assertEqual(answers, self.job(self.tiny(), requests[::-1], *flags))
        report = self.folder / "report.json"
        self.job(self.tiny(), [{**requests[5], "max_tokens": 30}], "--report", report, "--machine",
                 SOURCE / "configs" / "machines" / "cpu.json", planned=True)  # a measurement would differ from time to time
        planned = json.loads(report.read_text())["policy"]
        self.assertEqual(planned["gpu_batch_size"] * planned["num_gpu_batches"], 6)  # a place for each choice
        policy = self.folder / "policy.json"
        policy.write_text(json.dumps({"gpu_batch_size": 2, "num_gpu_batches": 2, "schedule": "static"}))
        self.assertEqual(answers, self.job(self.tiny(), requests, "--policy", policy))

    def test_resume_with_several_choices(self):
        requests = [{"id": i, "prompt_ids": [3 + i, 9], "max_tokens": 6, "temperature": 1.5, "n": 1 + i % 3, "logprobs": 1} for i in range(9)]
        whole = self.job(self.tiny(), requests, "--gpu-batch-size", 2, "--num-gpu-batches", 2)
        lines = self.output.read_bytes().splitlines(keepends=True)
        self.output.write_bytes(b"".join(lines[:4]) + lines[4][:-9])
        done = WEFT.run("generate", "--model", self.tiny(), "--input", self.input, "--output", self.output, "--backend", "cpu",
                        "--resume", "--gpu-batch-size", 3, "--num-gpu-batches", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.output.read_bytes().splitlines(keepends=True)[:4], lines[:4])
        self.assertEqual(len(read_lines(self.output)), 9)
        self.assertEqual({answer["id"]: answer for answer in read_lines(self.output)}, whole)

    def test_ignore_eos(self):
        request = {"id": 1, "prompt_ids": [3, 4, 5], "max_tokens": 16}
        plain = self.job(self.tiny(), [request])[1]["token_ids"]
        end = plain[5]
        model = write_tiny_model(self.folder / "ends", eos_token_id=end)
        self.assertEqual(len(self.job(model, [request])[1]["token_ids"]), plain.index(end) + 1)
        ignored = self.job(model, [{**request, "ignore_eos": True}])[1]
        self.assertEqual((ignored["token_ids"], ignored["finish_reason"]), (plain, "length"))
        stopped = self.job(model, [{**request, "ignore_eos": True, "stop_token_ids": [plain[7], end]}])[1]
        self.assertEqual(stopped["finish_reason"], "stop")

    def test_min_tokens(self):
        request = {"id": 1, "prompt_ids": [3, 4, 5], "max_tokens": 24}
        plain = self.job(self.tiny(), [request])[1]["token_ids"]
        end, other = plain[2], plain[6]
        model = write_tiny_model(self.folder / "ends", eos_token_id=end)
        for least in (1, 5, 24):
            answer = self.job(model, [{**request, "min_tokens": least, "stop_token_ids": [other]}])[1]["token_ids"]
            self.assertFalse({end, other} & set(answer[:least]), answer)
            self.assertGreaterEqual(len(answer), least)
            if least < 24 and len(answer) < 24:
                self.assertIn(answer[-1], (end, other))
        # Forbidden until then even where the end of a sequence is ignored.
        ignored = self.job(model, [{**request, "min_tokens": 5, "ignore_eos": True}])[1]["token_ids"]
        self.assertEqual((len(ignored), end in ignored[:5]), (24, False))

    def test_min_tokens_and_stop_strings(self):
        request = {"id": 1, "prompt": "The old man looked at the", "max_tokens": 32, "ignore_eos": True}
        plain = self.job(self.demo, [request])[1]
        self.assertGreater(plain["text"].count("e"), 3)
        for least in (0, 1, 7, 20, 32):
            cut = self.job(self.demo, [{**request, "stop": "e", "min_tokens": least}])[1]
            tokens = cut["token_ids"]
            shorter = self.job(self.demo, [{**request, "max_tokens": max(least, 1)}])[1]["text"] if least else ""
            self.assertGreaterEqual(len(tokens), least)
            if cut["finish_reason"] == "stop":  # at the first within a later token
                self.assertEqual(cut["text"], plain["text"][:plain["text"].index("e", len(shorter))])
                self.assertEqual(tokens, plain["token_ids"][:len(tokens)])
            else:
                self.assertEqual(least, 32)
                self.assertEqual(cut["text"], plain["text"])

    def test_logprobs(self):
        request = {"id": 1, "prompt": "The old man looked at the", "max_tokens": 8}
        plain = self.job(self.demo, [request])[1]
        answer = self.job(self.demo, [{**request, "logprobs": 5}])[1]
        self.assertEqual(list(answer), ["id", "text", "token_ids", "finish_reason", "logprobs", "usage"])
        self.assertEqual({k: v for k, v in answer.items() if k != "logprobs"}, plain)
        ids = [token["token_id"] for token in answer["logprobs"]]
        self.assertEqual(ids, plain["token_ids"])
        self.assertEqual("".join(token["token"] for token in answer["logprobs"]), plain["text"])
        for token in answer["logprobs"]:
            self.assertEqual(list(token), ["token_id", "token", "logprob", "top"])
            self.assertEqual(len(token["top"]), 5)
            self.assertEqual(token["top"][0], {k: v for k, v in token.items() if k != "top"})
            logprobs = [other["logprob"] for other in token["top"]]
            self.assertEqual(logprobs, sorted(logprobs, reverse=True))
            self.assertLessEqual(sum(math.exp(p) for p in logprobs), 1 + 1e-6)
        # The same as weft score gives, and of the model itself whatever the sampling.
        scored = self.job(self.demo, [{"id": 1, "prompt": request["prompt"], "continuation_ids": ids}], command="score")[1]
        for token, logprob in zip(answer["logprobs"], scored["logprobs"], strict=True):
            self.assertTrue(math.isclose(token["logprob"], logprob, abs_tol=1e-6))
        hot = self.job(self.demo, [{**request, "logprobs": 0, "temperature": 2, "top_k": 9, "n": 3}])[1]
        for choice in hot["choices"]:
            self.assertEqual([token["top"] for token in choice["logprobs"]], [[]] * len(choice["token_ids"]))
            scored = self.job(self.demo, [{"id": 1, "prompt": request["prompt"], "continuation_ids": choice["token_ids"]}],
                              command="score")[1]
            for token, logprob in zip(choice["logprobs"], scored["logprobs"], strict=True):
                self.assertTrue(math.isclose(token["logprob"], logprob, abs_tol=1e-6))
        # Without a tokenizer there are no texts; all of a small vocabulary may be asked for.
        bare = self.job(self.tiny(), [{"id": 1, "prompt_ids": [3, 4], "max_tokens": 3, "logprobs": 20, "min_tokens": 3,
                                       "stop_token_ids": [7]}])[1]
        self.assertEqual([(token["token"], len(token["top"])) for token in bare["logprobs"]], [(None, 20)] * 3)

    def test_echo(self):
        request = {"id": 1, "prompt": "The old man looked at the", "max_tokens": 12}
        plain = self.job(self.demo, [request])[1]
        echoed = self.job(self.demo, [{**request, "echo": True}])[1]
        self.assertEqual(echoed, {**plain, "text": request["prompt"] + plain["text"]})
        stop = plain["text"][9:12]
        cut = self.job(self.demo, [{**request, "stop": stop}])[1]
        self.assertEqual(self.job(self.demo, [{**request, "stop": stop, "echo": True}])[1],
                         {**cut, "text": request["prompt"] + cut["text"]})
        write_lines(self.input, [{**request, "echo": True, "logprobs": 1}])
        self.output.unlink()
        self.refused_job(USAGE, ["in.jsonl:1", "'echo'", "'logprobs'", "'prompt_logprobs'"], model=self.demo)

    def test_crlf_blank_lines_mark_and_no_last_newline(self):
        self.input.write_bytes(b'\xef\xbb\xbf{"id":1,"prompt_ids":[3],"max_tokens":2}\r\n\r\n  \n{"id":2,"prompt_ids":[4],"max_tokens":2}')
        self.assertEqual(set(self.job(self.tiny(), None)), {1, 2})

    def test_score(self):
        generated = self.job(self.tiny(), [{"id": 1, "prompt_ids": [3, 4, 5], "max_tokens": 8}])[1]["token_ids"]
        request = {"id": "s", "prompt_ids": [3, 4, 5], "continuation_ids": generated}
        other = {"id": "t", "prompt_ids": [3, 4, 5], "continuation_ids": [(t + 1) % 64 for t in generated]}
        scores = self.job(self.tiny(), [request, other], command="score")
        for score in scores.values():
            self.assertEqual(list(score), ["id", "logprobs", "logprob", "greedy"])
            self.assertEqual(len(score["logprobs"]), len(generated))
            self.assertTrue(all(p <= 0 for p in score["logprobs"]))
            self.assertTrue(math.isclose(score["logprob"], sum(score["logprobs"]), rel_tol=1e-9))
        self.assertEqual(scores["s"]["greedy"], [True] * len(generated))
        self.assertFalse(scores["t"]["greedy"][0])

    def test_every_parameter_of_a_retention_changes_what_stays(self):
        ids = [(7 * i * i + 11 * i) % 4000 + 4 for i in range(80)]
        request = [{"id": 0, "prompt_ids": ids[:60], "continuation_ids": ids[60:]}]
        parameters = ["", ":sinks=4", ":window=3", ":pool=3", ":decay=0.5", ":statistic=largest", ":rest=true", ":once=true"]
        rules = ["h2o:6:6" + p for p in parameters]
        rules += ["h2o:6:6:layers=1,1.5,0.5,1", "h2o:6:6:layers=1,1.5/0.5/0.5/1.5,1,full/1/1/1"]
        scores = {rule: self.job(self.demo, request, "--retention", rule, command="score")[0]["logprobs"] for rule in rules}
        for rule in rules:
            with self.subTest(rule):
                self.assertEqual([rule], [other for other in rules if scores[other] == scores[rule]])

    def test_cold_tokens_and_their_bits_change_scores_and_need_int8(self):
        ids = [(7 * i * i + 11 * i) % 4000 + 4 for i in range(80)]
        request = [{"id": 0, "prompt_ids": ids[:60], "continuation_ids": ids[60:]}]
        def scores(*flags):
            return self.job(self.demo, request, "--retention", *flags, command="score")[0]["logprobs"]
        evicts = scores("h2o:6:6", "--kv-dtype", "int8")
        self.assertEqual(scores("h2o:6:6:cold=0", "--kv-dtype", "int8"), evicts)
        by_bits = [scores("h2o:6:6:cold=1.0", "--kv-dtype", kv) for kv in ("int8", "int8:3:2", "int8:1:1")]
        some = [scores(f"h2o:6:6:cold={cold}", "--kv-dtype", "int8") for cold in ("0.5", "9")]
        different = [evicts, *by_bits, *some]
        self.assertEqual(len({str(each) for each in different}), len(different))
        self.assertEqual(scores("h2o:6:6:cold=1.0", "--kv-dtype", "int8:4:2"), by_bits[0])
        for flags, wanted in ((["h2o:6:6:cold=1.0"], "give --kv-dtype int8"),
                              (["h2o:6:6:cold=1.0", "--kv-dtype", "int4"], "give --kv-dtype int8"),
                              (["h2o:6:6", "--kv-dtype", "int8:4:2"], "add cold=1.0 or read=0.1"),
                              (["h2o:6:6:cold=1.0", "--kv-dtype", "int8:5:2"], "int8:KEYS:VALUES")):
            self.refused(USAGE, wanted, "score", "--model", self.demo, "--input", self.input, "--output",
                         self.folder / "no.jsonl", "--retention", *flags)

    def test_what_is_read_in_full_changes_scores_and_needs_int8(self):
        ids = [(7 * i * i + 11 * i) % 4000 + 4 for i in range(80)]
        request = [{"id": 0, "prompt_ids": ids[:60], "continuation_ids": ids[60:]}]
        def scores(retention, kv="int8"):
            return self.job(self.demo, request, "--retention", retention, "--kv-dtype", kv, command="score")[0]["logprobs"]
        full = scores("full")
        for read in ("1.0", "80", "500"):
            self.assertEqual(scores(f"full:read={read}"), full)
            self.assertEqual(scores(f"h2o:0.2:0.2:read={read}", "int8:3:1"), scores("h2o:0.2:0.2"))
        different = [full, scores("h2o:0.2:0.2"), *(scores(f"full:read={read}") for read in ("0.1", "0.5", "12")),
                     scores("full:read=0.1", "int8:3:2"), scores("full:read=0.1", "int8:1:1"), scores("h2o:0.2:0.2:read=0.1")]
        self.assertEqual(len({str(each) for each in different}), len(different))
        self.assertEqual(scores("full:read=0.1", "int8:4:2"), scores("full:read=0.1"))
        for retention, kv, wanted in (("full:read=0.1", "int4", "give --kv-dtype int8"),
                                      ("full:read=0.1", "auto", "give --kv-dtype int8"),
                                      ("full:read=0", "int8", "a number of tokens or a share above 0"),
                                      ("full:read=1", "int8", "write 1.0 for all"),
                                      ("h2o:6:6:cold=1.0:read=0.1", "int8", "leave one of the two out"),
                                      ("h2o:6:6:rest=true:read=0.1", "int8", "leave one of the two out"),
                                      ("h2o:6:6:positions=rolled:read=0.1", "int8", "cannot be turned")):
            self.refused(USAGE, wanted, "score", "--model", self.demo, "--input", self.input, "--output",
                         self.folder / "no.jsonl", "--retention", retention, "--kv-dtype", kv)

    def test_auto_says_what_it_chooses_and_computes_that(self):
        ids = [(7 * i * i + 11 * i) % 4000 + 4 for i in range(80)]
        request = [{"id": 0, "prompt_ids": ids[:60], "continuation_ids": ids[60:]}]
        for share in ("0.5", "0.3", "0.1", "1"):
            with self.subTest(share):
                chosen = self.job(self.demo, request, "--retention", f"auto:{share}", command="score")
                self.output.unlink()
                said = WEFT.run("score", "--model", self.demo, "--input", self.input, "--output", self.output, "--backend", "cpu",
                                "--gpu-batch-size", 1, "--num-gpu-batches", 1, "--percent", 100, 0, 100, 0, 100, 0,
                                "--retention", f"auto:{share}").stderr.decode()
                words = re.search(rf"auto:{share} is (--retention \S+ --kv-dtype \S+)", said).group(1).split()
                self.assertEqual(self.job(self.demo, request, *words, command="score"), chosen)
        for flags in (["--kv-dtype", "int8"], ["--or-kv-dtype", "int4"]):
            self.refused(USAGE, flags[0], "generate", "--model", self.demo, "--input", self.input, "--output",
                         self.folder / "no.jsonl", "--retention", "auto:0.2", *flags)

    def test_continuations_of_one_prompt_share_its_prefill(self):
        prompts = [[3, 4, 5, 6], [7, 8, 9], [3, 4, 5, 6], [3, 4, 5, 6], [7, 8, 9]]
        requests = [{"id": i, "prompt_ids": prompt, "continuation_ids": list(range(10 + i, 14 + 2 * i))}
                    for i, prompt in enumerate(prompts)]
        report = self.folder / "report.json"
        block = ("--gpu-batch-size", 5, "--num-gpu-batches", 1, "--percent", 100, 0, 100, 0, 100, 0)
        together = self.job(self.tiny(), requests, *block, "--report", report, command="score")
        self.assertEqual(json.loads(report.read_text())["tokens"], {"prompt": 18, "shared_prompt": 11, "generated": 30})
        for request in requests:
            self.assertEqual(self.job(self.tiny(), [request], command="score")[request["id"]], together[request["id"]])

    def test_score_text(self):
        scores = self.job(self.demo, [{"id": 1, "prompt": "It was", "continuation": " a dark"}], command="score")
        write_lines(self.input, [{"id": 1, "text": " a dark"}])
        WEFT.run("tokenize", "--model", self.demo, "--input", self.input, "--output", self.folder / "ids.jsonl")
        self.assertEqual(len(scores[1]["logprobs"]), len(read_lines(self.folder / "ids.jsonl")[0]["ids"]) - 1)

    def test_tokenize_without_the_first_token(self):
        write_lines(self.input, [{"id": 1, "text": "the sea"}])
        ids = []
        for flags in [], ["--no-bos"]:
            self.output.unlink(missing_ok=True)
            WEFT.run("tokenize", "--model", self.demo, "--input", self.input, "--output", self.output, *flags)
            ids.append(read_lines(self.output)[0]["ids"])
        self.assertEqual(ids[0], [2, *ids[1]])

    def test_tokenize_without_ids(self):
        """A line's number is its id, as in a request file."""
        write_lines(self.input, [{"text": "the sea"}, {"text": "the ship"}])
        done = WEFT.run("tokenize", "--model", self.demo, "--input", self.input, "--output", self.output)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line["id"] for line in read_lines(self.output)], ["0", "1"])
        self.refused(USAGE, "exists", "tokenize", "--model", self.demo, "--input", self.input, "--output", self.output)

    def test_a_converted_checkpoint_answers_the_same(self):
        requests = [{"id": 1, "prompt": "It was a dark night", "max_tokens": 12}]
        packed = self.folder / "packed"
        done = WEFT.run("convert", "--model", self.demo, "--output", packed)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.job(packed, requests), self.job(self.demo, requests))
        self.refused(USAGE, "exists", "convert", "--model", self.demo, "--output", packed)
        self.refused(USAGE, "no such folder", "convert", "--model", self.folder / "nowhere", "--output", self.folder / "x")

    def test_inspect(self):
        for path in self.demo, SOURCE / "configs" / "models" / "opt-1.3b.json", next((SOURCE / "configs" / "policies").iterdir()):
            done = WEFT.run("inspect", path)
            self.assertEqual((done.returncode, done.stderr), (0, b""), path)
            self.assertTrue(done.stdout)
        self.refused(USAGE, "nowhere", "inspect", self.folder / "nowhere")

    def test_inspect_counts_the_windows_of_layers(self):
        said = WEFT.run("inspect", SOURCE / "configs/models/gemma-3-27b.json").stdout.decode()
        self.assertIn("52 of 62 layers have a sliding window of 1024 tokens", said)
        tokens = 10 * 131072 + 52 * 1024
        self.assertIn(f"496.00 KiB per token, {tokens * 8192 / 2**30:.2f} GiB for a sequence of 131072 tokens", said)

    def test_inspect_counts_shared_keys_and_values_once(self):
        said = WEFT.run("inspect", SOURCE / "tests/data/golden/gemma4-slides-shared-bf16").stdout.decode()
        self.assertIn("264 B per token, 19.88 KiB for a sequence of 128 tokens, 10.25 KiB of it with all KV on the device", said)

    def test_inspect_shows_the_budgets_that_a_policy_gives(self):
        policy = self.folder / "policy.json"
        for text, budgets in (('{"budgets":{"device":"4GiB","disk":1024}}', {"device": "4.00 GiB", "disk": "1.00 KiB"}), ("{}", None)):
            policy.write_text(text)
            self.assertEqual(json.loads(WEFT.run("inspect", policy).stdout).get("budgets"), budgets)

    def test_a_snapshot_of_the_hub_has_its_name(self):
        model = self.folder / "models--some-org--tiny--one"
        (model / "snapshots").mkdir(parents=True)
        snapshot = write_tiny_model(model / "snapshots" / "0a1b2c")
        report = self.folder / "report.json"
        self.job(snapshot, [{"id": 1, "prompt_ids": [3], "max_tokens": 2}], "--report", report)
        self.assertEqual(json.loads(report.read_text())["model"], "some-org/tiny--one")
        self.refused(DATA, "one of those in snapshots/", "inspect", model)

    def test_version(self):
        self.assertRegex(WEFT.run("--version").stdout.decode(), r"^weft \d+\.\d+\.\d+\n$")


class Records(Case):
    requests = [{"id": i, "prompt_ids": [i, 2], "max_tokens": 4} for i in range(6)]

    def test_report_and_trace(self):
        report_path, trace_path = self.folder / "report.json", self.folder / "trace.json"
        self.job(self.tiny(), self.requests, "--report", report_path, "--trace", trace_path, "--percent", 40, 30, 40, 30, 40, 30,
                 "--num-gpu-batches", 3, "--gpu-batch-size", 1)
        report = json.loads(report_path.read_text())
        lanes = ["disk_read", "disk_write", "host_to_device", "device_to_host", "device_compute", "host_compute"]
        self.assertLessEqual({"tokens_per_second", "placement", "lanes", "peak_bytes", "policy", "machine"}, set(report))
        self.assertEqual(list(report["tokens_per_second"]), ["total", "prefill", "decode"])
        self.assertEqual(list(report["placement"]), ["weights", "kv", "activations"])
        for tiers in report["placement"].values():
            self.assertEqual(list(tiers), ["device", "host", "disk"])
            self.assertTrue(math.isclose(sum(tier["achieved"] for tier in tiers.values()), 1))
            for tier in tiers.values():
                self.assertEqual(list(tier), ["asked", "achieved", "bytes"])
        self.assertEqual(list(report["lanes"]), lanes)
        self.assertTrue(all(list(lane) == ["bytes", "busy_seconds", "utilisation"] for lane in report["lanes"].values()))
        self.assertTrue(all(0 <= lane["utilisation"] <= 1 for lane in report["lanes"].values()))
        self.assertEqual(list(report["peak_bytes"]), ["device", "host", "disk"])
        self.assertEqual((report["policy"]["gpu_batch_size"], report["policy"]["num_gpu_batches"]), (1, 3))

        events = json.loads(trace_path.read_text())["traceEvents"]
        tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.assertEqual(sorted(tracks.values()), sorted(lanes))
        spans = [e for e in events if e["ph"] == "X"]
        self.assertTrue(spans and all(e["tid"] in tracks and e["dur"] >= 0 for e in spans))
        names = {e["name"] for e in spans}
        self.assertLessEqual({"embed", "layer 0 attention", "layer 1 mlp", "head"}, names)
        self.assertLessEqual({"load layer 1 mlp weights", "load layer 1 KV", "store layer 1 KV"}, names)
        self.assertFalse([name for name in names if "unit" in name], names)
        moves = [e for e in spans if e["name"].startswith(("load ", "store "))]
        self.assertEqual([e for e in spans if "bytes" in e["args"]], moves)
        for lane, cell in report["lanes"].items():
            track = next(tid for tid, name in tracks.items() if name == lane)
            self.assertEqual(sum(e["args"].get("bytes", 0) for e in spans if e["tid"] == track), cell["bytes"], lane)
        for tid in tracks:  # one thing at a time on every track
            mine = sorted((e["ts"], e["dur"]) for e in spans if e["tid"] == tid)
            self.assertTrue(all(a + d <= b + 0.2 for (a, d), (b, _) in zip(mine, mine[1:])), tracks[tid])

    def test_bench_traces_what_it_times(self):
        trace_path = self.folder / "trace.json"
        done = WEFT.run("bench", "--model", self.tiny(), "--prompt-len", 8, "--gen-len", 4, "--percent", 0, 100, 100, 0, 100, 0,
                        "--gpu-batch-size", 1, "--num-gpu-batches", 2, "--trace", trace_path)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        events = json.loads(trace_path.read_text())["traceEvents"]
        spans = [e for e in events if e["ph"] == "X"]
        for phase, steps in ("prefill", {0}), ("decode", {1, 2, 3}):
            mine = [e for e in spans if e["args"]["step"] in steps]
            gaps = report["gaps"][phase]
            self.assertEqual(sum(lane["ops"] for lane in gaps.values()), len(mine))
            moved = gaps["host_to_device"]["bytes_per_second"] * gaps["host_to_device"]["seconds"]
            self.assertAlmostEqual(moved / sum(e["args"].get("bytes", 0) for e in mine), 1)
            self.assertLessEqual(gaps["host_to_device"]["busy_seconds"], gaps["host_to_device"]["seconds"] * 1.001)
        self.assertNotIn("gaps", json.loads(WEFT.run("bench", "--model", self.tiny(), "--prompt-len", 8, "--gen-len", 2).stdout))

    def test_bench_refuses_what_it_would_ignore(self):
        for flags in (["--trace", self.folder / "t"], ["--model", self.demo], ["--device-memory", "1GiB"], ["--requests", 7]):
            self.refused(USAGE, f"--lanes excludes {flags[0]}", "bench", "--lanes", *flags)
        self.refused(USAGE, "--requests must be 0 or more", "bench", "--model", self.tiny(), "--prompt-len", 8, "--gen-len", 4,
                     "--requests", -1)
        self.refused(USAGE, "--ceilings", "bench", "--model", self.tiny(), "--ceilings", self.folder / "none.json")

    def test_the_machine_is_saved(self):
        file = self.folder / "machine.json"
        done = WEFT.run("bench", "--lanes", "--quick", "--save", file, "--name", "here", "--backend", "cpu", "--disk-dir",
                        self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        machine = json.loads(file.read_text())
        self.assertEqual((machine["name"], machine["measured"]), ("here", True))
        self.assertIn("weft bench --lanes --save --quick", machine["source"])
        self.assertEqual(json.loads(done.stdout), machine)
        self.refused(USAGE, "--save requires --lanes", "bench", "--save", self.folder / "other.json")
        self.refused(IO, "--save", "bench", "--lanes", "--save", self.folder / "none" / "m.json")

    def test_a_flag_beats_the_file_and_the_report_is_a_policy(self):
        policy, report = self.folder / "policy.json", self.folder / "report.json"
        policy.write_text(json.dumps({"gpu_batch_size": 2, "num_gpu_batches": 2, "attention": "host", "kv": {"host": 1.0},
                                      "retention": {"rule": "h2o", "heavy": 0.29, "recent": 2, "of": "prompt"},
                                      "budgets": {"device": "8MiB", "host": "8MiB"}}))
        first = self.job(self.tiny(), self.requests, "--policy", policy, "--gpu-batch-size", 1, "--retention", "recent:3",
                         "--attention", "device", "--host-memory", "9MiB", "--no-overlap", "--report", report)
        ran = json.loads(report.read_text())["policy"]
        self.assertEqual((ran["gpu_batch_size"], ran["num_gpu_batches"], ran["attention"], ran["overlap"]), (1, 2, "device", False))
        self.assertEqual((ran["retention"]["rule"], ran["retention"]["recent"]), ("recent", 3))
        self.assertEqual((ran["budgets"]["device"], ran["budgets"]["host"]), (8 << 20, 9 << 20))
        policy.write_text(json.dumps(ran))
        self.assertEqual(first, self.job(self.tiny(), self.requests, "--policy", policy, "--report", report))
        self.assertEqual(json.loads(report.read_text())["policy"], ran)


    def test_layers_that_keep_differently_are_in_reports_and_plans(self):
        policy, report = self.folder / "policy.json", self.folder / "report.json"
        kept = {"rule": "h2o", "heavy": 0.25, "recent": 0.25, "sinks": 0, "of": "prompt+generation", "layers": ["full", 1.0]}
        policy.write_text(json.dumps({"retention": kept, "gpu_batch_size": 2, "num_gpu_batches": 1}))
        requests = [{"id": i, "prompt_ids": [2] * 20, "max_tokens": 20} for i in range(2)]
        first = self.job(self.tiny(), requests, "--policy", policy, "--report", report, planned=True)
        self.assertEqual(json.loads(report.read_text())["policy"]["retention"], kept)
        text = self.job(self.tiny(), requests, "--retention", "h2o:0.25:0.25:layers=full,1", planned=True)
        self.assertEqual(first, text)
        self.output.unlink()
        done = WEFT.run("generate", "--model", self.tiny(), "--input", self.input, "--output", self.output, "--backend", "cpu",
                        "--policy", policy, "--verbose")
        self.assertIn("21 to 39 slots", done.stderr.decode())
        self.assertIn("retention h2o by layer", done.stderr.decode())
        self.output.unlink()
        by_head = {**kept, "layers": [1.0, ["full", 1.0]]}
        policy.write_text(json.dumps({"retention": by_head, "gpu_batch_size": 2, "num_gpu_batches": 1}))
        text = self.job(self.tiny(), requests, "--policy", policy, "--report", report, planned=True)
        self.assertEqual(json.loads(report.read_text())["policy"]["retention"], by_head)
        self.output.unlink()
        done = WEFT.run("generate", "--model", self.tiny(), "--input", self.input, "--output", self.output, "--backend", "cpu",
                        "--policy", policy, "--verbose")
        self.assertIn("KV cache: 2 buffers of 4.00 KiB to 8.00 KiB", done.stderr.decode())
        self.assertIn("retention h2o by head", done.stderr.decode())
        self.assertEqual(text, self.job(self.tiny(), requests, "--retention", "h2o:0.25:0.25:layers=1,full/1", planned=True))
        self.output.unlink()
        self.refused(USAGE, ["layers[1] has 3 factors", "2 KV heads"], "generate", "--model", self.tiny(), "--input",
                     self.input, "--output", self.output, "--retention", "h2o:0.25:0.25:layers=1,1/1/1")
        machine = SOURCE / "configs/machines/cpu.json"
        self.refused(USAGE, ["'layers' has 2 entries", "48 layers"], "plan", "--model", SOURCE / "configs/models/opt-30b.json",
                     "--machine", machine, "--retention", "h2o:0.1:0.1:layers=1.5,0.5")

    def test_verbose_says_what_is_decided_and_why(self):
        write_lines(self.input, [{"prompt_ids": [2, 3]}])
        command = ["generate", "--model", self.tiny(), "--input", self.input, "--output", self.output, "--backend", "cpu"]
        everything = ["--percent", 0, 100, 100, 0, 100, 0, "--gpu-batch-size", 1, "--num-gpu-batches", 1]
        for flags, words in ((["--verbose", *everything], ["nothing is planned", "on the host", "window of weight units: "]),
                             (["-v"], ["bottleneck: ", "the best"])):
            done = WEFT.run(*command, *flags)
            self.output.unlink()
            self.assertEqual(done.returncode, 0, done.stderr)
            for each in ["backend cpu: --backend cpu", "weights: ", "KV cache: ", "work space: ", *words]:
                self.assertIn(each, done.stderr.decode())
        self.assertNotIn("work space", WEFT.run(*command, *everything).stderr.decode())
        self.assertEqual(WEFT.run(*command, "-v", "--quiet").returncode, USAGE)


class Shards(Case):
    requests = [{"id": i, "prompt_ids": [i, 2], "max_tokens": 4} for i in range(5)]

    def shard(self, text, *flags):
        output = self.folder / f"{text.replace('/', '-of-')}.jsonl"
        done = WEFT.run("generate", "--model", self.tiny(), "--input", self.input, "--output", output, "--backend", "cpu",
                        "--quiet", "--shard", text, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def merge(self, *parts, output=None):
        return ["merge", "--input", self.input, "--output", output or self.folder / "all.jsonl", *parts]

    def test_shards_and_merge_answer_as_one_run(self):
        whole = self.job(self.tiny(), self.requests)
        parts = [self.shard(f"{k}/7") for k in range(1, 8)]  # two of them have no requests
        self.assertEqual([[answer["id"] for answer in read_lines(part)] if part.stat().st_size else [] for part in parts],
                         [[0], [1], [2], [3], [4], [], []])
        done = WEFT.run(*self.merge(*parts))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("5 answers of 7 shards", done.stderr.decode())
        self.assertEqual([whole[i] for i in range(5)], read_lines(self.folder / "all.jsonl"))
        self.refused(USAGE, ["--output", "all.jsonl", "exists"], *self.merge(*parts))

    def test_score(self):
        requests = [{"id": i, "prompt_ids": [i, 2], "continuation_ids": [4, 5]} for i in range(3)]
        whole = self.job(self.tiny(), requests, command="score")
        self.assertEqual(set(self.job(self.tiny(), requests, "--shard", "1/2", command="score")), {0, 2})
        first = self.output.rename(self.folder / "1.jsonl")
        self.job(self.tiny(), requests, "--shard", "2/2", command="score")
        self.assertEqual(WEFT.run(*self.merge(first, self.output)).returncode, 0)
        self.assertEqual([whole[i] for i in range(3)], read_lines(self.folder / "all.jsonl"))

    def test_a_shard_resumes_its_own_output_alone(self):
        write_lines(self.input, self.requests)
        part = self.shard("2/2")
        whole = part.read_bytes()
        part.write_bytes(whole[:-5])
        self.assertEqual(self.shard("2/2", "--resume").read_bytes(), whole)
        for other in "1/2", "2/3":
            self.refused(USAGE, ["2-of-2.jsonl: belongs to another run: 'shard' was '2/2'", "--resume"], "generate", "--model",
                         self.tiny(), "--input", self.input, "--output", part, "--resume", "--shard", other)

    def test_every_shard_checks_all_requests(self):
        write_lines(self.input, [*self.requests, {"id": 5, "prompt_ids": [64]}])
        for shard in "1/2", "2/2":
            self.refused_job(USAGE, ["in.jsonl:6: ", "from 0 to 63"], "--shard", shard)

    def test_mistakes(self):
        write_lines(self.input, self.requests)
        for text in "0/2", "3/2", "2", "1/2/3", "a/b":
            self.refused_job(USAGE, ["--shard", "K/N", f"'{text}'"], "--shard", text)
        for choice in ("--or-kv-dtype", "int8"), ("--or-weight-dtype", "int4"), ("--or-retention", "recent:0.5"):
            self.refused_job(USAGE, ["--shard", "would choose by itself among " + choice[0]], "--shard", "1/2", *choice)
        one, two = self.shard("1/2"), self.shard("2/2")
        self.refused(USAGE, ["in.jsonl: 2 of 5 requests are not answered: 1 of line 2, 3 of line 4"], *self.merge(one))
        self.refused(USAGE, ["2-of-2.jsonl:1: ", "a second time", "2-of-2.jsonl:1;"], *self.merge(one, two, two))
        self.refused(USAGE, ["part", "nowhere", "there is no such file"], *self.merge(one, self.folder / "nowhere"))
        self.refused(USAGE, ["--output", "a directory"], *self.merge(one, two, output=self.folder))
        self.refused(IO, "--output", *self.merge(one, two, output=self.folder / "nowhere" / "all.jsonl"))
        self.refused(USAGE, "parts is required", *self.merge())
        two.write_bytes(two.read_bytes()[:-1])
        self.refused(USAGE, ["2-of-2.jsonl:2: ", "cut short", "--resume"], *self.merge(one, two))


class CommandLine(Case):
    def setUp(self):
        super().setUp()
        write_lines(self.input, [{"id": 1, "prompt_ids": [3, 4], "max_tokens": 4}])

    def test_flags(self):
        self.refused(USAGE, ["--modle", "did you mean --model?"], "generate", "--modle", "x")
        self.refused(USAGE, ["'generat'", "did you mean generate?"], "generat")
        self.refused(USAGE, "subcommand", )
        self.refused(USAGE, "--output", "generate", "--model", self.tiny(), "--input", self.input)
        for flags, words in [(["--gpu-batch-size", 0], ["--gpu-batch-size", "got 0"]),
                             (["--gpu-batch-size", "many"], "--gpu-batch-size"),
                             (["--num-gpu-batches", 1 << 20], ["--num-gpu-batches", "32768"]),
                             (["--max-tokens", 0], ["--max-tokens", "got 0"]), (["--threads", -1], ["--threads", "-1"]),
                             (["--threads", 20000], ["--threads", "20000"]), (["--max-tokens", 1 << 63], ["--max-tokens"]),
                             (["--kv-dtype", "int3"], ["--kv-dtype must be", "int8 or int4, got 'int3'"]),
                             (["--kv-dtype", "int8", "--kv-keys", "int8"], ["--kv-keys: keys have a type", "int4"]),
                             (["--kv-dtype", "int4", "--kv-keys", "float16"], ["--kv-keys: keys are float16"]),
                             (["--or-kv-dtype", "int5"], ["--or-kv-dtype must be", "int8 or int4, got 'int5'"]),
                             (["--or-weight-dtype", "fp4"], ["--or-weight-dtype must be", "got 'fp4'"]),
                             (["--kv-dtype", "int8", "--compress-cache"], ["--compress-cache", "--kv-dtype"]),
                             (["--percent", 1, 2, 3], ["--percent", "6"]),
                             (["--percent", 60, 60, 0, 0, 0, 0], ["--percent", "100"]),
                             (["--percent", -1, 0, 0, 0, 0, 0], "--percent"),
                             (["--percent", "nan", 0, 0, 0, 0, 0], "--percent"),
                             (["--retention", "h2o:0.1"], ["--retention", "h2o:HEAVY:RECENT"]),
                             (["--retention", "h20:0.1:0.1"], ["h20", "did you mean 'h2o'?"]),
                             (["--retention", "h2o:1.5:0.1"], ["--retention", "1.5"]),
                             (["--retention", "recent:-4"], ["--retention", "-4"]),
                             (["--retention", ""], "--retention"), (["--report="], "--report"),
                             (["--attention", "gpu"], ["--attention", "gpu"]),
                             (["--disk-engine", "mmap"], ["--disk-engine", "mmap"]),
                             (["--dtype", "int8"], ["--dtype", "int8"]),
                             (["--weights", "random:x"], ["--weights", "random:x"]),
                             (["--disk-dir", self.folder / "nowhere"], ["--disk-dir", "nowhere"]), (["extra"], "extra")]:
            self.refused_job(USAGE, words, *flags)
        for number in 1 << 63, 1 << 64, "9" * 30:
            self.refused_job(USAGE, ["--seed", "too large"], "--seed", number)
        for number in "0x10", "1e3", "7 ", "1_0":
            self.refused_job(USAGE, ["--seed", "no whole number"], "--seed", number)
        write_lines(self.input, [{"id": 1, "prompt_ids": [3, 4]}])
        padded = self.job(self.tiny(), None, "--max-tokens", "0010", "--temperature", 1, "--seed", "+012")
        self.assertEqual(padded, self.job(self.tiny(), None, "--max-tokens", 10, "--temperature", 1, "--seed", 12))
        for size in "4XB", "4 gib", "1e3", "-1", ".5GiB", "0.3B", "GiB", "1..5GiB", "99999999TiB":
            self.refused_job(USAGE, ["--device-memory", size, "4GiB"], "--device-memory=" + size)

    def test_lengths_that_no_context_holds(self):
        config = SOURCE / "configs/models/opt-125m.json"
        machine = SOURCE / "configs/machines/t4.json"
        for flags in (["--gen-len", (1 << 63) - 1], ["--prompt-len", (1 << 63) - 1], ["--gen-len", 1 << 40]):
            self.refused(USAGE, "--prompt-len and --gen-len must be from 1", "plan", "--model", config, "--machine", machine, *flags)

    def test_files_of_others_stay(self):
        config, machine = SOURCE / "configs/models/opt-125m.json", SOURCE / "configs/machines/t4.json"
        plan = ["plan", "--model", config, "--machine", machine, "--gen-len", 4, "--requests", 8, "--sweep"]
        for name in "sweep.csv", "sweep.svg":
            folder = self.folder / name
            folder.mkdir()
            (folder / name).write_text("mine\n")
            self.refused(USAGE, [name, "no sweep wrote it"], *plan, folder)
            self.assertEqual((folder / name).read_text(), "mine\n")
        twice = self.folder / "twice"
        for flags in (["--output", twice, "--report"], ["--report", twice, "--trace"], ["--output", twice, "--trace"]):
            self.refused(USAGE, f"is also the file of {flags[0]}", *plan[:-1], *flags, self.folder / "." / "twice")
        self.refused(USAGE, "is also the file of --report", "bench", "--model", self.tiny(), "--report", twice, "--trace", twice)
        self.refused(USAGE, "is also the file of --output", "analyze", "--model", self.tiny(), "--input", self.input, "--output",
                     twice, "--page", twice)
        self.assertFalse(twice.exists())
        self.refused(USAGE, "--sweep -: this is not written to standard output", *plan, "-")
        self.refused(USAGE, "--page -: this is not written to standard output", "analyze", "--model", self.tiny(), "--input",
                     self.input, "--page", "-")
        for _ in range(2):  # its own are replaced
            done = WEFT.run(*plan, self.folder / "sweep")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_plan_shows_names_literally(self):
        model = self.folder / "a\x1b[31mb"
        model.mkdir()
        shutil.copy(SOURCE / "configs/models/opt-125m.json", model / "config.json")
        done = WEFT.run("plan", "--model", model / "config.json", "--machine", SOURCE / "configs/machines/t4.json", "--gen-len", 4)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(b"\x1b", done.stdout)
        self.assertIn(b"\\u001b[31mb", done.stdout)

    def test_the_words_of_other_tools(self):
        self.refused(USAGE, ["'serve'", "weft generate", "no port"], "serve")
        self.refused(USAGE, ["'run'", "here: weft generate"], "run", "model")
        for flags, words in [(["--gpu-memory-utilization", 0.9], "here: --device-memory"), (["-ngl", 99], "here: --device-memory"),
                             (["--max-model-len=4096"], "config.json"), (["--temp", 0.7], "here: --temperature"),
                             (["--tensor-parallel-size", 2], "--shard K/N"), (["-m", "model"], "'-m'; here: --model"),
                             (["-p", "Hello"], "here: --input FILE"), (["--max_new_tokens", 9], "here: --max-tokens"),
                             (["-n", 9], "here: --max-tokens"), (["--n-predict", 9], "here: --max-tokens"),
                             (["--batch-size", 8], "here: --gpu-batch-size"), (["-t", 4], "here: --threads"),
                             (["--cpu-offload-gb", 4], "here: --percent"), (["--device_map=auto"], "here: --device-memory"),
                             (["--max_token", 5], "did you mean --max-tokens?")]:
            self.refused_job(USAGE, words, *flags)

    def test_resume_takes_its_word_with_a_space(self):
        job = ["generate", "--model", self.tiny(), "--input", self.input, "--output", self.output, "--backend", "cpu", "--quiet"]
        self.assertEqual(WEFT.run(*job).returncode, 0)
        text = self.output.read_text()
        self.output.write_text("damaged\n")
        self.refused(USAGE, "--resume=repair", *job, "--resume")
        self.refused(USAGE, "got 'fix'", *job, "--resume", "fix")
        self.assertEqual(WEFT.run(*job, "--resume", "repair").returncode, 0)
        self.assertEqual(self.output.read_text(), text)
        self.assertEqual(WEFT.run(*job, "--resume").returncode, 0)

    def test_more_memory_than_there_is(self):
        for flags in (["--device-memory", "4000TiB"], ["--host-memory", "4000TiB"]):
            self.refused_job(USAGE, [flags[0] + " 4", "this machine", " has "], *flags)
        self.refused_job(USAGE, "the file system of --disk-dir has", "--disk-memory", "4000TiB", "--disk-dir", self.folder)
        total = int(re.search(r"MemTotal: +(\d+)", pathlib.Path("/proc/meminfo").read_text())[1])
        self.refused_job(USAGE, "together", "--device-memory", f"{total * 2 // 3}KiB", "--host-memory", f"{total * 2 // 3}KiB")
        self.refused(USAGE, "--device-memory", "plan", "--model", self.tiny(), "--prompt-len", 8, "--gen-len", 8, "--backend", "cpu",
                     "--device-memory", "4000TiB")
        done = WEFT.run("plan", "--model", self.tiny(), "--prompt-len", 8, "--gen-len", 8, "--machine",
                        SOURCE / "configs/machines/t4.json", "--device-memory", "4000GiB")  # another machine
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_files(self):
        model = self.tiny()
        job = ["generate", "--model", model, "--backend", "cpu"]
        self.refused(USAGE, ["--input", "nowhere.jsonl"], *job, "--input", self.folder / "nowhere.jsonl", "--output", self.output)
        self.refused(USAGE, ["--input", "a directory"], *job, "--input", self.folder, "--output", self.output)
        self.refused(USAGE, ["--output", "a directory"], *job, "--input", self.input, "--output", self.folder)
        self.refused(IO, ["--output", "nowhere"], *job, "--input", self.input, "--output", self.folder / "nowhere" / "out.jsonl")
        self.refused(USAGE, ["--output", "--input"], *job, "--input", self.input, "--output", self.input, "--resume")
        self.refused_job(USAGE, ["--trace", "--output"], "--trace", self.output)
        self.refused_job(IO, ["--report", "nowhere"], "--report", self.folder / "nowhere" / "report.json")
        self.refused_job(USAGE, ["--trace", "a directory"], "--trace", self.folder)
        loop = self.folder / "loop"
        loop.symlink_to(loop)
        self.refused(IO, ["--output", "loop: cannot look at: Too many"], *job, "--input", self.input, "--output", loop)
        self.refused(IO, ["--input", "loop: cannot look at: Too many"], *job, "--input", loop, "--output", self.output)
        self.refused_job(IO, ["--report", "loop: cannot look at: Too many"], "--report", loop)
        self.refused(IO, "loop: Too many", "inspect", loop)
        self.refused(USAGE, "--output /dev/stderr: is a pipe", *job, "--input", self.input, "--output", "/dev/stderr")
        self.output.write_text("precious\n")
        self.refused_job(USAGE, ["out.jsonl", "--resume"])
        for text in "precious\n", "precious", '{"id":1,"text":"x"}\n', '{"id":9,"token_ids":[1]}\n', "\n":
            self.output.write_text(text)
            self.refused_job(USAGE, "out.jsonl:1: ", "--resume=adopt")
            self.assertEqual(self.output.read_text(), text)

    def test_device_and_capacity(self):
        job = ["generate", "--model", self.tiny(), "--input", self.input, "--output", self.output]
        self.refused(USAGE, ["--backend", "metal"], *job, "--backend", "metal")
        write_lines(self.input, [{"id": 1, "prompt_ids": [3], "max_tokens": 1}])
        if WEFT.run(*job, "--backend", "cuda").returncode != 0:  # where there is no GPU
            self.refused(DEVICE, "use --backend cpu", *job, "--backend", "cuda")
        self.output.unlink(missing_ok=True)
        write_lines(self.input, [{"id": i, "prompt_ids": [3] * 20, "max_tokens": 20} for i in range(200)])
        self.refused_job(CAPACITY, ["device", "4.00 KiB", "no block fits", "--device-memory"], "--device-memory", "4KiB")
        self.refused_job(CAPACITY, ["200 x 1", "on device", "400.00 KiB", "largest block that fits is "],
                         "--gpu-batch-size", 200, "--num-gpu-batches", 1, "--device-memory", "400KiB", "--percent", 0, 0, 100, 0, 100, 0)
        self.refused_job(CAPACITY, ["on host", "1.00 KiB"], "--percent", 0, 100, 100, 0, 100, 0, "--host-memory", "1KiB")
        self.refused_job(CAPACITY, ["on disk", "1.00 KiB"], "--percent", 100, 0, 0, 0, 100, 0, "--disk-memory", "1KiB")

    def test_the_block_named_as_largest_fits(self):
        write_lines(self.input, [{"id": i, "prompt_ids": [3] * 20, "max_tokens": 20} for i in range(64)])
        flags = ["--num-gpu-batches", 1, "--device-memory", "400KiB", "--percent", 0, 0, 100, 0, 100, 0]
        done = WEFT.run("generate", "--model", self.tiny(), "--input", self.input, "--output", self.output, *flags,
                        "--backend", "cpu", "--gpu-batch-size", 64)
        largest = int(done.stderr.decode().split("largest block that fits is ")[1].split()[0])
        self.assertEqual(len(self.job(self.tiny(), None, *flags, "--gpu-batch-size", largest)), 64)
        self.refused_job(USAGE, "exists", *flags)
        self.output.unlink()
        self.refused_job(CAPACITY, "largest block", *flags, "--gpu-batch-size", largest + 1)

    def test_policies(self):
        policy = self.folder / "policy.json"
        cases = [('{"weigths":{"disk":1.0}}', ["weigths", "did you mean 'weights'?"]),
                 ('{"weights":{"gpu":1.0}}', ["weights", "gpu"]),
                 ('{"weights":{"device":0.5,"disk":0.49}}', ["weights", "sum to 1", "0.99"]),
                 ('{"weights":{"device":0.6,"disk":0.41}}', ["weights", "sum to 1", "1.01"]),
                 ('{"kv":{"device":-1,"disk":2}}', ["kv", "device", "-1"]), ('{"kv":{"device":"1"}}', ["kv", "device"]),
                 ('{"kv":{"device":true}}', ["kv", "device"]), ('{"kv":1}', ["kv", "object"]),
                 ('{"kv":{"dtype":"float16","rotate":true}}', ["policy.json: kv: rotate is for", "int4"]),
                 ('{"gpu_batch_size":0}', ["gpu_batch_size", "got 0"]), ('{"gpu_batch_size":1.5}', ["gpu_batch_size", "1.5"]),
                 ('{"gpu_batch_size":2147483648}', "gpu_batch_size"), ('{"num_gpu_batches":true}', "num_gpu_batches"),
                 ('{"overlap":1}', ["overlap", "true or false"]), ('{"overlap":"yes"}', "overlap"),
                 ('{"version":2}', ["version", "got 2"]), ('{"budgets":{"device":"20XB"}}', ["budgets.device", "20XB", "4GiB"]),
                 ('{"budgets":{"device":""}}', "budgets.device"), ('{"budgets":{"device":-1}}', "budgets.device"),
                 ('{"budgets":{"hots":"1GiB"}}', ["hots", "did you mean 'host'?"]),
                 ('{"attention":{"device":0.3,"host":0.3}}', ["attention", "sum to 1"]), ('{"attention":"gpu"}', ["attention", "gpu"]),
                 ('{"retention":{"rule":"h20"}}', ["retention", "h20", "did you mean 'h2o'?"]), ('{"retention":{}}', ["retention", "rule"]),
                 ('{"retention":{"rule":"h2o","heavy":1.5,"recent":1}}', ["retention.heavy", "1.5"]),
                 ('{"retention":{"rule":"h2o","heavy":-1,"recent":1}}', ["retention.heavy", "-1"]),
                 ('{"retention":{"rule":"h2o","heavy":4,"recent":4,"sinks":5}}', ["retention", "sinks"]),
                 ('{"retention":{"rule":"h2o","heavy":4,"recent":4,"layers":[1.5,0.8]}}', ["retention", "'layers'", "1 on average", "1.15"]),
                 ('{"retention":{"rule":"h2o","heavy":4,"recent":4,"layers":[1,"all"]}}', ["retention: layers[1]", "all"]),
                 ('{"retention":{"rule":"h2o","heavy":4,"recent":4,"layers":[1,1,"full"]}}', ["'layers' has 3 entries", "2 layers"]),
                 ('{"retention":{"rule":"full","heavy":4}}', ["retention", "heavy"]),
                 ('{"retention":{"rule":"full","layers":[1,1]}}', ["retention", "layers"]),
                 ('{"retention":{"rule":"h2o","heavy":4,"recent":4,"seed":1}}', ["retention", "seed"]),
                 ('{"overlap":true,"overlap":false}', "overlap"), ('{"overlap":true,}', "policy.json"), ("// hi\n{}", "policy.json"),
                 ("\ufeff{}", "byte order mark"), ("", "empty"), ("[]", "object"), ('{"overlap":NaN}', "policy.json"),
                 ("[" * 1000 + "]" * 1000, "nested")]
        for text, words in cases:
            policy.write_text(text, encoding="utf-8")
            self.refused_job(USAGE, words if isinstance(words, list) else [words], "--policy", policy)
        self.refused_job(USAGE, ["--policy", "nowhere.json"], "--policy", self.folder / "nowhere.json")
        policy.write_text("{}")
        self.refused_job(USAGE, "--percent", "--policy", policy, "--percent", 0, 0, 0, 0, 0, 0)


class BadRequests(Case):
    good = '{"id":"good","prompt_ids":[3,4],"max_tokens":4}'

    def check(self, line, words, model=None, command="generate", good=None):
        """As the third line of a file whose others are right; as bytes it may be anything."""
        line = line if isinstance(line, bytes) else line.encode()
        good = (good or self.good).encode()
        self.input.write_bytes(good + b"\n\n" + line + b"\n" + good.replace(b"good", b"last") + b"\n")
        self.refused_job(USAGE, ["in.jsonl:3: "] + ([words] if isinstance(words, str) else words), model=model, command=command)

    def test_not_a_request(self):
        for line, words in [('[{"id":1,"prompt_ids":[3]},', "not valid JSON"), ('{"id":1,"prompt_ids":[3]},', "not valid JSON"),
                            ('{"id":1,"prompt_ids":[3]} {"id":2,"prompt_ids":[3]}', "not valid JSON"),
                            ('[{"id":1,"prompt_ids":[3]}]', "object"), ('"text"', "object"), ("1", "object"), ("null", "object"),
                            ('{"id":1,', "not valid JSON"), ('{"id":1,"prompt_ids":[3],}', "not valid JSON"),
                            ("{'id':1}", "not valid JSON"), ('{"id":1,"prompt_ids":[NaN]}', "not valid JSON"),
                            (b'{"id":"\xff","prompt_ids":[3]}', "UTF-8"), (b'{"id":"a\0b","prompt_ids":[3]}', "NUL"),
                            (b'{"id":"a\x01b","prompt_ids":[3]}', "not valid JSON"), ('{"id":"\\ud83d","prompt_ids":[3]}', "not valid JSON"),
                            ("[" * 100000, "nested"), ('{"id":1,"id":2,"prompt_ids":[3]}', "twice"),
                            ('{"id":1,"\\u0069d":2,"prompt_ids":[3]}', "twice")]:
            self.check(line, words)

    def test_id(self):
        self.check('{"prompt_ids":[3]}', ["'id'", "missing"])
        for value in "1.5", "null", "[1]", "true", "1e300", '"' + "x" * 600 + '"':
            self.check('{"id":%s,"prompt_ids":[3]}' % value, "'id'")
        self.check('{"id":18446744073709551616,"prompt_ids":[3]}', "64 bits")
        self.check('{"id":"good","prompt_ids":[3]}', ['"good"', "line 1", "unique"])
        self.check('{"id":"g\\u006fod","prompt_ids":[3]}', ['"good"', "line 1"])

    def test_a_number_and_its_text_are_two_ids(self):
        self.assertEqual(set(self.job(self.tiny(), [{"id": i, "prompt_ids": [3], "max_tokens": 1} for i in (7, "7")])), {7, "7"})

    def test_prompt(self):
        for line, words in [('{"id":1}', ["'prompt'", "'prompt_ids'", "neither"]),
                            ('{"id":1,"prompt":"a","prompt_ids":[3]}', ["'prompt'", "'prompt_ids'", "both"]),
                            ('{"id":1,"prompt_ids":[]}', ["'prompt_ids'", "non-empty"]), ('{"id":1,"prompt_ids":[-1]}', "from 0 to 63"),
                            ('{"id":1,"prompt_ids":[64]}', "from 0 to 63"), ('{"id":1,"prompt_ids":[1.0]}', "'prompt_ids'"),
                            ('{"id":1,"prompt_ids":["3"]}', "'prompt_ids'"), ('{"id":1,"prompt_ids":[9223372036854775808]}', "'prompt_ids'"),
                            ('{"id":1,"prompt_ids":3}', "'prompt_ids'"), ('{"id":1,"prompt":"a"}', ["tokenizer", "'prompt_ids'"]),
                            ('{"id":1,"prompt_ids":[3],"stop":"x"}', ["tokenizer", "'stop_token_ids'"]),
                            ('{"id":1,"prompt_ids":%s}' % ([3] * 48), ["48 tokens", "context is 48"]),
                            ('{"id":1,"prompt_ids":%s,"max_tokens":9}' % ([3] * 40), ["40 tokens", "9", "context is 48"])]:
            self.check(line, words)
        for value in "3", "{}":
            self.check('{"id":1,"prompt":%s}' % value, ["'prompt'", "a string"], model=self.demo)

    def test_options(self):
        for name, values in {"max_tokens": ["0", "-1", "1.5", '"5"', "2147483648"], "temperature": ["-1", "NaN", '"0"', "101"],
                             "top_p": ["0", "1.1", "-0.5"], "top_k": ["-1", "1.5"], "seed": ["-1", "9223372036854775808", "1.5"],
                             "stop_token_ids": ["[64]", "[-1]", "5", '["a"]'], "n": ["2"], "max_token": ["5"]}.items():
            for value in values:
                self.check('{"id":1,"prompt_ids":[3],"%s":%s}' % (name, value), name if value != "NaN" else "not valid JSON")
        self.check('{"id":1,"prompt_ids":[3],"max_token":5}', ["'max_token'", "did you mean 'max_tokens'?"])
        self.check('{"id":1,"prompt_ids":[3],"temperature":1e400}', "too large")
        for stop in '""', '[""]', "[1]", json.dumps(["x"] * 17), '"%s"' % ("x" * 513), "1":
            self.check('{"id":1,"prompt_ids":[3],"stop":%s}' % stop, "'stop'", model=self.demo)

    def test_score(self):
        good = '{"id":"good","prompt_ids":[3],"continuation_ids":[4]}'
        for line, words in [('{"id":1,"prompt_ids":[3]}', ["'continuation'", "neither"]),
                            ('{"id":1,"prompt_ids":[3],"continuation_ids":[]}', "'continuation_ids'"),
                            ('{"id":1,"prompt_ids":[3],"continuation_ids":[4],"max_tokens":1}', "'max_tokens'"),
                            ('{"id":1,"prompt_ids":[3],"continuation_ids":%s}' % ([3] * 48), "context is 48")]:
            self.check(line, words, command="score", good=good)

    def test_whole_file(self):
        for data, words in [(b"", "no requests"), (b"\n  \n", "no requests"),
                            ("\ufeff{}".encode("utf-16"), "in.jsonl:1: "),
                            (b"x" * (17 << 20), "16 MiB")]:
            self.input.write_bytes(data)
            self.refused_job(USAGE, words)

    def test_tokenize(self):
        for line, words in [('{"id":1}', "'text'"), ('{"id":1.5,"text":"a"}', "'id'"), ('{"id":1,"text":3}', "'text'"),
                            ('{"id":1,"text":"a","prompt":"b"}', "prompt"), ("nonsense", "not valid JSON")]:
            self.input.write_text('{"id":0,"text":"fine"}\n' + line + "\n")
            self.refused(USAGE, ["in.jsonl:2: ", words], "tokenize", "--model", self.demo, "--input", self.input, "--output", self.output)


class BadModels(Case):
    def setUp(self):
        super().setUp()
        write_lines(self.input, [{"id": 1, "prompt_ids": [3, 4], "max_tokens": 4}])

    def test_config(self):
        for index, (changes, words) in enumerate([({"model_type": "mamba"}, ["model_type", "mamba", "opt"]),
                                                  ({"hidden_size": 0}, "hidden_size"), ({"hidden_size": "16"}, "hidden_size"),
                                                  ({"num_attention_heads": 3}, ["num_attention_heads", "hidden_size"]),
                                                  ({"activation_function": "relu6x"}, "relu6x"),
                                                  ({"torch_dtype": "int8"}, ["torch_dtype", "int8"])]):
            model = self.folder / f"model{index}"
            model.mkdir()
            (model / "config.json").write_text(json.dumps({**json.loads((self.tiny() / "config.json").read_text()), **changes}))
            self.refused_job(DATA, [f"model{index}/config.json", *([words] if isinstance(words, str) else words)], model=model)

    def test_links_to_nowhere(self):
        """A snapshot of the Hub's cache without its blobs, as where a container got the snapshot alone."""
        for name in "config.json", "tokenizer.json", "model.safetensors":
            model = self.folder / f"with {name}"
            shutil.copytree(self.tiny(), model)
            (model / name).unlink(missing_ok=True)
            (model / name).symlink_to(f"../../blobs/{name}")
            code = DATA if name == "model.safetensors" else USAGE
            self.refused_job(code, [f"{name}: is a link to ../../blobs/{name}, which is not there", "cp -rL"], model=model)

    def test_files(self):
        self.refused_job(USAGE, ["--model", "nowhere"], model=self.folder / "nowhere")
        empty = self.folder / "empty"
        empty.mkdir()
        self.refused_job(DATA, ["empty", "config.json"], model=empty)
        (empty / "config.json").write_text("{")
        self.refused_job(DATA, ["config.json", "not valid JSON"], model=empty)
        shutil.copy(self.tiny() / "config.json", empty)
        self.refused_job(DATA, ["empty", "model.safetensors"], model=empty)
        self.refused_job(USAGE, ["--model", "--weights"], model=self.tiny() / "config.json")

    def test_checkpoint(self):
        name = sorted(tiny_tensors())[3]
        self.refused_job(DATA, ["missing", name], model=write_tiny_model(self.folder / "lacking", without=[name]))
        wide = write_tiny_model(self.folder / "wide", ffn_dim=64)
        shutil.copy(self.tiny() / "config.json", wide)
        self.refused_job(DATA, ["fc1.weight", "32", "64"], model=wide)
        tall = write_tiny_model(self.folder / "tall")
        (tall / "config.json").write_text(json.dumps({**json.loads((tall / "config.json").read_text()), "vocab_size": 65}))
        self.refused_job(DATA, ["embed_tokens.weight", "[64, 16]", "[65, 16]"], model=tall)
        weights = self.tiny() / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole.replace(b'"dtype": "F16"', b'"dtype": "F4" ', 1))
        self.refused_job(DATA, ["is stored as F4, which Weft does not compute with"])
        for size in len(whole) - 2, len(whole) // 2, 100, 4, 0:
            weights.write_bytes(whole[:size])
            self.refused_job(DATA, "model.safetensors")

    def test_checksum(self):
        """A .bin whose bytes have changed, of a model that computes all the same."""
        model, golden = self.folder / "torch", SOURCE / "tests" / "data" / "golden" / "no-bias-head12-bf16"
        shutil.copytree(SOURCE / "tests" / "data" / "torch_bin" / "whole", model)
        request = [{"id": 1, "prompt_ids": [3, 4, 5], "max_tokens": 8}]
        self.assertEqual(self.job(model, request), self.job(golden, request))
        self.output.unlink()
        weights = model / "pytorch_model.bin"
        changed = bytearray(weights.read_bytes())
        changed[len(changed) // 2] ^= 1
        weights.write_bytes(changed)
        words = ["pytorch_model.bin", "'data/", "does not have its checksum", "--no-verify-crc"]
        self.refused_job(DATA, words, "--quiet", "--percent", 100, 0, 100, 0, 100, 0, model=model)
        self.refused(DATA, words, "convert", "--model", model, "--output", self.folder / "packed")
        self.assertEqual(len(self.job(model, request, "--no-verify-crc")), 1)
        self.assertEqual(WEFT.run("convert", "--model", model, "--output", self.folder / "packed", "--no-verify-crc").returncode, 0)

    def test_tokenizer(self):
        model = self.tiny()
        shutil.copy(self.demo / "vocab.json", model)
        self.refused_job(DATA, "merges.txt")
        shutil.copy(self.demo / "merges.txt", model)
        arguments = ["generate", "--model", model, "--input", self.input, "--output", self.output, "--backend", "cpu"]
        done = WEFT.run(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the model's vocabulary has 64; prompts with tokens beyond it are refused", done.stderr.decode())


class FullDisk(Case):
    def test_a_result_that_cannot_be_written(self):
        requests = [{"id": i, "prompt_ids": [3, i], "max_tokens": 6} for i in range(40)]
        whole = self.job(self.tiny(), requests)
        self.output.unlink()
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        arguments = ["generate", "--model", self.tiny(), "--input", self.input, "--output", self.output, "--backend", "cpu", "--quiet"]
        done = WEFT.run(*arguments, preexec_fn=limit)
        said = done.stderr.decode()
        self.assertEqual((done.returncode, said.count("\n")), (IO, 2), said)
        self.assertIn("nothing is planned to be spilled there", said)
        self.assertIn("--resume", said)
        kept = read_lines(self.output)
        self.assertTrue(0 < len(kept) < len(requests))
        self.assertEqual(WEFT.run(*arguments, "--resume").returncode, 0)
        answers = read_lines(self.output)
        self.assertEqual(answers[:len(kept)], kept)
        self.assertEqual({answer["id"]: answer for answer in answers}, whole)
        self.assertEqual(len(answers), len(requests))


if __name__ == "__main__":
    WEFT, SOURCE = Weft(os.path.abspath(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
