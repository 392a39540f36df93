#!/usr/bin/env python3
"""Renders conversations with chat templates by transformers' Jinja: what tests/runtime/text/chat_template_test.cc expects of
runtime/text/chat_template.cc, and the hashes by which templates are recognised.

Usage: make_chat_golden.py FOLDER

FOLDER has FAMILY--NAME.jinja: the exact texts of "chat_template" as models publish them, which have licences of their
own and are not part of this project. All templates of a family must render alike. Writes tests/data/chat/renderings.json
and prints the table of runtime/text/chat_template_hashes.h. Needs transformers and jinja2.
"""

import hashlib
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

BOS, EOS = "<s>", "</s>"
DATED = {"llama3_1", "llama3_2"}
DATE = "3 Mar 2025"
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


def render(template, family, conversation, date=None):
    """None where the template refuses the conversation, where no answer could follow, or where it would put the date of
    the day into it."""
    last = conversation[-1]["role"]
    if (family in ANSWERS_A_USER and last != U) or (family == "qwen1_5" and last == A):
        return None
    if family == "llama3_2" and not date:
        return None
    given = {"date_string": date} if date else {}
    try:
        rendered, _ = render_jinja_template(conversations=[conversation], chat_template=template,
                                            add_generation_prompt=True, bos_token=BOS, eos_token=EOS, **given)
    except Exception:  # raise_exception of the template
        return None
    return rendered[0]


def main():
    families = {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*--*.jinja")):
        family = path.name.split("--")[0]
        text = path.read_bytes().decode()
        rendered = {"rendered": [render(text, family, conversation) for conversation in CONVERSATIONS]}
        if family in DATED:
            rendered["dated"] = [render(text, family, conversation, DATE) for conversation in CONVERSATIONS]
        known = families.setdefault(family, {"sha256": [], **rendered})
        assert all(known[key] == value for key, value in rendered.items()), f"{path.name} is no {family}"
        known["sha256"].append(hashlib.sha256(text.encode()).hexdigest())
        print(f'    {{"{known["sha256"][-1]}", ChatFamily::{family}}},')
    golden = {"bos": BOS, "eos": EOS, "date": DATE, "conversations": CONVERSATIONS, "families": families}
    target = pathlib.Path(__file__).resolve().parents[1] / "tests" / "data" / "chat" / "renderings.json"
    target.write_text(json.dumps(golden, indent=1, ensure_ascii=True) + "\n")


main()
