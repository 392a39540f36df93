#!/usr/bin/env python3
"""The race of H2O's comparison on one CPU machine: Weft and its peers generate with OPT-1.3B's shape and random weights,
all layers on disk, each inside one memory cgroup that counts the page cache too; see accelerate.sh.

Weft runs the block that its planner picks for the limit: full cache, H2O at 20 %, and that with int4 weights and int4 KV.
Peers run at the largest batch that is not killed, looked for from --first-batch on. Where a peer fits at no batch, the
limit grows for it and for Weft in steps of 512 MiB. After every run the record (JSON) is written anew, and the next call
goes on with what is missing; at the end the table of the record is printed. llama.cpp, which has no OPT, races Weft with
--shape tinyllama-1.1b.

Usage: race.py [--peers LIST] [--workloads LIST] [--minutes 9]
       race.py --dry-run           what would run
       race.py --table FILE        the table of a record
       race.py --tiny --no-limit   a tiny shape without a cgroup, which shows that the script works and nothing else
"""
import argparse
import datetime
import importlib.util
import json
import pathlib
import platform
import shlex
import subprocess
import sys
import time

import llama_cpp
from generation_loop import rates
from memory_limit import forget, run_within
from race_table import table
from random_checkpoint import write_checkpoint

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INT4 = "--weight-dtype int4 --kv-dtype int4"
WEFT = {"weft": "--retention full", "weft-h2o": "--retention h2o:0.1:0.1",
        "weft-int4": "--retention full --weight-dtype int4", "weft-h2o-int4": f"--retention h2o:0.1:0.1 {INT4}"}
PEERS = {"accelerate": ("torch", "transformers", "accelerate"), "deepspeed": ("torch", "transformers", "deepspeed"),
         "flexgen": ("torch", "transformers", "attr"), "llama.cpp": ("gguf", "safetensors")}
# Of each shape: its file, a tiny one, who races, and in what formats the peers have the weights.
SHAPES = {
    "opt-1.3b": (ROOT / "configs/models/opt-1.3b.json", HERE / "tiny-opt.json",
                 ["weft-h2o-int4", "weft-h2o", "weft", "accelerate", "deepspeed", "flexgen"], "float16,bfloat16"),
    "tinyllama-1.1b": (HERE / "tinyllama-1.1b.json", HERE / "tiny-llama.json",
                       ["weft", "weft-int4", "weft-h2o-int4", "llama.cpp"], "F16,Q4_0"),
}
FLEXGEN_DTYPES = ["float32", "float16"]  # it has no bfloat16
STEP_MIB, MOST_STEPS = 512, 4
OWN_MIB = (250, 350, 500)  # what the process takes besides its budget; more if it was killed


class OutOfTime(Exception):
    pass


class CannotRun(Exception):
    pass


def packed(peer):
    return "int4" in peer


class Race:
    def __init__(self, options, record):
        self.options, self.record = options, record
        self.deadline = time.monotonic() + 60 * options.minutes
        shape = SHAPES[options.shape][1 if options.tiny else 0]
        self.checkpoint = options.work / shape.stem
        self.shape = json.loads(shape.read_text())

    # What is made once, outside the limit.

    def once(self, made, *command):
        """Runs a command outside the limit that makes a file or folder."""
        if self.options.dry_run:
            print("#", shlex.join(map(str, command)))
        elif not made.exists():
            print("$", shlex.join(map(str, command)), file=sys.stderr, flush=True)
            done = subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  text=True)
            if done.returncode != 0:
                raise CannotRun(f"exit code {done.returncode}: {(done.stderr.splitlines() or ['no word'])[-1][:300]}")
        return made

    def model(self, peer):
        if not self.options.dry_run:
            write_checkpoint(self.checkpoint, self.shape)
        if not packed(peer):
            return self.checkpoint
        folder = self.checkpoint.with_name(self.checkpoint.name + "-int4")
        return self.once(folder, self.options.weft, "convert", "--model", self.checkpoint, "--output", folder,
                         "--weight-dtype", "int4")

    def machine(self):
        file = self.options.work / "machine.json"
        quick = ["--quick"] if self.options.tiny else []
        return self.once(file, self.options.weft, "bench", "--lanes", "--backend", "cpu", "--save", file, *quick, "--disk-dir",
                         self.options.work)

    # One run.

    def run(self, command, limit, *cold):
        """An Outcome within the limit, with nothing of the folders `cold` in the page cache."""
        left = self.deadline - time.monotonic()
        if left < 5:
            raise OutOfTime
        for folder in cold:
            forget(folder)
        print("$", shlex.join(map(str, command)), file=sys.stderr, flush=True)
        mib = None if self.options.no_limit else limit
        outcome = run_within([str(word) for word in command], mib, left)
        print(f"  {outcome.reason or 'done'} after {outcome.seconds} s, at most {outcome.peak_mib} MiB", file=sys.stderr)
        return outcome

    def find(self, **key):
        return next((e for e in self.record["entries"] if all(e.get(k) == v for k, v in key.items())), None)

    def settled(self, **key):
        """What the record has for good: figures, or that the kernel killed it."""
        entry = self.find(**key)
        return entry if entry and ("decode" in entry or entry.get("killed")) else None

    def keep(self, entry, **key):
        self.record["entries"] = [e for e in self.record["entries"] if not all(e.get(k) == v for k, v in key.items())]
        self.record["entries"].append(key | entry)
        write_record(self.options.record, self.record)
        return key | entry

    def say_or_keep(self, entry, key):
        """An entry in the record, or what it says where this is a dry run."""
        if not self.options.dry_run:
            return self.keep(entry, **key)
        print(entry["reason"])
        return key | entry

    # Weft.

    def plan(self, peer, workload, limit, own, model):
        """The planner's policy for the limit, in a file, and what it predicts."""
        prompt, tokens = lengths(workload)
        file = self.options.work / f"policy-{peer}-{workload}-{limit}.json"
        report = file.with_suffix(".plan")
        budget = "64MiB" if self.options.tiny else f"{limit - own}MiB"
        for old in (file, report):
            old.unlink(missing_ok=True)
        self.once(report, self.options.weft, "plan", "--model", model, "--machine", self.machine(), "--prompt-len",
                  prompt, "--gen-len", tokens, "--device-memory", budget, "--output", file, "--report", report,
                  "--disk-dir", self.options.work, *WEFT[peer].split())
        return file, json.loads(report.read_text()) if report.exists() else None

    def weft_commands(self, workload, model, policy, block):
        """Of decode and of prefill; one command for both where all is measured."""
        prompt, tokens = lengths(workload)
        base = [self.options.weft, "bench", "--model", model, "--policy", policy, "--prompt-len", prompt, "--gen-len",
                tokens, "--disk-dir", self.options.work, "--no-warm-up", "--backend", "cpu"]
        if not self.options.sweeps:
            return [base]
        few = max(1, min(block, self.options.prefill_tokens // prompt))
        return [[*base, "--skip-prefill", "--project", self.options.sweeps],
                [*base, "--project", "1", "--requests", few]]

    def weft(self, peer, workload, limit):
        key = {"workload": workload, "peer": peer, "limit_mib": limit}
        done = self.settled(**key)
        if done:
            return done
        for own in OWN_MIB:
            try:
                entry = self.weft_once(peer, workload, limit, own)
            except CannotRun as reason:
                entry = {"reason": str(reason)}
            except OutOfTime:
                entry = {"reason": "its time was over"}
            if not entry.get("killed"):
                break
        return self.say_or_keep(entry, key)

    def weft_once(self, peer, workload, limit, own):
        model = self.model(peer)
        policy, plan = self.plan(peer, workload, limit, own, model)
        if self.options.dry_run:
            commands = self.weft_commands(workload, model, policy, 1 << 20)
            raise CannotRun("\n".join(shlex.join(map(str, command)) for command in commands))
        block = plan["policy"]["gpu_batch_size"] * plan["policy"]["num_gpu_batches"]
        commands = self.weft_commands(workload, model, policy, block)
        reports, peaks, seconds = [], [], 0
        for command in commands:
            outcome = self.run(command, limit, model)
            if outcome.killed:
                return {"killed": True, "reason": "killed for memory", "own_mib": own}
            if outcome.reason:
                raise CannotRun(outcome.reason)
            reports.append(json.loads(outcome.said))
            peaks.append(outcome.peak_mib)
            seconds += outcome.seconds
        speed = [{k: (v or {}).get("median") for k, v in report["tokens_per_second"].items()} for report in reports]
        prompt, tokens = lengths(workload)
        decode, prefill = speed[0]["decode"], speed[-1]["prefill"]
        few = reports[-1]["workload"]["requests"]
        how = "to its end" if len(reports) == 1 else (
            f"decode from {self.options.sweeps} sweeps each at the beginning, middle and end; prefill of {few} of {block} "
            "prompts")
        return {"batch": block, "decode": decode, "prefill": prefill,
                "total": tokens / (prompt / prefill + (tokens - 1) / decode), "measured": how,
                "predicted": plan["predicted"]["tokens_per_second"], "policy": plan["policy"], "own_mib": own,
                "peak_mib": max((p for p in peaks if p), default=None), "seconds": seconds,
                "commands": [shlex.join(map(str, command)) for command in commands]}

    # The others.

    def peer_command(self, peer, workload, dtype, batch):
        """The command, what it reads from the disk, and how many tokens it decodes."""
        prompt, tokens = lengths(workload)
        sweeps = min(tokens - 1, self.options.sweeps or tokens)
        if peer == "llama.cpp":
            if self.options.dry_run:
                raise CannotRun("a dry run makes no GGUF files")
            write_checkpoint(self.checkpoint, self.shape)
            file = llama_cpp.gguf_of(self.checkpoint, dtype)
            return llama_cpp.llama_command(file, prompt, sweeps, batch), file.parent, sweeps
        if peer == "flexgen":  # it writes its layers within the limit, as it always does
            folder = self.options.work / "flexgen"
            model = "facebook/opt-125m" if self.options.tiny else f"facebook/{self.options.shape}"
            return [sys.executable, HERE / "run_flexgen_cpu.py", "--flexgen", self.options.flexgen, "--model", model,
                    "--offload", folder, "--batch", batch, "--prompt-len", prompt, "--steps", sweeps + 1, "--dtype",
                    dtype], folder, sweeps
        command = [sys.executable, HERE / f"run_{peer}.py", "--checkpoint", self.model(peer), "--batch", batch, "--prompt-len",
                   prompt, "--steps", sweeps + 1, "--dtype", dtype]
        folder = self.checkpoint.with_name(f"{self.checkpoint.name}-{peer}-{dtype}")
        command += ["--offload", folder]
        if peer == "accelerate":
            self.once(folder / "index.json", *command, "--prepare")
        return command, folder, sweeps

    def missing(self, peer):
        if peer == "flexgen" and not self.options.flexgen.exists():
            raise CannotRun(f"{self.options.flexgen} is missing; run_flexgen.py says where it comes from")
        if peer == "llama.cpp" and not llama_cpp.BENCH.exists():
            raise CannotRun(f"{llama_cpp.BENCH} is missing; llama_cpp.py --help says how it is built")
        for name in PEERS[peer]:
            if importlib.util.find_spec(name) is None:
                raise CannotRun(f"Python's package {name} is not installed")

    def figures(self, peer, said, batch, workload, sweeps):
        """Tokens a second, and what was measured."""
        prompt, tokens = lengths(workload)
        how = "to its end" if sweeps == tokens - 1 else f"decode from its first {sweeps} sweeps"
        if peer != "llama.cpp":
            return rates(json.loads(said.splitlines()[-1]), batch, tokens) | {"measured": how}
        speed = llama_cpp.llama_figures(said)
        total = tokens / (prompt / speed["prefill"] + (tokens - 1) / speed["decode"])
        return speed | {"total": total, "measured": how}

    def one(self, peer, workload, limit, dtype, batch):
        key = {"workload": workload, "peer": peer, "limit_mib": limit, "dtype": dtype, "batch": batch}
        done = self.settled(**key)
        if done:
            return done
        try:
            self.missing(peer)
            command, folder, sweeps = self.peer_command(peer, workload, dtype, batch)
            if self.options.dry_run:
                raise CannotRun(shlex.join(map(str, command)))
            outcome = self.run(command, limit, self.checkpoint, folder)
        except CannotRun as reason:
            return self.say_or_keep({"reason": str(reason)}, key)
        except OutOfTime:
            return {"reason": "its time was over"}
        entry = {"seconds": outcome.seconds, "peak_mib": outcome.peak_mib, "commands": [shlex.join(map(str, command))]}
        if outcome.reason:
            return self.keep(entry | {"reason": outcome.reason, "killed": outcome.killed}, **key)
        return self.keep(entry | self.figures(peer, outcome.said, batch, workload, sweeps), **key)

    def best_batch(self, peer, workload, limit, dtype):
        """Looks for the largest batch that is not killed. True: found; False: killed at every batch; None: not known."""
        batch, fits, killed = self.options.first_batch, 0, None
        while True:
            entry = self.one(peer, workload, limit, dtype, batch)
            if "decode" in entry:
                fits = batch
            elif entry.get("killed"):
                killed = batch
            else:
                return None
            batch = 2 * fits if fits else killed // 2
            if batch < 1:
                return False
            if fits and (killed or batch > self.options.most_batch):
                return True

    def peer(self, peer, workload):
        """Looks through the limits until it fits one, which is returned."""
        for step in range(MOST_STEPS + 1):
            limit = self.options.memory_mib + step * STEP_MIB
            dtypes = FLEXGEN_DTYPES if peer == "flexgen" else self.options.dtypes
            found = [self.best_batch(peer, workload, limit, dtype) for dtype in dtypes]
            if any(found) or None in found:
                return limit
        return self.options.memory_mib

    def all(self):
        for workload in self.options.workloads:
            variants = [peer for peer in self.options.peers if peer in WEFT]
            limits = {self.options.memory_mib}
            for peer in variants:
                self.weft(peer, workload, self.options.memory_mib)
            for peer in (p for p in self.options.peers if p in PEERS):
                limits.add(self.peer(peer, workload))
            for limit in sorted(limits - {self.options.memory_mib}):
                for peer in variants:
                    self.weft(peer, workload, limit)


def lengths(workload):
    prompt, tokens = map(int, workload.split("+"))
    return prompt, tokens


def write_record(path, record):
    following = path.with_name(path.name + ".next")
    following.write_text(json.dumps(record, indent=1) + "\n")
    following.replace(path)


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def open_record(options):
    record = {"version": 1, "date": datetime.date.today().isoformat(), "machine": f"{processor()}, {platform.release()}",
              "shape": SHAPES[options.shape][1 if options.tiny else 0].stem, "limit": not options.no_limit, "entries": []}
    if options.record.exists():
        kept = json.loads(options.record.read_text())
        for key in ("machine", "shape", "limit"):
            if kept[key] != record[key]:
                sys.exit(f"race: error: {options.record} is of another race ({key} {kept[key]}); name another --record")
        return kept
    return record


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="opt-1.3b")
    parser.add_argument("--peers", help="by default those of the shape: "
                        + "; ".join(f"{', '.join(peers)} ({shape})" for shape, (_, _, peers, _) in SHAPES.items()))
    parser.add_argument("--workloads", help="prompt + output tokens; by default 512+512,512+128")
    parser.add_argument("--minutes", type=float, default=9, help="after which no run is begun, and a run is ended")
    parser.add_argument("--memory-mib", type=int, default=2048, help="the limit of each program")
    parser.add_argument("--dtypes", help="of the peers but FlexGen, which runs in all it has; by default float16,bfloat16, or F16,Q4_0 of "
                        "llama.cpp")
    parser.add_argument("--first-batch", type=int, default=4, help="where peers begin to look for their best batch")
    parser.add_argument("--most-batch", type=int, default=64)
    parser.add_argument("--sweeps", type=int, default=4,
                        help="time this many decode sweeps and project the rest; 0 runs all to the end")
    parser.add_argument("--prefill-tokens", type=int, default=8192,
                        help="with --sweeps: of how many tokens Weft's prefill is timed")
    parser.add_argument("--record", type=pathlib.Path, help="by default race.json in --work")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/race", help="a folder on a disk, 12 GB")
    parser.add_argument("--weft", type=pathlib.Path, default=ROOT / "build/release/weft")
    parser.add_argument("--flexgen", type=pathlib.Path, default=ROOT / "build/peers/flexgen", help="its repository")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-limit", action="store_true", help="without a cgroup, which needs root")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    _, _, peers, dtypes = SHAPES[options.shape]
    options.peers = options.peers.split(",") if options.peers else peers
    for peer in options.peers:
        if peer not in peers:
            parser.error(f"no peer '{peer}' for the shape of {options.shape}; there are {', '.join(peers)}")
    options.workloads = (options.workloads or ("16+40" if options.tiny else "512+512,512+128")).split(",")
    options.dtypes = (options.dtypes or dtypes).split(",")
    options.record = options.record or options.work / f"race-{options.shape}.json"
    return options


def main():
    options = parse()
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return
    if not options.dry_run and not options.weft.exists():
        sys.exit(f"race: error: {options.weft} is missing; build it, or say --weft")
    options.work.mkdir(parents=True, exist_ok=True)
    options.record.parent.mkdir(parents=True, exist_ok=True)
    race = Race(options, open_record(options))
    race.all()
    if options.tiny:
        print("race: the script works; figures of a tiny shape mean nothing, so no table is printed")
    elif not options.dry_run:
        print(table(race.record))


if __name__ == "__main__":
    main()
