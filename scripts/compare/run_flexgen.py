#!/usr/bin/env python3
"""Starts FlexGen, or H2O's version of it, as its own command line does, with one thing changed: the tokenizer, which it
would download to make its prompt, is a stand-in that gives prompts of the wanted length. This is the whole patch; its
sources stay as they were fetched. Prints a line of JSON with the times that it reports.

Usage: run_flexgen.py FOLDER MODULE [its own flags]
  FlexGen: git clone https://github.com/FMInference/FlexLLMGen PEERS/flexgen; FOLDER is that, MODULE flexllmgen.flex_opt
  H2O:     git clone https://github.com/FMInference/H2O PEERS/h2o; FOLDER is PEERS/h2o/h2o_flexgen, MODULE flexgen.flex_opt
"""
import contextlib
import io
import json
import re
import runpy
import sys
import types


class StandIn:
    """A tokenizer in so far as flex_opt.py uses one."""

    pad_token_id = 1

    @classmethod
    def from_pretrained(cls, *_, **__):
        return cls()

    def __call__(self, prompts, padding=None, max_length=None, **_):
        return types.SimpleNamespace(input_ids=[[2 + i % 1000 for i in range(max_length)] for _ in prompts])

    def batch_decode(self, ids, **_):
        return ["" for _ in ids]


def times_of(text):
    """What flex_opt.py's report says."""
    found = {}
    for key, words in (("prefill_seconds", "prefill latency"), ("decode_seconds", "decode latency"),
                       ("tokens_per_second", "total throughput")):
        match = re.search(words + r":\s*([\d.]+)", text)
        if not match:
            raise SystemExit(f"its report has no '{words}':\n{text[-2000:]}")
        found[key] = float(match.group(1))
    found["projected"] = "projected: True" in text
    return found


def main():
    folder, module, *flags = sys.argv[1:]
    import transformers

    transformers.AutoTokenizer = StandIn
    sys.path.insert(0, folder)
    sys.argv = [module, *flags]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_module(module, run_name="__main__")
    print(json.dumps(times_of(said.getvalue())))


if __name__ == "__main__":
    main()
