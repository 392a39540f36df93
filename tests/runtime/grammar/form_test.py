#!/usr/bin/env python3
"""Answers of a given form: JSON schemas, choices, regular expressions and grammars, beside other fields of a request,
after a kill, in blocks of another shape; forms that are refused.

Usage: form_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import datetime
import ipaddress
import json
import pathlib
import re
import shutil
import sys
import tempfile
import time
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, read_lines, write_lines  # noqa: E402

WEFT = None
SOURCE = None
USAGE = 2
PERSON = {"type": "object",
          "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
                         "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
                         "at": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}},
          "required": ["name", "age", "tags", "at"], "additionalProperties": False}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}}


def is_person(text):
    value = json.loads(text)
    return (list(value) == ["name", "age", "tags", "at"] and isinstance(value["name"], str) and len(value["name"]) <= 8
            and type(value["age"]) is int and 0 <= value["age"] <= 99 and len(value["tags"]) <= 2
            and set(value["tags"]) <= {"a", "b"} and value["at"] in (None, True, False))


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-form-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"

    def command(self, *flags, block=8):
        return ["generate", "--model", SOURCE / "models" / "demo", "--input", self.input, "--output", self.output,
                "--backend", "cpu", "--quiet", "--gpu-batch-size", block, "--num-gpu-batches", 1,
                "--percent", 100, 0, 100, 0, 100, 0, *flags]

    def answers(self, requests, *flags, block=8, key="id"):
        write_lines(self.input, requests)
        self.output.unlink(missing_ok=True)
        done = WEFT.run(*self.command(*flags, block=block))
        self.assertEqual(done.returncode, 0, done.stderr)
        return {answer[key]: answer for answer in read_lines(self.output)}

    def refusal(self, request):
        """The one line that refuses it."""
        write_lines(self.input, [{"prompt": "It was", **request}])
        done = WEFT.run(*self.command("--dry-run"))
        said = done.stderr.decode()
        self.assertEqual(done.returncode, USAGE, said)
        self.assertEqual(said.count("\n"), 1, said)
        return said


class Forms(Case):
    def test_an_answer_that_is_whole_with_its_last_token_ends_with_stop(self):
        whole = {"prompt": "It", "structured_outputs": {"regex": "ab"}, "n": 2, "temperature": 1}
        answers = self.answers([{"id": tokens, "max_tokens": tokens, **whole} for tokens in (1, 2, 3)])
        for tokens, answer in answers.items():
            for choice in answer["choices"]:
                self.assertEqual(choice["finish_reason"], "stop" if choice["text"] == "ab" else "length", (tokens, choice))
        self.assertEqual({choice["text"] for choice in answers[2]["choices"]}, {"ab"})

    def test_an_answer_ends_where_nothing_may_follow(self):
        # Without an end of its own it goes on wherever it may, by tokens that differ from place to place.
        regex, ends = r"a(b(cd?)?)?|x(yz?)?|(1|2)*3", r"abcd|xyz|[12]*3"
        request = {"prompt": "It", "temperature": 1.5, "ignore_eos": True, "max_tokens": 64, "guided_regex": regex}
        for block in (8, 3):
            answers = self.answers([{"id": i, "seed": i, **request} for i in range(40)], block=block)
            self.assertEqual({answer["finish_reason"] for answer in answers.values()}, {"stop"})
            self.assertTrue(all(re.fullmatch(ends, answer["text"]) for answer in answers.values()), answers)
            self.assertLess(2, len({answer["text"] for answer in answers.values()}))

    def test_loops_end_where_they_end(self):
        requests, regexes = [], (r"a(xy+)?b", r"a((xy+)?z)+b", r"a(x(yz+)?)?b", r"a(x+y)?b", r"a(yz*|x){2,}b",
                                 r"(x|yz*){0,}b", r"[0-5](\.\d{1,9})?(Z|b)", r"a(yz*|x)+b")
        for regex in regexes:
            for kind, form in (("regex", {"guided_regex": regex}),
                               ("schema", {"guided_json": {"type": "string", "pattern": f"^{regex}$"}}),
                               ("grammar", {"guided_grammar": f"root ::= Regex({json.dumps(regex)})"})):
                requests += [{"id": f"{kind} {seed} {regex}", "seed": seed, "prompt": "It", "temperature": 2, "max_tokens": 40,
                              **form} for seed in range(12)]
        ended = 0
        for name, answer in self.answers(requests, block=64).items():
            kind, _, regex = name.split(maxsplit=2)
            if answer["finish_reason"] != "stop":
                continue
            ended += 1
            text = json.loads(answer["text"]) if kind == "schema" else answer["text"]
            self.assertTrue(re.fullmatch(regex, text), (name, text))
        self.assertLess(len(requests) / 2, ended)

    def test_formats(self):
        def is_host(text):
            return len(text) <= 253 and all(re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", part) for part in text.split("."))

        formats = {"date": datetime.date.fromisoformat, "date-time": datetime.datetime.fromisoformat,
                   "time": datetime.time.fromisoformat, "ipv4": ipaddress.IPv4Address, "ipv6": ipaddress.IPv6Address,
                   "hostname": is_host, "uuid": uuid.UUID}
        schemas = {name: {"type": "string", "format": name} for name in formats}
        schemas["in an array"] = {"type": "array", "minItems": 2, "maxItems": 2, "items": {"$ref": "#/$defs/day"},
                                  "$defs": {"day": schemas["date"]}}
        schemas["constant"] = {"const": schemas["date"]}
        requests = [{"id": f"{name}/{seed}", "seed": seed, "prompt": "It", "temperature": 1.5, "max_tokens": 150,
                     "structured_outputs": {"json": schema, "disable_any_whitespace": True}}
                    for name, schema in schemas.items() for seed in range(24)]
        for name, answer in self.answers(requests, block=64).items():
            self.assertEqual(answer["finish_reason"], "stop", answer)
            value, name = json.loads(answer["text"]), name.split("/")[0]
            if name == "constant":
                self.assertEqual(value, schemas["date"])
            elif name == "in an array":
                self.assertEqual(len([datetime.date.fromisoformat(day) for day in value]), 2)
            else:
                self.assertTrue(formats[name](value), (name, value))

    def test_answers_have_their_form(self):
        sampled = {"prompt": "The sea", "temperature": 1, "max_tokens": 120, "logit_bias": {"202": -100, "224": -100}}
        forms = {
            "schema": (SCHEMA, is_person),
            "text": ({"guided_json": json.dumps(PERSON).replace(": 8", ": 8.0").replace(": 2", ": 2.0")}, is_person),
            "whole": ({"guided_json": {"type": "string", "minLength": 2.0, "maxLength": 3e0}},
                      lambda text: 2 <= len(json.loads(text)) <= 3),
            "choice": ({"guided_choice": ["red", "green", "a \"b\"\\\n\u00e9\u2026"]},
                       lambda text: text in ("red", "green", "a \"b\"\\\n\u00e9\u2026")),
            "regex": ({"guided_regex": "[0-9]{2}-(x|yz)+!"}, lambda text: re.fullmatch("[0-9]{2}-(x|yz)+!", text)),
            "ebnf": ({"guided_grammar": 'root ::= "<" [a-c]{1,3} ">"'}, lambda text: re.fullmatch("<[a-c]{1,3}>", text)),
            "lark": ({"structured_outputs": {"grammar": 'start: "(" WORD ")"\nWORD: /[a-c]{1,3}/'}},
                     lambda text: re.fullmatch(r"\([a-c]{1,3}\)", text)),
            "structured": ({"structured_outputs": {"json": {"enum": [1, "two", None]}}},
                           lambda text: json.loads(text) in (1, "two", None)),
            "references": ({"structured_outputs": {"disable_any_whitespace": True, "json": {
                "type": "object", "required": ["a", "b"], "additionalProperties": False,
                "properties": {"a": {"$ref": "#/$defs/yes~1no"}, "b": {"$ref": "#/$defs/%2541~0"}},
                "$defs": {"yes/no": {"enum": ["yes", "no"]},
                          "%41~": {"type": "array", "items": {"$ref": "#/$defs/yes~1no"}, "maxItems": 2}}}}},
                lambda text: json.loads(text)["a"] in ("yes", "no") and set(json.loads(text)["b"]) <= {"yes", "no"}),
            "empty": ({"guided_json": {"type": "object", "properties": {}, "additionalProperties": False}},
                      lambda text: json.loads(text) == {}),
            "object": ({"response_format": {"type": "json_object", "json_schema": None}}, lambda text: type(json.loads(text)) is dict),
            "compact": ({"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}},
                        lambda text: is_person(text) and re.fullmatch(
                            r'\{"name": ".*", "age": \d+, "tags": \[("[ab]"(, "[ab]")?)?\], "at": \w+\}', text)),
            "nulls": ({"structured_outputs": {"json": None, "choice": ["red"], "structural_tag": None, "whitespace_pattern": None,
                                              "disable_any_whitespace": False}}, lambda text: text == "red"),
        }
        # by an automaton, by rules for many repetitions, and with ends of lines as they are
        for regex in (r"([a-z]{2,5} ){1,3}!", r"\s?\S{2,4}\.\s", r"[\w\s]{1,4}\?|\\s[\Sa]!", "[a-z ]{129,140}",
                      "[^a-z\n\r]{1,5};\\\n|\\\\\nx", r"\[(-?\d+(, )?)*\]", "[\u00e8-\u00ea]+\u2026?z",
                      r"[\u00e9\d]{2}\\u00e9"):
            forms[f"regex-{regex!r}".replace(" ", "_")] = ({"guided_regex": regex}, re.compile(regex).fullmatch)
        requests = [{"id": f"{name} {seed}", **sampled, "seed": seed, **form}
                    for name, (form, _) in forms.items() for seed in range(4)]
        answers = self.answers(requests)
        stopped = set()
        for name, answer in answers.items():
            if answer["finish_reason"] == "stop":
                kind = name.split()[0]
                stopped.add(kind)
                self.assertTrue(forms[kind][1](answer["text"]), answer["text"])
        self.assertGreaterEqual(stopped, set(forms) - {"object", "schema", "text"})  # the demo model writes much white space
        self.assertEqual(self.answers(requests, block=3), answers)

    def test_strings_have_no_characters_that_JSON_escapes(self):
        vocabulary = json.loads((SOURCE / "models" / "demo" / "vocab.json").read_text())
        small = [vocabulary[piece] for piece in ('"', "a", "\\", "\u0109", "\u0101")]  # the last are tab and U+0001
        forms = [{"maxLength": 6}, {"minLength": 2, "maxLength": 9}, {"pattern": "^[^a]?.{1,9}$"}, {"pattern": "^[\\w\"]+$"},
                 {"pattern": "^[^\\u00e9]*$"}]
        answers = self.answers([{"id": id, "prompt": "It", "temperature": 2, "n": 16, "max_tokens": 20, "guided_json":
                                 {"type": "string", **form}, "allowed_token_ids": [*small, 2]} for id, form in enumerate(forms)])
        for id, answer in answers.items():
            texts = [choice["text"] for choice in answer["choices"] if choice["finish_reason"] == "stop"]
            self.assertTrue(texts, forms[id])
            for text in texts:
                self.assertIsInstance(json.loads(text), str, forms[id])

    def test_patterns_that_repeat_often(self):
        long = [{"id": 1, "prompt": "It", "max_tokens": 2, "guided_json": {"type": "string", "pattern": "^[a-z0-9_ -]{1,300}\\d{200}$"}}]
        self.assertEqual(self.answers(long)[1]["finish_reason"], "length")

    def test_other_fields_hold_too(self):
        yes = {"guided_regex": "(yes|no)( indeed)?", "temperature": 1, "max_tokens": 30, "prompt": "The sea"}
        requests = [
            {"id": "n", **yes, "n": 3, "seed": 5}, {"id": "logprobs", **yes, "logprobs": 2},
            {"id": "least", **yes, "guided_regex": "(yes|no)( indeed)*", "min_tokens": 12},
            {"id": "stop", **yes, "guided_regex": "yes indeed", "stop": " in"},
            {"id": "eos", **yes, "ignore_eos": True}, {"id": "cut", **yes, "guided_regex": "a{40}b", "max_tokens": 2},
            {"id": "bias", **yes, "guided_regex": "[ab]", "logit_bias": {str(i): -100 for i in range(4096)},
             "repetition_penalty": 1.3, "frequency_penalty": 1},
            {"id": "prompt", **yes, "prompt_logprobs": 1},
        ]
        for retention in "full", "h2o:0.2:0.2", "recent:0.4":
            with self.subTest(retention=retention):
                given = [each for each in requests if retention == "full" or each["id"] != "prompt"]
                answers = self.answers(given, "--retention", retention)
                for choice in answers["n"]["choices"]:
                    self.assertRegex(choice["text"], "^(yes|no)( indeed)?$")
                self.assertEqual(len(answers["logprobs"]["logprobs"]), len(answers["logprobs"]["token_ids"]))
                self.assertGreaterEqual(len(answers["least"]["token_ids"]), 12)
                self.assertEqual(answers["stop"]["text"], "yes")
                self.assertRegex(answers["eos"]["text"], "^(yes|no) indeed$")
                self.assertEqual(answers["cut"]["finish_reason"], "length")
                self.assertRegex(answers["bias"]["text"], "^[ab]$")
                if retention == "full":
                    self.assertRegex(answers["prompt"]["text"], "^(yes|no)( indeed)?$")

    def test_the_lines_of_openai(self):
        body = {"model": "demo", "max_tokens": 120}
        lines = [{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {**body, "prompt": "It was", **SCHEMA}},
                 {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions",
                  "body": {**body, "messages": [{"role": "user", "content": "Hello"}], "guided_choice": ["yes"]}},
                 {"custom_id": "c", "method": "POST", "url": "/v1/completions",
                  "body": {**body, "prompt": "It was", "max_tokens": 3, "response_format": {"type": "text"}}}]
        answers = self.answers(lines, "--chat-template", "chatml", key="custom_id")
        choices = {name: answer["response"]["body"]["choices"][0] for name, answer in answers.items()}
        if choices["a"]["finish_reason"] == "stop":
            self.assertTrue(is_person(choices["a"]["text"]))
        self.assertEqual((choices["b"]["message"]["content"], choices["b"]["finish_reason"]), ("yes", "stop"))

    def test_a_killed_job_goes_on(self):
        requests = [{"id": i, "prompt": "The sea", "temperature": 1, "seed": i, "max_tokens": 60 + i,
                     "guided_regex": "([a-z]{2,5} )+!", "ignore_eos": True, "n": 1 + i % 2} for i in range(24)]
        wanted = self.answers(requests)
        flags = ["--checkpoint-every", "0.05s", "--resume"]
        self.output.unlink()
        for kills in range(3):
            process = WEFT.start(*self.command(*flags, block=4))
            while process.poll() is None and len(self.output.read_bytes() if self.output.exists() else b"") < 2000 * (kills + 1):
                time.sleep(0.002)
            process.kill()
            process.communicate()
        done = WEFT.run(*self.command(*flags), timeout=HANGS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({answer["id"]: answer for answer in read_lines(self.output)}, wanted)


class Refused(Case):
    def test_forms_that_cannot_be_met(self):
        deep = {"type": "string"}
        for _ in range(12):
            deep = {"type": "array", "items": deep}
        text = '{"items":' * 200 + "true" + "}" * 200
        for request, words in [
                ({"guided_regex": "("}, "'guided_regex'"),
                ({"guided_regex": "[a-z]{1,9}", "guided_choice": ["a"]}, "wanted one form"),
                ({"guided_choice": []}, "a list of strings"),
                ({"guided_choice": ["a", ""]}, "empty choice"),
                ({"guided_regex": ""}, "a string"),
                ({"guided_grammar": "root ::= other"}, "'guided_grammar'"),
                ({"guided_json": text}, "'guided_json'"),
                ({"guided_json": {"type": "string", "not": {"const": "a"}}}, "'not'"),
                ({"guided_json": {"type": "wrong"}}, "'guided_json'"),
                ({"guided_json": {"$ref": "#/$defs/none"}}, "'guided_json'"),
                ({"guided_json": {"type": "array", "items": {"$ref": "#/$defs/no~1ne~"}}}, "'guided_json'"),
                ({"guided_json": {"$ref": "#/$defs/a~0", "$defs": {"a~": {"$ref": "#/$defs/a~0"}}}}, "'guided_json'"),
                ({"guided_json": {"$ref": "#", "type": "object"}}, "next to '$ref'"),
                ({"guided_json": {"minimum": 3}}, "without 'type'"),
                ({"guided_json": {"type": "string", "pattern": "^.{1,129}$"}}, "the pattern '^.{1,129}$'"),
                ({"guided_json": {"type": "string", "pattern": "^(a|[A-z]){129,}$"}}, "the pattern"),
                ({"guided_json": {"type": "object", "patternProperties": {'"': {"type": "null"}}}}, "the pattern"),
                ({"guided_json": {"type": "array", "items": {"type": "string", "pattern": "^[^\u00e9]$"}}}, "the pattern"),
                ({"guided_json": {"type": "string", "format": "json-pointer"}}, "'json-pointer'"),
                ({"guided_json": {"type": "object", "required": ["a"]}}, "requires 'a'"),
                ({"guided_json": {"type": "array", "items": {**PERSON, "required": ["nome"]}}}, "do not have, at '/items'"),
                ({"guided_json": {**PERSON, "patternProperties": {"^a": {"type": "null"}}}}, "'patternProperties' next to"),
                ({"guided_json": {**PERSON, "propertyNames": {"maxLength": 3}}}, "'propertyNames' next to"),
                ({"guided_json": {"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": False}},
                 "allows no names"),
                ({"guided_json": {"type": ["object", "null"], "patternProperties": {"^a": {"type": "null"}, "b": {}}}}, "several"),
                ({"guided_json": {"type": "object", "additionalProperties": True, "minProperties": 2}}, "'minProperties' over 1"),
                ({"guided_json": {"enum": list(range(30000))}}, "values"),
                ({"guided_json": "[1"}, "'guided_json'"),
                ({"guided_json": {"type": "string", "maxLength": -1}}, "a negative 'maxLength'"),
                ({"guided_json": {"type": "string", "maxLength": 2.5}}, "'guided_json'"),
                ({"guided_json": {"type": "array", "items": {"type": "array", "minItems": -1}}}, "at '/items'"),
                ({"guided_json": {"type": "string", "pattern": None}}, "a 'pattern' that is no string"),
                ({"guided_json": {"type": "object", "properties": {"a": {}}, "required": [1]}}, "'required' that is no string"),
                ({"structured_outputs": {"json": {}, "regex": "a"}}, "both"),
                ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "goes with 'json'"),
                ({"structured_outputs": {"json": {}, "disable_any_whitespace": 1}}, "true or false"),
                ({"structured_outputs": {"json": None}}, "has no form"),
                ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag"),
                ({"response_format": {"type": "json_schema"}}, "'json_schema'"),
                ({"response_format": {"type": "xml"}}, "json_object")]:
            with self.subTest(request=str(request)[:80]):
                self.assertIn(words, self.refusal(request))
        self.assertTrue(self.answers([{"id": 1, "prompt": "It was", "max_tokens": 4, "guided_json": deep}])[1]["text"].lstrip()
                        .startswith("["))

    def test_forms_that_take_too_much(self):
        for request in ({"guided_regex": "(" * 30000 + "a" + ")" * 30000}, {"guided_choice": ["a" * 300000]},
                        {"guided_grammar": "root ::= " + "(" * 50000 + '"a"' + ")" * 50000}):
            with self.subTest(request=str(request)[:60]):
                self.assertLess(len(self.refusal(request)), 1000)


if __name__ == "__main__":
    WEFT, SOURCE = Weft(sys.argv[1]), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        probe = pathlib.Path(name) / "in.jsonl"
        write_lines(probe, [{"prompt": "a", "guided_regex": "a"}])
        without = WEFT.run("generate", "--model", SOURCE / "models" / "demo", "--input", probe, "--output", "-", "--dry-run")
    if b"built without xgrammar" in without.stderr:
        print("skipped: this weft was built without xgrammar")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
