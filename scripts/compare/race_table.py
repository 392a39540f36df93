"""The table of a record of race.py, as Markdown."""

WEFT = ("weft", "weft-h2o", "weft-int4", "weft-h2o-int4")
PEERS = {"opt": ("accelerate", "deepspeed"), "llama": ("llama.cpp",)}
NAMES = {"weft": "Weft, fp16, full cache", "weft-h2o": "Weft, fp16, h2o 20 %",
         "weft-int4": "Weft, int4 weights, full cache", "weft-h2o-int4": "Weft, int4 weights and KV, h2o 20 %",
         "accelerate": "Accelerate", "deepspeed": "ZeRO-Inference",
         "flexgen": "FlexGen", "llama.cpp": "llama.cpp"}


def number(value, digits=2):
    return "" if value is None else f"{value:.{digits}f}"


def name_of(entry):
    return NAMES[entry["peer"]] + (f", {entry['dtype']}" if "dtype" in entry else "")


def best(entries, peer, what):
    return max((e[what] for e in entries if e["peer"] == peer and what in e), default=None)


def ratios(entry, entries, peers):
    """How many times as fast as the best of each peer within the same limit, in decode and end to end."""
    cells = []
    for peer in peers:
        both = [(entry[what], best(entries, peer, what)) for what in ("decode", "total")]
        told = entry["peer"] in WEFT and all(theirs for _, theirs in both)
        cells.append(" / ".join(f"{own / theirs:.1f}x" for own, theirs in both) if told else "")
    return cells


def table(record):
    peers = PEERS["llama" if "llama" in record["shape"] else "opt"]
    columns = " | ".join(f"to {NAMES[peer]}, decode / end to end" for peer in peers)
    lines = [f"{record['machine']}, {record['date']}; shape of {record['shape']}, random weights, each program "
             + ("inside one memory cgroup." if record["limit"] else "without a limit."), "",
             "| prompt + output | limit MiB | program | batch | decode tok/s | prefill tok/s | end to end tok/s | predicted "
             f"decode / prefill / end to end | {columns} | measured |", "|" + "---|" * (9 + len(peers))]
    reasons = []
    places = dict.fromkeys((e["workload"], e["limit_mib"]) for e in record["entries"])
    for workload, limit in places:
        entries = [e for e in record["entries"] if (e["workload"], e["limit_mib"]) == (workload, limit)]
        for e in sorted((e for e in entries if "decode" in e), key=lambda e: -e["total"]):
            said = e.get("predicted")
            predicted = " / ".join(number(said[what]) for what in ("decode", "prefill", "total")) if said else ""
            lines.append("| " + " | ".join([
                workload, str(limit), name_of(e), str(e["batch"]), number(e["decode"]), number(e["prefill"], 1),
                number(e["total"]), predicted, *ratios(e, entries, peers), e["measured"]]) + " |")
        reasons += [f"- {workload}, {limit} MiB, {name_of(e)}" + (f", batch {e['batch']}" if "batch" in e else "") +
                    f": {e['reason']}" for e in entries if "reason" in e]
    return "\n".join([*lines, "", *reasons]).rstrip()
