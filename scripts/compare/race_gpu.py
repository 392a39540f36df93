#!/usr/bin/env python3
"""The race of H2O's table 3 on one GPU: Weft, Accelerate, DeepSpeed ZeRO-Inference, FlexGen and H2O's own code generate
with the shapes of OPT-6.7B and OPT-30B and random weights, each at its best batch, one run each.

After every run the record (JSON) is written anew, so that what was measured stays when time runs out; the next call goes
on with what is missing. At its end it prints a table: tokens a second, what Weft's fastest is to each, and which figures
are measured to the end and which projected from their first steps. A peer that cannot run has its reason in the record.

Usage: race_gpu.py [--record FILE] [--minutes 9] [--workloads LIST] [--systems LIST] [--peers FOLDER]
       race_gpu.py --dry-run             prints the commands, and what is missing for them
       race_gpu.py --device cpu          a tiny shape on the CPU: Weft and Accelerate
       race_gpu.py --table FILE          the table of a record
Accelerate wants accelerate, torch and transformers from PyPI in the Python that runs this; DeepSpeed wants deepspeed too;
run_flexgen.py says what the folder --peers holds, and what of FlexGen and H2O is changed.
"""
import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time

from generation_loop import rates

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WEFT = {"weft": ("full", None), "weft-h2o": ("h2o:0.1:0.1", None), "weft-h2o-int4": ("h2o:0.1:0.1", "int4")}
SYSTEMS = [*WEFT, "accelerate", "deepspeed", "flexgen", "h2o"]
GPU_WORKLOADS = [f"opt-{size} 512+{tokens}" for size in ("6.7b", "30b") for tokens in (32, 512, 1024)]
CPU_WORKLOADS = ["tiny-opt 16+8", "tiny-opt 16+40"]
# The settings of the published tables (configs/published); of FlexGen and H2O: gpu batch, batches, percentages, flags.
FLEXGEN = {
    "opt-6.7b 512+32": (2, 1, "100 0 100 0 100 0", ""),
    "opt-6.7b 512+512": (1, 1, "100 0 100 0 100 0", ""),
    "opt-6.7b 512+1024": (1, 1, "100 0 100 0 100 0", ""),
    "opt-30b 512+32": (48, 3, "20 80 0 100 0 100", "--cpu-cache-compute"),
    "opt-30b 512+512": (40, 2, "20 80 0 100 0 100", "--cpu-cache-compute"),
    "opt-30b 512+1024": (48, 1, "20 80 0 100 0 100", "--cpu-cache-compute"),
}
H2O = {
    "opt-6.7b 512+32": (4, 1, "100 0 100 0 100 0", "--hh-ratio 0.1 --hh-all"),
    "opt-6.7b 512+512": (4, 1, "100 0 100 0 100 0", "--hh-ratio 0.2 --hh-all"),
    "opt-6.7b 512+1024": (4, 1, "100 0 100 0 100 0", "--hh-ratio 0.3 --hh-all"),
    "opt-30b 512+32": (52, 14, "0 100 0 100 0 100", "--hh-ratio 0.1 --hh-all --cpu-cache-compute"),
    "opt-30b 512+512": (52, 8, "0 100 0 100 0 100", "--hh-ratio 0.2 --hh-all --cpu-cache-compute"),
    "opt-30b 512+1024": (44, 6, "0 100 0 100 0 100", "--hh-ratio 0.3 --hh-all --cpu-cache-compute"),
}
BATCHES = "128,64,32,16,8,4,2,1"  # of Accelerate and DeepSpeed: the first for which there is memory


class CannotRun(Exception):
    pass


def lengths(workload):
    model, both = workload.split()
    prompt, tokens = map(int, both.split("+"))
    return model, prompt, tokens


def shape_of(model):
    folder = HERE if model == "tiny-opt" else ROOT / "configs/models"
    return folder / f"{model}.json"


def timed_steps(tokens, most):
    """Tokens that are generated: all, or as many as the race has time for."""
    return tokens if tokens <= 3 * most else most


def weft_command(options, system, workload):
    if not options.weft.exists():
        raise CannotRun(f"{options.weft} is missing; build it, or say --weft")
    model, prompt, tokens = lengths(workload)
    retention, weights = WEFT[system]
    command = [str(options.weft), "bench", "--model", str(shape_of(model)), "--weights", "random:1", "--prompt-len",
               str(prompt), "--gen-len", str(tokens), "--retention", retention, "--device-memory",
               options.device_memory, "--host-memory", options.host_memory, "--disk-dir", options.scratch,
               "--backend", options.device]
    if options.device == "cpu":
        command += "--percent 100 0 100 0 100 0 --gpu-batch-size 4 --num-gpu-batches 2".split()
    else:
        policy = "opt-6.7b-16gib" if model == "opt-6.7b" else "opt-30b-16gib" + ("-short" if tokens == 32 else "")
        command += ["--policy", str(ROOT / f"configs/policies/{policy}.json")]
    if weights:
        command += ["--weight-dtype", weights]
    if timed_steps(tokens, options.steps) < tokens:
        command += ["--project", str(max(1, options.steps // 3))]
    return command


def module_missing(*names):
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise CannotRun(f"Python's package {name} is not installed")


def python_command(options, system, workload):
    model, prompt, tokens = lengths(workload)
    if system == "deepspeed" and options.device == "cpu":
        raise CannotRun("ZeRO-Inference wants a GPU")
    module_missing("torch", "transformers", system)
    command = [sys.executable, str(HERE / f"run_{system}.py"), "--config", str(shape_of(model)), "--prompt-len",
               str(prompt), "--steps", str(timed_steps(tokens, options.steps))]
    if system == "deepspeed":
        return command + ["--batch", BATCHES]
    if options.device == "cpu":
        return command + ["--batch", "8,4", "--max-memory", "cpu=1GiB"]
    memory = f"0={options.device_memory},cpu={options.host_memory}"
    return command + ["--batch", BATCHES, "--max-memory", memory, "--dtype", "float16"]


def flexgen_command(options, system, workload):
    if options.device == "cpu":
        raise CannotRun("its code wants a GPU")
    folder, module = {"flexgen": ("flexgen", "flexllmgen.flex_opt"), "h2o": ("h2o/h2o_flexgen", "flexgen.flex_opt")}[system]
    if not (options.peers / folder).exists():
        raise CannotRun(f"{options.peers / folder} is missing: run_flexgen.py says where it comes from")
    module_missing("torch", "transformers")
    model, prompt, tokens = lengths(workload)
    batch, batches, percent, flags = (H2O if system == "h2o" else FLEXGEN)[workload]
    command = [sys.executable, str(HERE / "run_flexgen.py"), str(options.peers / folder), module, "--model",
               f"facebook/{model}", "--path", "_DUMMY_", "--offload-dir", options.scratch, "--prompt-len", str(prompt),
               "--gen-len", str(tokens), "--gpu-batch-size", str(batch), "--num-gpu-batches", str(batches), "--percent",
               *percent.split(), "--overlap", "False" if batches == 1 and percent.startswith("100") else "True",
               "--log-file", str(pathlib.Path(options.scratch) / f"{system}.log"), *flags.split()]
    if model == "opt-30b":  # as published: a part of one decode step is timed
        command += ["--debug-mode", "fewer_batch"]
    elif timed_steps(tokens, options.steps) < tokens:
        command += ["--cut-gen-len", str(options.steps)]
    return command


def command_of(options, system, workload):
    if system in WEFT:
        return weft_command(options, system, workload)
    return (flexgen_command if system in ("flexgen", "h2o") else python_command)(options, system, workload)


def figures_of(system, workload, said, steps):
    """An entry's figures from a program's output."""
    _, _, tokens = lengths(workload)
    if system in WEFT:
        report = json.loads(said)
        speed = {name: figure["median"] for name, figure in report["tokens_per_second"].items() if figure}
        return {"batch": report["workload"]["requests"], "measured": report["measured"], **speed}
    times = json.loads(said.splitlines()[-1])
    if "tokens_per_second" in times:
        batch, batches, *_ = (H2O if system == "h2o" else FLEXGEN)[workload]
        return {"batch": batch * batches, "measured": not times["projected"], "total": times["tokens_per_second"],
                "decode": batch * batches * (tokens - 1) / times["decode_seconds"]}
    return {"batch": times["batch"], "measured": steps == tokens, **rates(times, times["batch"], tokens)}


def run(command, limit):
    """(output, reason that there is none)."""
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        try:
            said, _ = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return None, f"not done after {limit:.0f} s"
        if child.returncode == 0:
            return said, None
        errors.seek(0)
        last = [line for line in errors.read().splitlines() if line.strip()][-1:] or ["no word"]
        return None, f"exit code {child.returncode}: {last[0][:300]}"


def write_record(path, record):
    following = path.with_name(path.name + ".next")
    following.write_text(json.dumps(record, indent=1) + "\n")
    following.replace(path)


def new_record(options):
    gpu = "none"
    if options.device == "cuda":
        asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader", "-i", "0"]
        try:
            gpu = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            sys.exit("race_gpu: error: nvidia-smi finds no GPU; --device cpu races a tiny shape, --dry-run prints the commands")
    return {"version": 1, "date": datetime.date.today().isoformat(), "device": options.device, "gpu": gpu,
            "system": platform.platform(), "device_memory": options.device_memory, "host_memory": options.host_memory,
            "entries": []}


def race(options):
    record = new_record(options)
    if options.record.exists():
        kept = json.loads(options.record.read_text())
        if any(kept[key] != record[key] for key in ("device", "gpu", "device_memory", "host_memory")):
            sys.exit(f"race_gpu: error: {options.record} is of another machine or other budgets; name another --record")
        record = kept
    deadline = time.monotonic() + 60 * options.minutes
    done = {(e["workload"], e["system"]) for e in record["entries"] if "total" in e}
    for workload in options.workloads:
        for system in options.systems:
            if (workload, system) in done:
                continue
            entry = {"workload": workload, "system": system}
            try:
                command = command_of(options, system, workload)
                left = deadline - time.monotonic()
                if left < 10:
                    raise CannotRun(f"the {options.minutes:g} minutes are over")
                entry["command"] = shlex.join(command)
                print("$", entry["command"], file=sys.stderr, flush=True)
                begin = time.monotonic()
                said, reason = run(command, left)
                entry["seconds"] = round(time.monotonic() - begin, 1)
                if reason:
                    raise CannotRun(reason)
                entry |= figures_of(system, workload, said, timed_steps(lengths(workload)[2], options.steps))
            except CannotRun as reason:
                entry["reason"] = str(reason)
            record["entries"] = [e for e in record["entries"] if (e["workload"], e["system"]) != (workload, system)]
            record["entries"].append(entry)
            write_record(options.record, record)
    return record


def table(record):
    """Markdown: a row for each workload and system, by speed."""
    lines = [f"{record['gpu'] if record['device'] == 'cuda' else 'CPU'}, {record['date']}; at most "
             f"{record['device_memory']} of device memory and {record['host_memory']} of host memory; random weights.", "",
             "| workload | system | batch | tokens/s | decode tokens/s | Weft is | measured |",
             "|---|---|---|---|---|---|---|"]
    reasons = []
    for workload in dict.fromkeys(e["workload"] for e in record["entries"]):
        entries = [e for e in record["entries"] if e["workload"] == workload]
        ran = sorted((e for e in entries if "total" in e), key=lambda e: -e["total"])
        fastest = max((e["total"] for e in ran if e["system"] in WEFT), default=None)
        for e in ran:
            ratio = f"{fastest / e['total']:.1f}x" if fastest and e["system"] not in WEFT else ""
            lines.append(f"| {workload} | {e['system']} | {e['batch']} | {e['total']:.2f} | {e['decode']:.2f} | {ratio} | "
                         f"{'to its end' if e['measured'] else 'projected'} |")
        reasons += [f"- {workload}, {e['system']}: {e['reason']}" for e in entries if "reason" in e]
    return "\n".join([*lines, "", *reasons])


def dry_run(options):
    for workload in options.workloads:
        for system in options.systems:
            try:
                print(shlex.join(command_of(options, system, workload)))
            except CannotRun as reason:
                print(f"# {workload}, {system}: {reason}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=pathlib.Path, default=ROOT / "docs/results/race.json")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--workloads", help='such as "opt-30b 512+512"; several with commas')
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--device-memory", help="by default 16GiB, 1GiB on a CPU")
    parser.add_argument("--host-memory", help="by default 96GiB, 1GiB on a CPU")
    parser.add_argument("--steps", type=int, default=16, help="tokens of a longer run that are timed; the rest is projected")
    packaged = ROOT / "bin/weft"
    parser.add_argument("--weft", type=pathlib.Path, default=packaged if packaged.exists() else ROOT / "build/release/weft")
    parser.add_argument("--peers", type=pathlib.Path, default=ROOT / "build/peers", help="where FlexGen and H2O are")
    parser.add_argument("--scratch", default=tempfile.gettempdir(), help="a folder on a disk")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    known = GPU_WORKLOADS if options.device == "cuda" else CPU_WORKLOADS
    options.workloads = options.workloads.split(",") if options.workloads else known
    options.systems = options.systems.split(",")
    for name, chosen, there in (("workload", options.workloads, known), ("system", options.systems, SYSTEMS)):
        for one in chosen:
            if one not in there:
                parser.error(f"no {name} '{one}'; there are {', '.join(there)}")
    options.device_memory = options.device_memory or ("16GiB" if options.device == "cuda" else "1GiB")
    options.host_memory = options.host_memory or ("96GiB" if options.device == "cuda" else "1GiB")
    return options


def main():
    options = parse()
    if options.table:
        print(table(json.loads(options.table.read_text())))
    elif options.dry_run:
        dry_run(options)
    else:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        print(table(race(options)))


if __name__ == "__main__":
    main()
