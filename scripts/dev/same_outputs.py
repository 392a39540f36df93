#!/usr/bin/env python3
"""Shows that two builds of weft give the same outputs, byte by byte.

Usage: same_outputs.py OLD_WEFT NEW_WEFT      exits with 0 if nothing differs
       same_outputs.py --self-test NEW_WEFT   spoils one output after another; each must be noticed

Both binaries run on the same inputs, each in a folder of its own. Five groups are compared:

    golden answers  the bytes that `generate` writes for every checkpoint of tests/data/golden
    demo answers    the same for models/demo under many policies, and of `score`, `tokenize`, `merge` and `convert`
    JSON keys       the keys, not the values, of reports, traces, policies, machine files and run records
    exit codes      of bad flags, files, requests, policies and checkpoints; the messages may differ
    flags           the subcommands, and the option names in the --help of each

A golden checkpoint that OLD refuses as not supported and NEW answers is a new family. It is named and not counted.
Runs that must succeed and do not are a difference, even if both fail alike: they compare nothing.
Everything runs on the CPU, in about two minutes. Python's standard library is enough.
"""

import collections
import concurrent.futures
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA, DEMO, CONFIGS = ROOT / "tests" / "data", ROOT / "models" / "demo", ROOT / "configs"
sys.path.insert(0, str(ROOT / "tests" / "support"))
import bad_inputs  # noqa: E402
from weft_process import write_tiny_model  # noqa: E402

CPU = ("--backend", "cpu", "--threads", 2)
BLOCK = ("--gpu-batch-size", 4, "--num-gpu-batches", 2)
DEVICE = (*BLOCK, "--percent", 100, 0, 100, 0, 100, 0)
POLICIES = {
    "device": DEVICE,
    "host": (*BLOCK, "--percent", 0, 100, 0, 100, 0, 100, "--attention", "host"),
    "disk": (*BLOCK, "--percent", 0, 0, 0, 0, 0, 0, "--disk-dir", "."),
    "continuous": ("--gpu-batch-size", 2, "--num-gpu-batches", 1, "--percent", 40, 30, 40, 30, 40, 30, "--schedule", "continuous"),
    "static": (*BLOCK, "--percent", 100, 0, 0, 100, 100, 0, "--schedule", "static", "--attention", 0.6, "--no-overlap"),
    "three tiers": ("--policy", CONFIGS / "policies" / "demo-three-tiers.json"),
    **{name: (*DEVICE, "--dtype", name) for name in ("float32", "bfloat16")},
    **{rule: (*DEVICE, "--retention", rule) for rule in ("h2o:0.1:0.1", "recent:12", "heavy:12", "h2o-flexgen:0.2:0.2", "random:8:8")}}
FAMILIES = {json.loads(path.read_text())["model_type"]: path.parent for path in sorted(DATA.glob("golden/*/config.json"))}

Done = collections.namedtuple("Done", "code stdout said files")  # files: the bytes that a run left, by name


class Pair:
    """The two binaries. Every run begins in an empty folder; what it names by relative paths is alike on both sides."""

    def __init__(self, old, new, folder):
        self.sides = [(old, folder / "old"), (new, folder / "new")]

    def run(self, arguments, inputs):
        """Both at once: what they do must not depend on how fast they are."""
        with concurrent.futures.ThreadPoolExecutor() as both:
            return list(both.map(lambda side: run(*side, [*map(str, arguments)], inputs), self.sides))


def run(binary, folder, arguments, inputs):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in inputs.items():
        (folder / name).write_bytes(data)
    try:
        done = subprocess.run([binary, *arguments], cwd=folder, capture_output=True, timeout=120)
    except subprocess.TimeoutExpired:
        return Done(f"{folder.name} takes too long", "", "", {})
    left = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files = {name: data for name, data in left.items() if inputs.get(name) != data}
    return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), files)


class Detected(Exception):
    """The self-test looks for one difference, and ends with it."""


class Group:
    """What was compared under one name, and what differs."""

    def __init__(self, name, pair, folder, stop_at_first=False):
        self.name, self.pair, self.folder, self.stop_at_first = name, pair, folder, stop_at_first
        self.compared, self.differences, self.notes = 0, [], []

    def same(self, what, old, new):
        self.compared += 1
        if old != new:
            self.differences.append(f"{what}: {short(old)} became {short(new)}")
            if self.stop_at_first:
                raise Detected

    def same_set(self, what, old, new):
        for name in sorted(old | new):
            self.same(f"{what}: {name}", *("there" if name in side else "not there" for side in (old, new)))

    def succeed(self, what, arguments, inputs=None):
        """What both runs gave if both ended with 0. Else nothing, and a note or a difference."""
        old, new = self.pair.run(arguments, inputs or {})
        if old.code == new.code == 0:
            return old, new
        if is_new_family(old, new):
            self.notes.append(f"new family: {what}")
        else:
            self.same(what, "exit code 0", f"{old.code} and {new.code}: {(old.said if old.code else new.said).strip()[-200:]}")
        return ()

    def same_files(self, what, arguments, inputs=None):
        """Every file, byte by byte, but JSON files and the time at which an OpenAI answer was made."""
        pair = self.succeed(what, arguments, inputs)
        for name in sorted({name for done in pair for name in done.files if not name.endswith(".json")}):
            sides = [re.sub(rb'"created":\d+', b"", done.files.get(name, b"no such file")) for done in pair]
            if sides[0] != sides[1]:  # show only where
                at = next((i for i, (a, b) in enumerate(zip(*sides)) if a != b), min(map(len, sides)))
                sides = [f"{side[at:at + 24]} at byte {at}" for side in sides]
            self.same(f"{what}: {name}", *sides)

    def same_keys(self, what, arguments, inputs=None):
        """The keys of every JSON file. Returns what both runs gave."""
        pair = self.succeed(what, arguments, inputs)
        for name in sorted({name for done in pair for name in done.files if name.endswith(".json")}):
            self.same_set(f"{what}: {name}", *(keys_of(json.loads(done.files.get(name, b"null"))) for done in pair))
        return pair

    def report(self):
        print(f"{self.name}: {self.compared} compared, {len(self.differences)} differ", *self.notes, sep="; ")
        print(*(f"  {text}\n" for text in self.differences[:20]), sep="", end="", flush=True)


def is_new_family(old, new):
    return old.code == 3 and new.code == 0 and "is not supported" in old.said


def short(value):
    return str(value) if len(str(value)) < 250 else str(value)[:250] + "..."


def keys_of(value, path=""):
    """All paths of keys; the elements of a list count as one. The keys below `together` are measurements."""
    if isinstance(value, list):
        return set().union(*(keys_of(element, path + "[]") for element in value))
    if not isinstance(value, dict) or path == ".together":
        return set()
    return set().union(*({f"{path}.{key}"} | keys_of(inner, f"{path}.{key}") for key, inner in value.items()))


def lines(*values):
    """The bytes of a JSONL file; text and bytes are lines already."""
    as_text = (value if isinstance(value, (str, bytes)) else json.dumps(value) for value in values)
    return b"".join((text if isinstance(text, bytes) else text.encode()) + b"\n" for text in as_text)


def job(model, *flags, command="generate", policy=DEVICE):
    return command, "--model", model, "--input", "in.jsonl", "--output", "out.jsonl", "--quiet", *CPU, *policy, *flags


def golden_answers(group):
    """Greedy and sampled requests of several lengths, more of them than a block has places."""
    for model in sorted(path.parent for path in DATA.glob("golden/*/config.json")):
        vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
        draw, asked = random.Random(1), []
        for i, length in enumerate((1, 3, 8, 17, 30, 44)):
            prompt = {"prompt_ids": [draw.randrange(vocabulary) for _ in range(length)]}
            asked += [{"id": f"greedy{i}", **prompt, "max_tokens": 30 + i, "logprobs": 2, "ignore_eos": True},
                      {"id": f"sampled{i}", **prompt, "max_tokens": 20 + i, "temperature": 0.9, "top_p": 0.95, "top_k": 50,
                       "seed": i, "min_tokens": i, "n": 1 + i % 3, "stop_token_ids": [7, 11]}]
        for rule in "full", "h2o:0.1:0.1":
            group.same_files(f"{model.name}, {rule}", job(model, "--retention", rule), {"in.jsonl": lines(*asked)})


def demo_answers(group):
    texts = [json.loads(line)["prompt"] for line in (CONFIGS / "examples" / "prompts.jsonl").read_text().splitlines()]
    asked = {"in.jsonl": lines(
        *({"id": i, "prompt": text, "max_tokens": 10 + 7 * i % 20, "temperature": 0.7 * (i % 2), "seed": i, "logprobs": i % 4}
          for i, text in enumerate(texts)), {"id": "n", "prompt": "The", "n": 3, "temperature": 1, "stop": ["e "], "max_tokens": 30},
        {"id": "echo", "prompt": "The sea", "echo": True, "max_tokens": 12})}
    scored = {"in.jsonl": lines(*({"id": i, "prompt": texts[i // 2], "continuation": texts[i + 1]} for i in range(8)))}
    for name, policy in POLICIES.items():
        group.same_files(f"generate, {name}", job(DEMO, policy=policy), asked)
        group.same_files(f"score, {name}", job(DEMO, command="score", policy=policy), scored)
    group.same_files("shard, ordered", job(DEMO, "--shard", "2/3", "--ordered"), asked)
    group.same_files("openai", job(DEMO), {"in.jsonl": (CONFIGS / "examples" / "openai.jsonl").read_bytes()})
    tokenized = lines(*({"id": i, "text": text} for i, text in enumerate([*texts, "", "é \U0001F30D\r\n\t 12"])))
    group.same_files("tokenize", ("tokenize", "--model", DEMO, "--input", "in.jsonl", "--output", "out.jsonl"), {"in.jsonl": tokenized})
    parts = {"in.jsonl": lines({"id": 1, "prompt": "a"}, {"id": 2, "prompt": "b"}),
             **{str(3 - i): lines({"id": i, "token_ids": [i]}) for i in (1, 2)}}
    group.same_files("merge", ("merge", "--input", "in.jsonl", "--output", "out.jsonl", "1", "2"), parts)
    for model in DEMO, DATA / "golden" / "sharded-bf16", DATA / "torch_bin" / "whole":
        group.same_files(f"convert {model.name}", ("convert", "--model", model, "--output", "packed"))


def json_keys(group):
    asked = {"in.jsonl": lines(*({"id": i, "prompt": "The sea", "max_tokens": 6} for i in range(6)))}
    scored = {"in.jsonl": lines({"id": 1, "prompt": "The", "continuation": " sea"})}
    machine = ("--machine", CONFIGS / "machines" / "cpu.json")
    written = ("--report", "report.json", "--trace", "trace.json")
    for name in "device", "disk", "three tiers", "static":
        group.same_keys(f"generate, {name}", job(DEMO, *written, *machine, policy=POLICIES[name]), asked)
    group.same_keys("generate, shard", job(DEMO, *written, "--shard", "1/2", "--durability", "power"), asked)
    group.same_keys("score", job(DEMO, *written, command="score"), scored)
    planned = ("--explain", "--report", "report.json", "--output", "policy.json")
    group.same_keys("plan", ("plan", "--model", DEMO, *machine, "--prompt-len", 32, "--gen-len", 32, *planned))
    on_gpu = ("--model", CONFIGS / "models" / "opt-6.7b.json", "--machine", CONFIGS / "machines" / "t4.json")
    group.same_keys("plan on a GPU", ("plan", *on_gpu, *BLOCK, "--retention", "h2o:0.1:0.1", *planned))
    group.same_keys("bench --save", ("bench", "--lanes", "--quick", *CPU, "--save", "machine.json"))
    lanes = group.same_keys("bench --lanes", ("bench", "--lanes", "--quick", *CPU, "--report", "report.json"))
    ceilings = {"lanes": lanes[0].files["report.json"] if lanes else b""}
    bench = ("bench", "--model", DEMO, *CPU, *DEVICE, "--prompt-len", 8, "--gen-len", 12, "--report", "report.json")
    group.same_keys("bench --ceilings", (*bench, *machine, "--ceilings", "lanes"), ceilings)
    group.same_keys("bench --project", (*bench, "--project", 2, "--skip-prefill"))


def flags(group):
    """An option is a word with dashes that begins a line of --help."""
    def helped(pattern, *command):
        pair = group.succeed(f"weft {' '.join(command)} --help", (*command, "--help"))
        sides = [re.findall(pattern, done.stdout, re.MULTILINE) for done in pair] or [[], []]
        return [{name for found in side for name in found.split(",")} for side in sides]

    options, commands = r"^ {1,4}(-[-\w,]+)", helped(r"^  ([a-z]\w*) ")
    group.same_set("weft", *commands)
    group.same_set("weft", *helped(options))
    for command in sorted(set.intersection(*commands)):
        group.same_set(f"weft {command}", *helped(options, command))


def bad_calls(tiny):
    """What is called, its arguments and its files."""
    def words(text):
        known = {"TINY": [tiny], "DEVICE": DEVICE, "BLOCK": BLOCK, "OPT": [CONFIGS / "models" / "opt-30b.json"],
                 "T4": [CONFIGS / "machines" / "t4.json"], "CPU": [CONFIGS / "machines" / "cpu.json", "--gpu-batch-size", 4]}
        return [word for short_word in text.split() for word in known.get(short_word, [short_word])]

    answer = '{"id":%s,"text":null,"token_ids":[5,6],"finish_reason":"length","usage":{"prompt_tokens":20,"completion_tokens":2}}'
    asked = {"in.jsonl": lines(*({"id": i, "prompt_ids": [3] * 20, "max_tokens": 2} for i in range(2)))}
    files = {**asked, "blank": b"\n", "1": lines(answer % 0), "2": lines(answer % 1), "cut": lines(answer % 1)[:-9]}
    for text in bad_inputs.COMMANDS:
        yield f"weft {text}", words(text), files
    for text in bad_inputs.FLAGS:
        yield f"generate {text}", job(tiny, *words(text), policy=()), asked
    for text in bad_inputs.POLICIES:
        yield f"policy {short(text)}", job(tiny, "--policy", "p.json", policy=()), {**asked, "p.json": text.encode()}


def bad_requests(tiny):
    """Each bad line follows a sound one."""
    tokenize = ("tokenize", "--model", DEMO, "--input", "in.jsonl", "--output", "out.jsonl")
    sound = '{"id":"good","prompt_ids":[3,4],"max_tokens":4}'
    completion = bad_inputs.COMPLETION.replace('"x"', '"good"') % '"demo","prompt":"a"'
    for arguments, first, bad in [
            (job(tiny), sound, bad_inputs.REQUESTS), (job(DEMO), sound, bad_inputs.REQUESTS[9:]), (job(DEMO), completion, bad_inputs.OPENAI),
            (job(tiny, command="score"), '{"id":0,"prompt_ids":[3],"continuation_ids":[4]}', bad_inputs.SCORES),
            (tokenize, '{"id":0,"text":"fine"}', bad_inputs.TEXTS)]:
        yield f"{arguments[0]}, sound", arguments, {"in.jsonl": lines(first)}
        for line in bad:
            yield f"{arguments[0]}: {short(line)}", arguments, {"in.jsonl": lines(first, line)}
    yield "refusals recorded", job(tiny, "--on-bad-request", "record"), {"in.jsonl": lines(sound, *bad_inputs.REQUESTS)}


def bad_checkpoints(tiny, model, families):
    """The checkpoint lies in the folder `model` until the next is asked for."""
    asked = {"in.jsonl": lines({"id": 1, "prompt_ids": [3, 4], "max_tokens": 2})}
    tables = [(job(model), bad_inputs.damaged_checkpoints(tiny))]
    tables += [(("inspect", model), bad_inputs.other_configs(folder)) for folder in families]
    for command, cases in tables:
        for what, sound, files in cases:
            shutil.rmtree(model, ignore_errors=True)
            shutil.copytree(sound, model)
            for name, data in files.items():
                (model / name).unlink(missing_ok=True) if data is None else (model / name).write_bytes(data)
            yield f"{command[0]}, {what}", command, asked


def exit_codes(group):
    tiny, seen = group.folder / "tiny", collections.Counter()
    shutil.rmtree(tiny, ignore_errors=True)
    write_tiny_model(tiny)
    known = [folder for folder in FAMILIES.values() if not is_new_family(*group.pair.run(("inspect", folder), {}))]
    for cases in bad_calls(tiny), bad_requests(tiny), bad_checkpoints(tiny, group.folder / "model", known):
        for what, arguments, inputs in cases:
            old, new = group.pair.run(arguments, inputs)
            group.same(what, old.code, new.code)
            if what.endswith(", sound"):
                group.same(f"{what}, must succeed", 0, old.code)
            seen[str(old.code)] += 1
    group.notes.append("codes " + ", ".join(f"{code}: {count}" for code, count in sorted(seen.items())))


GROUPS = {"golden answers": golden_answers, "demo answers": demo_answers, "JSON keys": json_keys, "exit codes": exit_codes, "flags": flags}


def compare(old, new, folder):
    groups = [Group(name, Pair(old, new, folder), folder) for name in GROUPS]
    for group in groups:
        GROUPS[group.name](group)
        group.report()
    differ = sum(len(group.differences) for group in groups)
    print(f"{sum(group.compared for group in groups)} compared, {differ} differ")
    return differ == 0 and all(group.compared for group in groups)


# Stands in for NEW. Where something can be spoiled for the third time, it is.
SPOILER = """#!{python}
import json, pathlib, subprocess, sys
done = subprocess.run([{weft!r}, *sys.argv[1:]], capture_output=True)
code, said, file, times = done.returncode, done.stdout, pathlib.Path({file!r}), pathlib.Path({times!r})
if {when}:
    times.write_text(times.read_text() + ".")
    if len(times.read_text()) == 3:
        {spoil}
sys.stdout.buffer.write(said)
sys.stderr.buffer.write(done.stderr)
sys.exit(code)
"""
BYTE = "data = bytearray(file.read_bytes()); data[len(data) // 2] ^= 1; file.write_bytes(data)"
KEY = "value = json.loads(file.read_text()); %s; file.write_text(json.dumps(value))"
SPOILED = [("golden answers", "out.jsonl", "file.is_file()", BYTE), ("demo answers", "out.jsonl", "file.is_file()", BYTE),
           ("JSON keys", "report.json", "file.is_file()", KEY % "del value['lanes']['disk_read']['bytes']"),
           ("JSON keys", "trace.json", "file.is_file()", KEY % "[event.pop('dur', 0) for event in value['traceEvents']]"),
           ("JSON keys", "out.jsonl.run.json", "file.is_file()", KEY % "del value['run']['dtype']"),
           ("exit codes", "an exit code", "code == 2", "code = 3"),
           ("flags", "an option", "b'  --input' in said", "said = said.replace(b'  --input', b'  --inputs')")]


def self_test(weft, folder):
    """Each spoiled output must be noticed, and nothing before it."""
    missed = 0
    for name, file, when, spoil in SPOILED:
        spoiler, times = folder / "spoiler.py", folder / "times"
        times.write_text("")
        spoiler.write_text(SPOILER.format(python=sys.executable, weft=str(weft), file=file, times=str(times), when=when, spoil=spoil))
        spoiler.chmod(0o700)
        group = Group(name, Pair(weft, spoiler, folder), folder, stop_at_first=True)
        try:
            GROUPS[name](group)
        except Detected:
            pass
        noticed = len(group.differences) == 1 and len(times.read_text()) == 3
        missed += not noticed
        print(f"{name}, {file} spoiled:", "noticed," if noticed else "MISSED,", *group.differences, flush=True)
    print(f"{len(SPOILED)} spoiled, {missed} missed")
    return missed == 0


def main():
    testing = sys.argv[1:2] == ["--self-test"]
    binaries = [pathlib.Path(text).resolve() for text in sys.argv[1 + testing:]]
    if len(binaries) != 2 - testing or not all(path.is_file() for path in binaries):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="weft-same-") as folder:
        sys.exit(0 if (self_test if testing else compare)(*binaries, pathlib.Path(folder)) else 1)


if __name__ == "__main__":
    main()
