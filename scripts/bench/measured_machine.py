#!/usr/bin/env python3
"""Completes a machine file that `weft bench --lanes --save` measured by what the same machine did in runs.

  scripts/bench/measured_machine.py LANES.json --ceilings CEILINGS.json --runs REPORT.json ... [--name NAME]
      [--source TEXT] [--output MACHINE.json] [--weft PROGRAM]

--ceilings is what `weft bench --lanes` printed, --runs are reports of `weft bench --report`. Two kinds of rates change:

- Products of 16-bit weights get the larger sizes that the ceilings have. The grid of sizes needs points that nothing
  measured. These get the best rate of a product that is no larger in rows nor in width.
- `together` gets the shares in running, medians over the runs whose KV the host attends. A lane's share is the seconds
  that its work of a decode sweep takes alone, by the machine file and without `together`, over the seconds that the
  lane was busy in the run. The link is busy all the time in these runs. Its share is the one that it must have had
  while the host attended, if it ran at its own rate in the rest of the sweep.

Everything else stays as it was measured. With tests/data/h100 this makes configs/machines/h100.json, but
for its name and source."""

import argparse
import copy
import json
import pathlib
import statistics
import tempfile

from weft_plan import plan

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The ceilings' products by the point of the grid: 8192 rows stand for 4096, from which on rates hardly change.
PRODUCTS = {(256, 7168): "256 x 7168 x 7168", (4096, 4096): "4096 x 4096 x 4096", (4096, 7168): "8192 x 7168 x 7168"}
LINK, DEVICE, HOST = "host_to_device", "device_compute", "host_compute"


def rounded(rate):
    return float(f"{rate:.4g}")


def with_larger_products(points, ceilings):
    """The points of a table over rows and width, and those of the ceilings."""
    rates = {(point["rows"], point["width"]): point["flop_per_second"] for point in points}
    rates |= {size: rounded(ceilings[name]["flop_per_second"]) for size, name in PRODUCTS.items()}

    def rate(rows, width):
        smaller = [its for (r, w), its in rates.items() if r <= rows and w <= width]
        return rates.get((rows, width), max(smaller))

    return [{"rows": rows, "width": width, "flop_per_second": int(rate(rows, width))}
            for rows in sorted({r for r, _ in rates}) for width in sorted({w for _, w in rates})]


def seconds_alone(weft, machine, run, folder):
    """The seconds that each lane's work of a decode sweep takes by itself."""
    policy, alone = folder / "policy.json", folder / "machine.json"
    policy.write_text(json.dumps(run["policy"]))
    alone.write_text(json.dumps(machine | {"together": {}}))
    work = run["workload"]
    predicted = plan(weft, "--model", ROOT / run["model"], "--machine", alone, "--policy", policy, "--prompt-len",
                     work["prompt_len"], "--gen-len", work["gen_len"], "--requests", work["requests"])["predicted"]
    sweep = predicted["seconds"]["decode"] / (work["gen_len"] - 1)
    return {lane: share["decode"] * sweep for lane, share in predicted["utilisation"].items()}


def shares_of(run, alone):
    """The shares in running of the link, the device and the host."""
    work, rates = run["workload"], {name: rate["median"] for name, rate in run["tokens_per_second"].items()}
    made_up = len(run["projected_from"])  # first sweeps whose KV is made up; their rows are as many as in decode
    sweeps, sweep = run["tokens"]["generated"] / work["requests"] - 1 - made_up, work["requests"] / rates["decode"]
    prefill = work["requests"] * work["prompt_len"] / rates["prefill"]  # in which the device is busy
    host = run["lanes"][HOST]["busy_seconds"] / sweeps
    device = (run["lanes"][DEVICE]["busy_seconds"] - prefill) / (sweeps + made_up)
    return {LINK: (alone[LINK] - (sweep - host)) / host, DEVICE: alone[DEVICE] / device, HOST: alone[HOST] / host}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lanes", type=pathlib.Path)
    parser.add_argument("--ceilings", type=pathlib.Path, required=True)
    parser.add_argument("--runs", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--name")
    parser.add_argument("--source")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--weft", type=pathlib.Path, default=ROOT / "build/release/weft")
    options = parser.parse_args()
    machine = json.loads(options.lanes.read_text())
    ceilings = json.loads(options.ceilings.read_text())["device"]["linear"]
    machine["name"] = options.name or machine["name"]
    machine["source"] = options.source or machine["source"]
    for dtype, of_type in ceilings.items():
        machine["device"]["linear"][dtype] = with_larger_products(machine["device"]["linear"][dtype], of_type)
    runs = [json.loads(path.read_text()) for path in options.runs]
    with tempfile.TemporaryDirectory() as folder:
        shares = [shares_of(run, seconds_alone(options.weft, machine, run, pathlib.Path(folder)))
                  for run in runs if run["lanes"][HOST]["busy_seconds"] > 0]
    for share in shares:
        print("  ".join(f"{lane} {value:.3f}" for lane, value in share.items()))
    share = {lane: round(min(1, statistics.median(one[lane] for one in shares)), 4) for lane in (LINK, DEVICE, HOST)}
    together = machine["together"] = copy.deepcopy(machine["together"])
    together[LINK][HOST], together[HOST][LINK] = share[LINK], share[HOST]
    for other in (LINK, "device_to_host", HOST):
        together[DEVICE][other] = share[DEVICE]
    if options.output:
        options.output.write_text(as_text(machine))


def as_text(machine):
    """JSON with a line for each point of a table."""
    lines = json.dumps(machine, indent=2).split("\n")
    text, point = [], None
    for line in lines:
        if line.endswith("{") and line.strip() == "{" and text:
            point = []
        elif point is not None and line.strip().startswith("}"):
            text.append(line[:len(line) - len(line.lstrip())] + "{" + "".join(point).replace(": ", ":") + line.strip())
            point = None
        elif point is not None:
            point.append(line.strip())
        else:
            text.append(line)
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    main()
