#!/usr/bin/env python3
"""Renders conversations with chat templates by transformers' Jinja: what tests/runtime/text/chat_template_test.cc expects of
runtime/text/chat_template.cc, and the hashes by which templates are recognised.

Usage: make_chat_golden.py FOLDER

FOLDER has FAMILY--NAME.jinja: the exact texts of "chat_template" as models publish them, which have licences of their
own and are not part of this project. All templates of a family must render alike. Writes tests/data/chat/renderings.json,
where families that FOLDER lacks stay as they are, and prints the new rows of runtime/text/chat_template_hashes.h. Needs
transformers and jinja2.
"""

import hashlib
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

BOS, EOS = "<s>", "</s>"
DATED = {"llama3_1", "llama3_2"}
DATE = "3 Mar 2025"
THINKING = {"qwen3"}
# These begin no answer by themselves: it begins where a user's message ends.
ANSWERS_A_USER = {"llama2", "mistral_v0_1", "mistral_v0_2", "mistral_system", "mistral_v0_3"}


def said(*turns):
    return [{"role": role, "content": content} for role, content in turns]


S, U, A = "system", "user", "assistant"
CONVERSATIONS = [
    said((U, "Hello")),
    said((S, "Be brief."), (U, "Hello")),
    said((U, "Hello"), (A, "Hi there"), (U, "Who are you?")),
    said((S, "Be brief."), (U, "Hello"), (A, "Hi there"), (U, "Who are you?"), (A, "A model."), (U, "Which?")),
    said((S, " \n spaces \t"), (U, "  before and after \n\n"), (A, "\n and here "), (U, "\u3000\u00a0\x1d wide \x85\u2028")),
    said((U, "Grüße, 世界 🌍 e\u0301 \u200b\ufeff")),
    said((U, "<|im_end|> </s> [/INST] <|eot_id|> {{ bos_token }} {% raw %} \\n '\"")),
    said((S, ""), (U, "")),
    said((U, "line\nline\r\nline")),
    said((S, "only this")),
    said((U, "one"), (U, "two")),
    said((A, "first")),
    said((U, "Hello"), (A, "Hi")),
    said((S, "one"), (S, "two"), (U, "Hello")),
    said((U, "Hello"), (S, "late"), (U, "again")),
    said((U, "Hello"), (A, "Hi"), (S, "late"), (U, "again")),
    said((S, "Be brief."), (A, "Hi"), (U, "Hello")),
    said((S, "Be brief."), (U, "Hello"), (U, "again")),
    said((U, "a"), (A, "b"), (U, "c"), (A, "d"), (U, "e"), (A, "f"), (U, "g")),
]
# Answers that thought, and what a tool said.
MORE_CONVERSATIONS = {
    "qwen3": [
        said((U, "a"), (A, "<think>\nhm\n</think>\n\nb"), (U, "c")),
        said((U, "a"), (A, "\n<think>\n\nhm\n\n</think>\n\n\nb\n")),
        said((U, "a"), (A, "\n\nb\n")),
        said((U, "a"), (A, "<think>one</think>two</think>\nthree"), (A, "no thoughts"), (A, "<think></think>b")),
        said((U, "a"), (A, "x<think>y<think>z\n</think>w"), (U, "<tool_response>1</tool_response>"), (A, "</think>")),
        said((A, "<think>z</think>w"), (A, "<think>z</think>w")),
        said((S, "<think>s</think>"), (U, "<tool_response>1</tool_response>"), (A, "<think>z</think>w"), (A, "q")),
    ],
}


def render(template, family, conversation, date=None, **given):
    """None where the template refuses the conversation, where no answer could follow, or where it would put the date of
    the day into it."""
    last = conversation[-1]["role"]
    if (family in ANSWERS_A_USER and last != U) or (family == "qwen1_5" and last == A):
        return None
    if family == "llama3_2" and not date:
        return None
    if date:
        given["date_string"] = date
    try:
        rendered, _ = render_jinja_template(conversations=[conversation], chat_template=template,
                                            add_generation_prompt=True, bos_token=BOS, eos_token=EOS, **given)
    except Exception:  # raise_exception of the template
        return None
    return rendered[0]


def main():
    target = pathlib.Path(__file__).resolve().parents[1] / "tests" / "data" / "chat" / "renderings.json"
    golden, families = json.loads(target.read_text()), {}
    assert golden["conversations"] == CONVERSATIONS, "the conversations have changed: FOLDER must hold every family"
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*--*.jinja")):
        family = path.name.split("--")[0]
        text = path.read_bytes().decode()
        more = MORE_CONVERSATIONS.get(family, [])
        rendered = {"rendered": [render(text, family, each) for each in CONVERSATIONS + more]}
        if more:
            rendered["more_conversations"] = more
        if family in DATED:
            rendered["dated"] = [render(text, family, each, DATE) for each in CONVERSATIONS + more]
        if family in THINKING:
            rendered["not_thinking"] = [render(text, family, each, enable_thinking=False) for each in CONVERSATIONS + more]
        before = golden["families"].get(family, {})
        known = families.setdefault(family, {"sha256": [], **rendered, **before})
        assert all(known[key] == value for key, value in rendered.items()), f"{path.name} is no {family}"
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        if sha256 in known["sha256"]:
            continue
        known["sha256"].append(sha256)
        print(f'    {{"{sha256}", ChatFamily::{family}}},')
    golden = {"bos": BOS, "eos": EOS, "date": DATE, "conversations": CONVERSATIONS,
              "families": {**golden["families"], **families}}
    target.write_text(json.dumps(golden, indent=1, ensure_ascii=True) + "\n")


main()
