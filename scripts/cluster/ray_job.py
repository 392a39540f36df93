#!/usr/bin/env python3
"""One job of weft generate (or score) on a Ray cluster: a weft process per shard of the requests, then weft merge.

    pip install ray
    scripts/cluster/ray_job.py --shards 8 --gpus 1 --cpus 16 --input requests.jsonl --output answers.jsonl \\
        -- generate --model /shared/opt-30b --retention h2o:0.1:0.1

Behind -- stands the command as one process would have it, without input and output. Shard K of N answers into
OUTPUT.K-of-N. A shard that is interrupted or killed, or whose device, disk, worker or node fails, runs again with --resume,
and so does the whole job when this command is given again. What no other run would do better (flags, requests, the
checkpoint, memory) ends the job. The folder that it
is given in, files, the model and weft lie where all nodes see them, under the same names.
"""

import argparse
import collections
import ctypes
import os
import shutil
import signal
import subprocess
import sys

try:
    import ray
except ImportError:  # --help needs none
    ray = None

NOTHING_HELPS = {2: "usage", 3: "data", 4: "capacity", 70: "internal error"}  # exit codes; after all others a run may do better


def run_shard(command, folder):
    """One weft process on the node that Ray chose; its exit code and the last line of what it said."""
    libc = ctypes.CDLL(None)

    def end_with_the_worker():  # else a killed worker leaves a process that holds the output
        libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          preexec_fn=end_with_the_worker)
    return done.returncode, done.stderr.decode(errors="replace").strip().rsplit("\n", 1)[-1]


class Job:
    def __init__(self, options):
        self.options = options
        # Ray's own retries are off: they would not be counted here.
        self.task = ray.remote(num_cpus=options.cpus, num_gpus=options.gpus, max_retries=0)(run_shard)
        self.attempts = collections.Counter()
        self.running = {}  # Ray's reference: shard

    def output(self, shard):
        return f"{self.options.output}.{shard}-of-{self.options.shards}"

    def start(self, shard):
        self.attempts[shard] += 1
        self.running[self.task.remote(
            [self.options.weft, *self.options.command, "--input", self.options.input, "--output", self.output(shard),
             "--shard", f"{shard}/{self.options.shards}", "--threads", str(self.options.cpus), "--quiet", "--resume"],
            os.getcwd())] = shard

    def finish_one(self):
        """Waits for a shard; starts it again if that may help, and else returns how it failed."""
        (reference,), _ = ray.wait(list(self.running))
        shard = self.running.pop(reference)
        try:
            code, said = ray.get(reference)
        except ray.exceptions.RayError as error:
            code, said = None, str(error).strip().rsplit("\n", 1)[-1]
        name = f"shard {shard}/{self.options.shards}, attempt {self.attempts[shard]}"
        if code in (0, 1):  # 1: done, and some requests are refused, each in a line of its own
            print(f"ray_job: {name}: done{' but for refused requests' if code else ''}", flush=True)
            return None
        if code is not None:
            how = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
            said = f"{how}: {said}" if said else how
        how = f"{name}: {said}"
        if code in NOTHING_HELPS or self.attempts[shard] > self.options.retries:
            return how
        print(f"ray_job: {how}; it goes on where it was", flush=True)
        self.start(shard)
        return None

    def run(self):
        for shard in range(1, self.options.shards + 1):
            self.start(shard)
        failed = None
        while self.running and not failed:
            failed = self.finish_one()
        for reference in self.running:
            ray.cancel(reference, force=True)  # their answers stay, and a later run goes on from them
        if failed:
            sys.exit(f"ray_job: error: {failed}")
        parts = [self.output(shard) for shard in range(1, self.options.shards + 1)]
        merged = subprocess.run([self.options.weft, "merge", "--input", self.options.input, "--output", self.options.output,
                                 *parts])
        sys.exit(merged.returncode)


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--shards", type=int, required=True, help="weft processes; more than GPUs wait for their turn")
    parser.add_argument("--cpus", type=int, default=1, help="CPU cores of a shard, which are weft's --threads (default 1)")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a shard, 0 or 1 (default 0)")
    parser.add_argument("--retries", type=int, default=10, help="how often a shard may run again (default 10)")
    parser.add_argument("--weft", default="weft", help="the program, on every node (default: on the PATH)")
    parser.add_argument("--address", help="of a running cluster (auto: the one of this node); else Ray starts one here")
    parser.add_argument("command", nargs="+", metavar="-- generate|score FLAGS")
    options = parser.parse_args(arguments)
    for name, low, high in (("shards", 1, 1000000), ("cpus", 1, 4096), ("gpus", 0, 1), ("retries", 0, 1000000)):
        if not low <= getattr(options, name) <= high:
            parser.error(f"--{name} must be from {low} to {high}, got {getattr(options, name)}")
    if options.command[0] not in ("generate", "score"):
        parser.error(f"wanted generate or score after --, got {options.command[0]}")
    for flag in ("--input", "--output", "--shard", "--resume", "--threads", "--quiet"):
        if any(word == flag or word.startswith(flag + "=") for word in options.command):
            parser.error(f"{flag} is set by this script; leave it out of the command after --")
    if not shutil.which(options.weft):
        parser.error(f"--weft {options.weft}: there is no such program")
    if os.path.exists(options.output):
        parser.error(f"--output {options.output}: exists; give another name or remove it")
    return options


def main():
    options = options_of(sys.argv[1:])
    if ray is None:
        sys.exit("ray_job: error: Python's package ray is not installed (pip install ray)")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of a job goes to others unless somebody asks for it
    ray.init(address=options.address, log_to_driver=False, logging_level="warning")
    try:
        Job(options).run()
    except KeyboardInterrupt:
        print("ray_job: stopped; the same command continues", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
