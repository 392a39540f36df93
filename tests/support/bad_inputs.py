"""Inputs that weft refuses, of every kind: request lines, policies, flags, commands and checkpoints. A few are sound."""

import json
import pathlib

from weft_process import tiny_tensors

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA, DEMO = ROOT / "tests" / "data", ROOT / "models" / "demo"


def each(form, table):
    """The form, filled with every name and each of its values."""
    return [form % (name, value) for name, values in table.items() for value in values]


FIELDS = {"max_tokens": ["0", "1e2", '"5"', "2147483648", "5000"], "min_tokens": ["-1", "9"], "top_p": ["0", "1.1"], "top_k": ["-2", "1.5"],
          "stop": ['""', '[""]', "[1]", "1"], "stop_token_ids": ["[5000]", "5", '["a"]'], "seed": ["9223372036854775808", "1.0"],
          "logprobs": ["-1", "21", '"1"'], "n": ["0", "2", "129"], "echo": ["1"], "ignore_eos": ["1"],
          "temperature": ["-1", "NaN", '"0"', "101", "1e400"], "max_token": ["5"], "min_p": ["-1", "1.1"], "repetition_penalty": ["0", '"1"'],
          "presence_penalty": ["2.5"], "frequency_penalty": ["-3", "true"], "logit_bias": ['{"5":101}', '{"5000":1}', '{"x":1}', "[1]", "3"],
          "bad_words": ["3", "[1]", '[" "]'], "allowed_token_ids": ["[]", "[5000]"], "truncate_prompt_tokens": ["0", "-2"],
          "skip_special_tokens": ["1"], "include_stop_str_in_output": ["1"]}
REQUESTS = [
    "{", "[]", "1", "null", '{"id":1,"prompt_ids":[3],}', b'{"id":"\xff","prompt_ids":[3]}', b'{"id":"a\0b","prompt_ids":[3]}', "[" * 100000,
    '{"id":1,"id":2,"prompt_ids":[3]}', '{"id":1,"prompt":"a","prompt_ids":[3]}', '{"prompt_ids":[3]}', '{"id":1}',
    *each('{"%s":%s,"prompt_ids":[3]}', {"id": ["1.5", "null", "[1]", '""', '"good"', "18446744073709551616"]}),
    *each('{"id":1,"%s":%s}', {"prompt": ["null", "3", '"a"'], "prompt_ids": ["[]", "[-1]", "[5000]", "[1.0]", "3", [3] * 300]}),
    *each('{"id":1,"prompt_ids":[3],"%s":%s}', FIELDS)]
ENVELOPE = '{"custom_id":"%s","method":"%s","url":"/v1/%s","body":{"model":%s}}'
COMPLETION = ENVELOPE % ("x", "POST", "completions", "%s")
OPENAI = [
    '{"custom_id":"x"}', '{"id":1,"prompt_ids":[3]}', ENVELOPE % ("x", "GET", "completions", '"demo","prompt":"a"'),
    ENVELOPE % ("", "POST", "completions", '"demo","prompt":"a"'), ENVELOPE % ("x", "POST", "chat/completions", '"demo","messages":[]'),
    COMPLETION % '"gpt-4","prompt":"a"', *each(COMPLETION % '"demo","%s":%s', {"prompt": ["null", '["a","b"]', "[[1],[3]]", "[5000]", "5"]}),
    *each(COMPLETION % '"demo","prompt":"a","%s":%s', {
        **FIELDS, "temperature": ["3"], "stream": ["true"], "prompt_logprobs": ["1"], "best_of": ["3"], "suffix": ['"end"'],
        "messages": ["[1]"], "tools": ["[1]"], "response_format": ['{"type":"xml"}']})]
TEXTS = ['{"id":1}', '{"text":"a"}', '{"id":1,"text":3}', '{"id":1,"text":"a","prompt":"b"}', "x"]
SCORES = each('{"id":1,"prompt_ids":[3],"%s":%s}', {
    "max_tokens": ["1"], "continuation": ['"a"'], "continuation_ids": ["[]", "[64]", [3] * 48]})
POLICIES = [
    "", "[]", "{", '{"overlap":true,}', "\ufeff{}", '{"overlap":true,"overlap":false}', "[" * 1000 + "]" * 1000, *each('{"%s":%s}', {
        "weigths": ['{"disk":1}'], "version": ["2", "1.0", "null"], "gpu_batch_size": ["0", "1.5", '"4"', "2147483648"],
        "num_gpu_batches": ["32769", "true"], "overlap": ["0", "NaN"], "schedule": ['"dynamic"', "true"],
        "weights": ['{"gpu":1.0}', '{"device":0.5,"disk":0.49}', '{"device":1.01}', '{"device":true}', "[0.2,0.3,0.5]"],
        "kv": ['{"device":-1,"disk":2}', "{}", "null"], "activations": ['"device"'], "attention": ['{"host":0.7}', '"gpu"', "1"],
        "budgets": ['{"device":"20GB"}', '{"device":-1}', '{"host":null}', '{"hots":"1GiB"}', '"4GiB"'],
        "retention": ["{}", '"full"', '{"rule":"h20"}', '{"rule":"recent"}', '{"rule":"full","heavy":4}', *(
            '{"rule":"h2o","heavy":%s,"recent":4%s}' % pair for pair in ((1.5, ""), (-1, ""), (4, ',"sinks":5'), (4, ',"of":"all"')))]})]
FLAGS = [
    "--modle x", "extra", "--report=", "--percent 1 2 3", "--percent 60 60 0 0 0 0", "--percent -1 0 0 0 0 0", "--percent nan 0 0 0 0 0",
    "--disk-dir none", "--report none/r.json", "--trace out.jsonl", "--trace .", "--resume=later", "--machine CPU --device-memory 4KiB",
    "--machine CPU --percent 0 100 100 0 100 0 --host-memory 1KiB", "--machine CPU --percent 100 0 0 0 100 0 --disk-memory 1KiB",
    *each("--%s %s", {
        "gpu-batch-size": ["0", "many"], "num-gpu-batches": ["0", "1048576"], "max-tokens": ["0", "x"], "schedule": ["dynamic"],
        "retention": ["h2o:0.1", "h20:0.1:0.1", "h2o:1.5:0.1", "recent:-4"], "attention": ["gpu", "1.5"], "disk-engine": ["mmap"],
        "dtype": ["int8"], "weights": ["random:x", "none"], "shard": ["0/2", "3/2", "2", "1/2/3", "a/b"], "durability": ["fire"],
        "on-bad-request": ["ignore"], "or-retention": ["h20"], "served-model-name": ["name"], "threads": ["-1", "x"], "input": ["x"],
        "device-memory": ["4GB", "1e3", ".5GiB", "99999999TiB"], "machine": ["none", "in.jsonl", "T4"], "policy": ["none", "in.jsonl"]})]
COMMANDS = [  # words in capitals stand for paths and for flags that the caller knows
    "", "generat", "--version", "generate", "plan", "bench", "merge", "inspect", "inspect none", "inspect TINY", "inspect in.jsonl",
    "bench --save m.json", "bench --lanes --save none/m.json", "bench --model none", "bench --model TINY --schedule static",
    "convert --model none --output x", "convert --model TINY --output .", "tokenize --model TINY --input in.jsonl --output o",
    *each("merge --input in.jsonl --output %s %s", {"o": ["1", "1 2", "1 1 2", "1 cut", "1 none"], ".": ["1 2"], "none/o": ["1 2"]}),
    *each("generate --model TINY DEVICE --input %s --output %s", {
        "none": ["o"], ".": ["o"], "blank": ["o"], "in.jsonl": ["o", ".", "none/o", "in.jsonl", *each("%s %s", dict.fromkeys(
            ["1", "cut", "blank"], ["", "--resume", "--resume=adopt", "--resume=adopt,repair", "--resume=force"]))]}),
    *each("plan --model OPT --machine %s %s", {"none": [""], "in.jsonl": [""], "T4": [
        "BLOCK", "--device-memory 64MiB", "--gpu-batch-size 20000 --num-gpu-batches 1", "--prompt-len 2000 --gen-len 100",
        "--prompt-len 0", "--requests -1", "--disk-dir none", "--sweep none", "--threads 1", "--published none"]})]


def damaged_checkpoints(tiny):
    """A name, a sound checkpoint, and the files that are another there; None is one that is missing."""
    weights, whole, torch = "model.safetensors", (tiny / "model.safetensors").read_bytes(), DATA / "torch_bin" / "whole"
    yield "sound", tiny, {}
    for size in 0, 4, 100, len(whole) // 2, len(whole) - 2:
        yield f"cut at {size}", tiny, {weights: whole[:size]}
    for case in sorted(DATA.glob("checkpoint/cases/*")):
        yield case.name, tiny, {weights: case.read_bytes()}
    for case in sorted(DATA.glob("torch_bin/cases/*")):
        yield case.name, tiny, {weights: None, "pytorch_model.bin": case.read_bytes()}
    data = (torch / "pytorch_model.bin").read_bytes()
    yield "another byte", torch, {"pytorch_model.bin": data[:len(data) // 2] + b"?" + data[len(data) // 2 + 1:]}
    for name in sorted(tiny_tensors()):
        yield f"without {name}", tiny, {weights: whole.replace(name.encode(), b"x" * len(name), 1)}
    for text in "{", "{}", '{"weight_map":{}}', '{"weight_map":{"a":"none.safetensors"}}', '{"weight_map":{"a":"../x"}}':
        yield f"index {text}", tiny, {weights: None, weights + ".index.json": text.encode()}
    for name in "tokenizer.json", "config.json", "vocab.json", "merges.txt":
        for text in b"", b"{", b"[]", b"{}", b'{"model":{"type":"Unigram"}}', None:
            yield f"{name} {text}", DEMO, {name: text}


def other_configs(folder):
    """The config with each key left out, made a text, and, where it is a whole number, made greater by 1."""
    config = json.loads((folder / "config.json").read_text())
    for key, value in config.items():
        others = {other: config[other] for other in config if other != key}
        for changed in [others, {**others, key: "x"}, *([{**others, key: value + 1}] if type(value) is int else [])]:
            yield f"{folder.name}, {key} {changed.get(key, 'left out')}", folder, {"config.json": json.dumps(changed).encode()}
