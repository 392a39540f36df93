#!/usr/bin/env python3
"""The peak memory of a run whose weights are larger than all its memory budgets, as the kernel counts it from outside; and
the peak bytes that a plan predicts against what is seen from outside: resident memory and the spill file; and what a request
of a long file costs.

Usage: memory_test.py WEFT_BINARY SOURCE_FOLDER [--full] [--work FOLDER]

By default the OPT-125M shape, 240 MiB of weights in 96 MiB of budgets and 64 MiB for the process; with --full the OPT-1.3B shape, 2.6 GB on disk (which
must be free in the work folder) in 1 GiB and 300 MiB.
"""

import argparse
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import Weft, read_lines, write_lines, write_tiny_model  # noqa: E402

MIB = 1 << 20
PROCESS = 38 * MIB  # what a run takes besides what it plans: code, libraries, the disk engine's and the kernels' buffers, the requests:
# 30 with all weights in memory and 37 with some on the disk, where a core's second cache has 1 MiB; less where it is smaller
PROMPT, TOKENS, REQUESTS = 64, 4, 6
MANY, FEW, BYTES_PER_REQUEST = 100_000, 1_000, 128


def spilled(pid, folder):
    """Bytes of the files without a name that the process holds in the folder; what is to get a name is small."""
    sizes = [0]
    try:
        for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(fd).startswith(str(folder)) and os.readlink(fd).endswith("(deleted)"):
                sizes.append(fd.stat().st_size if fd.stat().st_size >= MIB else 0)
    except OSError:  # it has just ended, or closed one
        pass
    return sum(sizes)


def wait_for(process, folder, enough=lambda: False):
    """Exit code, peak resident bytes and largest spill of this one child, which is killed once there is enough."""
    spill = 0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid != 0:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage.ru_maxrss * 1024, spill
        if enough():
            os.kill(process.pid, signal.SIGKILL)  # Popen.kill() would reap one that has just ended
        spill = max(spill, spilled(process.pid, folder))
        time.sleep(0.005)


def run(weft, config, folder, flags, requests=REQUESTS):
    write_lines(folder / "in.jsonl", [{"id": i, "prompt_ids": [(7 * i + 13 * p) % 50000 for p in range(PROMPT)], "max_tokens": TOKENS}
                                      for i in range(requests)])
    report = folder / "report.json"
    begin = time.monotonic()
    process = weft.start("generate", "--model", config, "--weights", "random:1", "--input", folder / "in.jsonl", "--output",
                         folder / "out.jsonl", "--report", report, "--backend", "cpu", "--quiet", *flags)
    code, peak, spill = wait_for(process, folder)
    said = process.stderr.read().decode()
    process.stderr.close()
    assert code == 0, said
    answers = read_lines(folder / "out.jsonl")
    assert len(answers) == requests and all(len(answer["token_ids"]) == TOKENS for answer in answers)
    return json.loads(report.read_text()), peak, spill, time.monotonic() - begin


def check(weft, config, folder, name, flags, allowed):
    report, peak, _, seconds = run(weft, config, folder, flags)
    weights = sum(tier["bytes"] for tier in report["placement"]["weights"].values())
    budgets = sum(report["policy"]["budgets"][tier] for tier in ("device", "host"))
    planned = sum(report["peak_bytes"][tier] for tier in ("device", "host"))
    print(f"{config.stem}, {name}: {weights / MIB:.0f} MiB of weights, {report['placement']['weights']['disk']['bytes'] / MIB:.0f} of them "
          f"on disk; budgets {budgets / MIB:.0f} MiB, used {planned / MIB:.0f}; peak RSS {peak / MIB:.0f} MiB, "
          f"{(peak - budgets) / MIB:+.0f} against the budgets (allowed +{allowed // MIB}); {seconds:.1f} s")
    assert weights > 2 * budgets, "the model is not larger than the memory it may use"
    assert planned <= budgets and peak <= budgets + allowed, "too much memory"


def check_prediction(weft, source, config, folder, weights, kv):
    """Predicted is never below what is seen from outside and at most 5 % above, the process itself aside."""
    policy = folder / "policy.json"
    policy.write_text(json.dumps({"version": 1, "gpu_batch_size": 8, "num_gpu_batches": 4, "weights": weights, "kv": kv,
                                  "activations": {"device": 1.0}}))
    report, peak, spill, _ = run(weft, config, folder, ["--policy", policy, "--disk-dir", folder, "--machine",
                                                         source / "configs/machines/cpu.json"], requests=32)
    predicted = report["predicted"]["peak_bytes"]
    memory, seen = predicted["device"] + predicted["host"], peak - PROCESS
    print(f"{config.stem}, weights {weights}, kv {kv}: predicted {memory / MIB:.0f} MiB of memory and {predicted['disk'] / MIB:.0f} of disk; "
          f"seen {seen / MIB:.0f} + {PROCESS // MIB} and {spill / MIB:.0f}")
    assert seen <= memory <= 1.05 * seen, "memory"
    assert spill <= predicted["disk"] <= 1.05 * spill, "disk"


def check_many_requests(weft, folder):
    """What a request takes from its check to its answer, in the order of their file and longest first."""
    model = write_tiny_model(folder / "model")
    for schedule in ("static", "continuous"):
        peaks = []
        for count in (FEW, MANY):
            requests, output = folder / "in.jsonl", folder / "out.jsonl"
            output.unlink(missing_ok=True)
            with requests.open("w") as file:
                file.writelines(f'{{"id": "request {i}", "prompt_ids": [{i % 60}, 5], "max_tokens": {1 + i % 2}}}\n'
                                for i in range(count))
            process = weft.start("generate", "--model", model, "--input", requests, "--output", output, "--backend", "cpu",
                                 "--quiet", "--gpu-batch-size", 64, "--num-gpu-batches", 1, "--percent", 100, 0, 100, 0, 100,
                                 0, "--schedule", schedule)
            code, peak, _ = wait_for(process, folder)
            said = process.stderr.read().decode()
            process.stderr.close()
            assert code == 0, said
            with output.open("rb") as file:
                assert sum(1 for _ in file) == count
            peaks.append(peak)
        each = (peaks[1] - peaks[0]) / (MANY - FEW)
        print(f"{MANY} requests, {schedule}: {peaks[1] / MIB:.0f} MiB against {peaks[0] / MIB:.0f} for {FEW}: {each:.0f} bytes a request")
        assert each <= BYTES_PER_REQUEST, "too much memory for a request"


def peak_of(weft, folder, *flags, until_lines=None):
    """Exit code, peak bytes and message of a job in the folder; killed once it has so many answers."""
    output = folder / "out.jsonl"
    process = weft.start("generate", "--model", folder / "model", "--input", folder / "in.jsonl", "--output", output, "--backend", "cpu",
                         "--quiet", *flags)
    code, peak, _ = wait_for(process, folder,
                             lambda: until_lines and output.exists() and output.read_bytes().count(b"\n") >= until_lines)
    said = process.stderr.read().decode()
    process.stderr.close()
    return code, peak, said


def check_answers(weft, folder):
    """What answers grow to is part of the budget: a job that fits stays within, and where it does not fit that is said at once."""
    write_tiny_model(folder / "model", max_position_embeddings=1024)
    write_lines(folder / "in.jsonl", [{"id": i, "prompt_ids": [3, i + 1], "max_tokens": 700, "n": 64, "logprobs": 20, "temperature": 1,
                                       "seed": i} for i in range(2)])
    flags = ["--gpu-batch-size", 16, "--num-gpu-batches", 1, "--percent", 100, 0, 100, 0, 100, 0]
    code, peak, said = peak_of(weft, folder, *flags, "--device-memory", "24MiB")
    assert code == 4 and "requests and answers" in said and len(said.splitlines()) == 1, (code, said)
    assert peak <= PROCESS, "much memory for a refusal"
    budget = 192 * MIB
    code, peak, said = peak_of(weft, folder, *flags, "--device-memory", f"{budget // MIB}MiB")
    assert code == 0, said
    line = (folder / "out.jsonl").stat().st_size / 2  # not read: a child is charged with what this process held
    print(f"answers of {line / MIB:.0f} MiB: {peak / MIB:.0f} MiB, allowed {budget // MIB} + {PROCESS // MIB}")
    assert peak <= budget + PROCESS, "more memory than the budget"


def check_many_choices(weft, folder):
    """The list of what is to be computed grows with the requests, not with their choices."""
    write_tiny_model(folder / "model")
    with (folder / "in.jsonl").open("w") as file:
        file.writelines(f'{{"id": {i}, "prompt_ids": [{i % 60}], "max_tokens": 1, "n": 128, "temperature": 1}}\n' for i in range(3 * MANY))
    code, peak, said = peak_of(weft, folder, "--gpu-batch-size", 64, "--num-gpu-batches", 1, "--percent", 100, 0, 100, 0, 100, 0,
                               "--device-memory", "128MiB", until_lines=100)
    assert code == -9, said
    print(f"{3 * MANY} requests of 128 choices: {peak / MIB:.0f} MiB, allowed {BYTES_PER_REQUEST * 3 * MANY / MIB:.0f} + {PROCESS // MIB}")
    assert peak <= BYTES_PER_REQUEST * 3 * MANY + PROCESS, "too much memory for what is to be computed"


def check_planning(weft, folder):
    """A job that plans itself in little memory measures the machine with less."""
    write_tiny_model(folder / "model")
    write_lines(folder / "in.jsonl", [{"id": 1, "prompt_ids": [3], "max_tokens": 4}])
    code, peak, said = peak_of(weft, folder, "--device-memory", "24MiB", "--threads", 2)
    assert code == 0, said
    print(f"planning within 24 MiB: {peak / MIB:.0f} MiB, allowed 64")
    assert peak <= 64 * MIB, "too much memory for planning"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weft")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--work", help="where the spilled weights go")
    options = parser.parse_args()
    weft = Weft(pathlib.Path(options.weft).resolve())
    config = options.source / "configs" / "models" / ("opt-1.3b.json" if options.full else "opt-125m.json")
    device, host, process = (768, 256, 300) if options.full else (72, 24, 64)  # MiB
    for name, flags in {"chosen placement": [], "two tiers of memory": ["--percent", 10, 5, 50, 50, 50, 50, "--num-gpu-batches", 2,
                                                                         "--gpu-batch-size", 3]}.items():
        with tempfile.TemporaryDirectory(prefix="weft-memory-", dir=options.work) as folder:
            check(weft, config, pathlib.Path(folder), name,
                  ["--device-memory", f"{device}MiB", "--host-memory", f"{host}MiB", *flags], process * MIB)
    everything, half, disk = {"device": 1.0}, {"device": 0.5, "disk": 0.5}, {"disk": 1.0}
    for weights, kv in (everything, everything), (half, everything), (everything, disk), ({"host": 0.5, "disk": 0.5}, half):
        with tempfile.TemporaryDirectory(prefix="weft-memory-", dir=options.work) as folder:
            check_prediction(weft, options.source.resolve(), config, pathlib.Path(folder), weights, kv)
    with tempfile.TemporaryDirectory(prefix="weft-memory-", dir=options.work) as folder:
        check_many_requests(weft, pathlib.Path(folder))
    for check_one in check_answers, check_many_choices, check_planning:
        with tempfile.TemporaryDirectory(prefix="weft-memory-", dir=options.work) as folder:
            check_one(weft, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
