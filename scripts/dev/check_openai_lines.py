#!/usr/bin/env python3
"""Reads a result file of OpenAI request lines with the types of the openai package, as a client of its batches would.

Usage: check_openai_lines.py RESULTS.jsonl

Every body must be a Completion or a ChatCompletion with no field that the package does not know, every refusal an
ErrorObject. Needs openai from PyPI.
"""

import json
import sys

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.shared import ErrorObject


def unknown_fields(value, path=""):
    """Names that the types do not have; pydantic keeps them aside."""
    if isinstance(value, openai.BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from unknown_fields(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for each in value:
            yield from unknown_fields(each, path + "[]")


def check(line):
    """What the line holds."""
    assert set(line) == {"id", "custom_id", "response", "error"} and line["error"] is None
    response = line["response"]
    assert set(response) == {"status_code", "request_id", "body"}
    body = response["body"]
    if response["status_code"] != 200:
        error = ErrorObject.model_validate(body["error"], strict=True)
        assert error.type == "invalid_request_error" and error.message
        return f"refused: {response['status_code']} {error.code}"
    kind = ChatCompletion if body["object"] == "chat.completion" else Completion
    for choice in body["choices"]:
        lists = choice["logprobs"] if kind is Completion else None
        if lists and lists["token_logprobs"] and lists["token_logprobs"][0] is None:  # an echo's first token, as at OpenAI
            assert lists["top_logprobs"][0] is None
            for values in lists.values():
                del values[0]
    read = kind.model_validate(body, strict=True)
    assert not list(unknown_fields(read)), list(unknown_fields(read))
    assert read.usage.total_tokens == read.usage.prompt_tokens + read.usage.completion_tokens
    return kind.__name__


def main():
    counts = {}
    with open(sys.argv[1], encoding="utf-8") as lines:
        for line in lines:
            what = check(json.loads(line))
            counts[what] = counts.get(what, 0) + 1
    for what, count in sorted(counts.items()):
        print(f"{count} x {what}")


if __name__ == "__main__":
    main()
