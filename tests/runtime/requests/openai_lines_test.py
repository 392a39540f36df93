#!/usr/bin/env python3
"""Lines of OpenAI's batches as clients write them, each kind in one job of the program: each is answered, or refused with the
words that say why. Where PyPI's openai is installed, its types read every line of the output.

Usage: openai_lines_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import Weft, read_lines, write_lines  # noqa: E402

WEFT = SOURCE = None
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}]
USER = [{"role": "user", "content": "Hello"}]
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}]

# What a kind adds to {"model", "prompt", "max_tokens": 4}, and the words of its refusal; no words: it is answered.
COMPLETIONS = {
    "plain": ({}, ""),
    "a list of one prompt": ({"prompt": ["The sea"]}, ""),
    "token ids": ({"prompt": [2, 100, 7]}, ""),
    "a list of one list of token ids": ({"prompt": [[2, 100, 7]]}, ""),
    "several prompts": ({"prompt": ["The sea", "It was"]}, "'prompt'"),
    "no length": ({"max_tokens": None}, ""),
    "greedy": ({"temperature": 0}, ""),
    "hot and cut": ({"temperature": 2, "top_p": 0.5, "seed": 1}, ""),
    "too hot": ({"temperature": 3}, "'temperature'"),
    "several answers": ({"n": 2}, ""),
    "best of one": ({"best_of": 1}, ""),
    "best of several": ({"best_of": 4}, "'best_of'"),
    "log-probabilities": ({"logprobs": 3}, ""),
    "too many log-probabilities": ({"logprobs": 60}, "'logprobs'"),
    "echo": ({"echo": True}, ""),
    "scores of a prompt": ({"echo": True, "logprobs": 1, "max_tokens": 0}, ""),
    "a stop string": ({"stop": "\n"}, ""),
    "stop strings": ({"stop": ["\n", "."]}, ""),
    "no stop": ({"stop": None}, ""),
    "penalties": ({"presence_penalty": 0.5, "frequency_penalty": -0.5}, ""),
    "a bias": ({"logit_bias": {"50": -100}}, ""),
    "what names a user": ({"user": "u-1"}, ""),
    "no suffix": ({"suffix": None}, ""),
    "a suffix": ({"suffix": "."}, "'suffix'"),
    "no stream": ({"stream": False, "stream_options": None}, ""),
    "a stream": ({"stream": True}, "'stream'"),
    "vLLM's sampling": ({"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True}, ""),
    "vLLM's choice": ({"guided_choice": ["yes", "no"]}, ""),
    "what a server's queue takes": ({"priority": 3, "request_id": "r", "cache_salt": "s"}, ""),
    "what vLLM writes by default": ({"return_token_ids": False, "return_tokens_as_token_ids": False,
                                     "spaces_between_special_tokens": True, "skip_special_tokens": True}, ""),
    "token ids in the answer": ({"return_token_ids": True}, "'return_token_ids'"),
    "a slip": ({"max_token": 4}, "did you mean 'max_tokens'?"),
    "another model": ({"model": "gpt-4o"}, "model"),
}
CHATS = {
    "a user": ({}, ""),
    "a system and a user": ({"messages": [{"role": "system", "content": "Be brief."}, *USER]}, ""),
    "turns": ({"messages": [*USER, {"role": "assistant", "content": "Well."}, *USER]}, ""),
    "content in parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}, ""),
    "a picture": ({"messages": PICTURE}, "'messages[0].content' has a part that is not"),
    "no message": ({"messages": []}, "'messages'"),
    "the newer name of the length": ({"max_tokens": None, "max_completion_tokens": 4}, ""),
    "log-probabilities": ({"logprobs": True, "top_logprobs": 2}, ""),
    "no log-probabilities": ({"logprobs": False}, ""),
    "a JSON object": ({"response_format": {"type": "json_object"}}, ""),
    "a schema": ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}}, ""),
    "text": ({"response_format": {"type": "text"}}, ""),
    "text with a null": ({"response_format": {"type": "text", "json_schema": None}}, ""),
    "no usage in a stream": ({"stream": False, "stream_options": {"include_usage": False}}, ""),
    "no echo": ({"echo": False}, ""),
    "an echo": ({"echo": True}, "'echo'"),
    "tools that the template lacks": ({"tools": TOOLS}, "'tools'"),
    "no tools": ({"tools": None, "tool_choice": None, "parallel_tool_calls": None}, ""),
    "what OpenAI keeps": ({"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_retention": "24h"}, ""),
    "several answers with a seed": ({"n": 3, "seed": 7}, ""),
    "no audio": ({"modalities": ["text"], "audio": None}, ""),
    "audio": ({"modalities": ["text", "audio"]}, "'modalities'"),
    "effort": ({"reasoning_effort": "low"}, "'reasoning_effort'"),
}
WITH_FORMS = {"vLLM's choice", "a JSON object", "a schema"}  # refused by a program that was built without xgrammar


class Check(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-openai-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def run_kinds(self, kinds, url, base):
        write_lines(self.folder / "in.jsonl", [
            {"custom_id": name, "method": "POST", "url": url,
             "body": {key: value for key, value in {"model": "demo", "max_tokens": 4, **base, **more}.items()}}
            for name, (more, _) in kinds.items()])
        done = WEFT.run("generate", "--model", SOURCE / "models" / "demo", "--input", self.folder / "in.jsonl", "--output",
                        self.folder / "out.jsonl", "--backend", "cpu", "--chat-template", "chatml", "--on-bad-request", "record",
                        "--max-tokens", 4, "--retention", "full", "--quiet")
        self.assertEqual(done.returncode, 1, done.stderr)
        lines = {line["custom_id"]: line for line in read_lines(self.folder / "out.jsonl")}
        self.assertEqual(set(lines), set(kinds))
        for name, (_, words) in kinds.items():
            with self.subTest(name):
                response = lines[name]["response"]
                if "built without xgrammar" in json.dumps(response["body"]):
                    self.assertIn(name, WITH_FORMS)
                elif words:
                    self.assertIn(response["status_code"], (400, 404))
                    self.assertIn(words, response["body"]["error"]["message"])
                else:
                    self.assertEqual(response["status_code"], 200, response["body"])
                    self.assertTrue(response["body"]["choices"])
        if importlib.util.find_spec("openai"):
            sys.path.insert(0, str(SOURCE / "scripts" / "dev"))
            import check_openai_lines
            for line in lines.values():
                check_openai_lines.check(line)
        return lines

    def test_completions(self):
        lines = self.run_kinds(COMPLETIONS, "/v1/completions", {"prompt": "It was"})
        self.assertEqual(len(lines["several answers"]["response"]["body"]["choices"]), 2)
        for choice in lines["vLLM's choice"]["response"]["body"].get("choices", []):  # none without xgrammar
            self.assertIn(choice["text"], ("yes", "no"))

    def test_chats(self):
        lines = self.run_kinds(CHATS, "/v1/chat/completions", {"messages": USER})
        self.assertEqual(lines["text"]["response"]["body"]["choices"][0]["message"]["role"], "assistant")


if __name__ == "__main__":
    WEFT, SOURCE = Weft(os.path.abspath(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
