#!/usr/bin/env python3
"""Draws the pictures of README.md into docs/pictures: the floors and rooms, and a sweep of the zig-zag schedule.

Usage: make_pictures.py [--weft build/release/weft] [--only floors|schedule]

The sweep is a real one: weft runs a tiny model whose weights lie on the host and on the disk and whose KV cache lies on
all three tiers, and leaves a trace (--trace). Of its decode sweeps the shortest is drawn, for other programs disturb it
the least.
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

from check_includes import FLOORS, ROOMS
from svg import FONT, GREY, PAPER, Svg

ROOT = pathlib.Path(__file__).resolve().parent.parent


# The floors and rooms.

FLOOR_SAYS = {
    "runtime": ("files, requests, text, time, people", "#e8f1fb", "#9ec5ee"),
    "policy": ("decisions: pure values and pure functions", "#e9f6ec", "#a3d5ad"),
    "offload": ("bytes: buffers, tiers, lanes", "#fdf3e1", "#ecca8c"),
    "kernels": ("numbers: pointers, shapes, streams; the machine itself", "#fbe9ea", "#e8aab0"),
}
FLOOR_HAS = {
    "policy": ["model and its tables", "retention", "placement and footprint", "schedule", "cost and simulator", "search"],
    "offload": ["arena", "buffer store", "lanes", "disk store", "KV layout"],
    "kernels": ["kernel ops", "backend", "CPU twins", "CUDA twins"],
}
ROOM_SAYS = {
    "base": "files, hashes, UTF-8",
    "checkpoint": "tensors in files",
    "text": "tokens, chat templates",
    "requests": "lines in, lines out",
    "engine": "runs a schedule",
    "planning": "plans as text and tables",
    "measure": "rates, ceilings, reports",
    "job": "requests into blocks",
    "cli": "subcommands and flags",
}


def draw_floors(path):
    assert set(FLOOR_SAYS) == set(FLOORS) and set(ROOM_SAYS) == set(ROOMS)
    svg = Svg(1000, 610, "The floors of Weft and the rooms of runtime/")
    left, width, y = 40, 860, 24
    middle = left + width + 40
    svg.line([(middle, 44), (middle, 566)], GREY, 1.5, arrow=True)
    svg.parts.append(f"<text transform='translate({middle + 24},305) rotate(90)' {FONT} font-size='13' fill='{GREY}' "
                     "text-anchor='middle'>a file includes only what lies below it; a room also rooms to its left</text>")
    for floor in reversed(FLOORS):
        says, fill, edge = FLOOR_SAYS[floor]
        height = 244 if floor == "runtime" else 92
        svg.box(left, y, width, height, fill, edge, 10)
        svg.text(left + 20, y + 31, f"{floor}/", 19, weight="bold", mono=True)
        svg.text(left + 150, y + 31, says, 15, GREY)
        if floor == "runtime":
            draw_rooms(svg, left + 20, y + 48, edge)
        else:
            gap, letters = 10, sum(len(name) + 6 for name in FLOOR_HAS[floor])
            room, x = width - 40 - gap * (len(FLOOR_HAS[floor]) - 1), left + 20
            for name in FLOOR_HAS[floor]:
                each = room * (len(name) + 6) / letters
                svg.box(x, y + 48, each, 30, PAPER, edge, 5)
                svg.text(x + each / 2, y + 67, name, 12.5, anchor="middle")
                x += each + gap
        y += height + 14
    svg.write(path)


def draw_rooms(svg, left, top, edge):
    each, gap, height = 260, 20, 54
    for i, room in enumerate(ROOMS):
        # Ranks go from left to right, the lowest three in the lowest line.
        x, y = left + i % 3 * (each + gap), top + (2 - i // 3) * (height + 9)
        svg.box(x, y, each, height, PAPER, edge, 6)
        svg.text(x + 14, y + 23, f"{room}/", 15, weight="bold", mono=True)
        svg.text(x + 14, y + 42, ROOM_SAYS[room], 13, GREY)


# A sweep of the schedule.

LAYERS, BATCHES, BATCH, PROMPT, TOKENS = 3, 3, 32, 24, 60
CONFIG = {"model_type": "opt", "hidden_size": 512, "num_attention_heads": 8, "ffn_dim": 2048, "num_hidden_layers": LAYERS,
          "vocab_size": 512, "max_position_embeddings": 256, "word_embed_proj_dim": 512}
LANES = ["disk_read", "disk_write", "host_to_device", "device_to_host", "device_compute", "host_compute"]
BATCH_FILL = ["#7fb2e5", "#93cf9e", "#f2b872"]
WEIGHT_FILL, EDGE = "#c9ced6", "#52606d"


def run_weft(weft):
    """The ops of the shortest decode sweep, as dicts of lane, name, batch, begin, end (milliseconds)."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        with open(folder / "in.jsonl", "w") as lines:
            for i in range(BATCH * BATCHES):
                ids = [(7 * i + 3 * j) % 500 + 2 for j in range(PROMPT)]
                lines.write(json.dumps({"id": i, "prompt_ids": ids, "max_tokens": TOKENS, "ignore_eos": True}) + "\n")
        subprocess.run(
            [weft, "generate", "--backend", "cpu", "--threads", "1", "--model", folder / "config.json", "--weights", "random:1",
             "--input", folder / "in.jsonl", "--output", folder / "out.jsonl", "--trace", folder / "trace.json",
             "--schedule", "static", "--gpu-batch-size", str(BATCH), "--num-gpu-batches", str(BATCHES),
             "--percent", "0", "50", "34", "33", "100", "0"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    sweeps = {}
    for event in events:
        if event["ph"] == "X" and event["args"]["step"] > 0:
            begin = event["ts"] / 1000
            sweeps.setdefault(event["args"]["step"], []).append(
                {"lane": LANES[event["tid"] - 1], "name": short(event["name"]), "batch": event["args"]["batch"],
                 "begin": begin, "end": begin + event["dur"] / 1000})
    length = lambda ops: max(op["end"] for op in ops) - min(op["begin"] for op in ops)
    ops = min(list(sweeps.values())[1:-1], key=length)
    first = min(op["begin"] for op in ops)
    for op in ops:
        op["begin"], op["end"] = op["begin"] - first, op["end"] - first
    return ops


def short(name):
    """"layer 3 mlp" as "mlp 3"; "embedding, piece 1 of 2" as "token embedding"."""
    name = re.sub(r"layer (\d+) (\w+)", r"\2 \1", name)
    return re.sub(r"embedding(, piece \d+ of \d+)?", "token embedding", name)


def draw_schedule(path, ops):
    lanes = [lane for lane in LANES if any(op["lane"] == lane for op in ops)]
    left, width, top, height, gap = 140, 900, 92, 44, 24
    total = max(op["end"] for op in ops)
    at = lambda time: left + time / total * width
    row = {lane: top + i * (height + gap) for i, lane in enumerate(lanes)}
    svg = Svg(left + width + 25, top + len(lanes) * (height + gap) + 96, "A decode sweep of the zig-zag schedule")

    svg.text(20, 32, f"A decode sweep of {BATCHES} gpu batches of {BATCH} sequences, as it ran", 18, weight="bold")
    svg.text(20, 56, "Each sublayer serves all gpu batches before the next one begins. Meanwhile other lanes bring the weights "
             "and the KV that come next.", 14, GREY)
    for lane in lanes:
        svg.box(left, row[lane], width, height, "#f5f7fa", "none", 4)
        svg.text(left - 12, row[lane] + height / 2 + 5, lane, 13, anchor="end", mono=True)

    compute = [op for op in ops if op["lane"] == "device_compute"]
    loads = [op for op in ops if op["lane"] != "device_compute"]
    for op in loads:
        what = op["name"].split(" ", 1)[1]
        op["unit"] = what.endswith(" weights")
        op["label"] = what.removesuffix(" weights") if op["unit"] else what.replace("hidden states", "")
        if op["unit"]:
            connect(svg, op, op["label"], compute, at, row, height)
    for op in compute + loads:
        x, end, y = at(op["begin"]), at(op["end"]), row[op["lane"]]
        svg.box(x, y + 3, max(end - x, 1.2), height - 6, WEIGHT_FILL if op.get("unit") else BATCH_FILL[op["batch"]], EDGE, 2)
    for lane in lanes:
        label_loads(svg, [op for op in loads if op["lane"] == lane], at, row[lane], height)
    for name, begin, end in sublayers(compute):
        x, last, y = at(begin), at(end), row["device_compute"] + height + 6
        svg.line([(x + 1, y), (x + 1, y + 5), (last - 1, y + 5), (last - 1, y)], GREY)
        if last - x > text_width(name, 12):
            svg.text((x + last) / 2, y + 20, name, 12, GREY, anchor="middle")
    draw_axis(svg, at, total, top + len(lanes) * (height + gap) + 34, left)
    svg.write(path)


def text_width(words, size):
    return 0.56 * size * len(words)


def label_loads(svg, loads, at, y, height):
    """Inside a box where it fits; that of weights else above it, unless it would meet the one before."""
    free = 0
    for op in sorted(loads, key=lambda op: op["begin"]):
        x, end, room = at(op["begin"]), at(op["end"]), text_width(op["label"], 11)
        if end - x > room + 4:
            svg.text((x + end) / 2, y + height / 2 + 4, op["label"], 11, anchor="middle")
        elif op["unit"] and (x + end - room) / 2 > free:
            svg.text((x + end) / 2, y - 3, op["label"], 11, GREY, anchor="middle", halo=True)
            free = (x + end + room) / 2 + 4


def connect(svg, load, name, compute, at, row, height):
    """From the end of a load of weights to the first op that uses them."""
    users = [op for op in compute if op["name"] == (name if name != "token embedding" else "head")]  # the head is tied
    if not users:
        return
    x, to = at(load["end"]), at(users[0]["begin"])
    svg.line([(x, row[load["lane"]] + height - 3), (to, row["device_compute"] + 3)], EDGE, 1, "3,3", arrow=True)


def sublayers(compute):
    """(name, begin, end) of each sublayer."""
    spans = {}
    for op in compute:
        begin, end = spans.get(op["name"], (op["begin"], op["end"]))
        spans[op["name"]] = min(begin, op["begin"]), max(end, op["end"])
    return [(name, *span) for name, span in spans.items()]


def draw_axis(svg, at, seconds, y, left):
    svg.line([(at(0), y), (at(seconds), y)], GREY)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if seconds / step <= 12)
    for i in range(int(seconds / step) + 1):
        svg.line([(at(i * step), y), (at(i * step), y + 5)], GREY)
        svg.text(at(i * step), y + 20, f"{i * step}" + (" ms" if i == 0 else ""), 12, GREY, anchor="middle")
    x = left
    for fill, words in [*((fill, f"gpu batch {i}") for i, fill in enumerate(BATCH_FILL)), (WEIGHT_FILL, "weights")]:
        svg.box(x, y + 32, 16, 16, fill, EDGE, 2)
        svg.text(x + 23, y + 45, words, 13)
        x += 128


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", default=ROOT / "build/release/weft")
    parser.add_argument("--only", choices=["floors", "schedule"])
    args = parser.parse_args()
    if args.only != "schedule":
        draw_floors(ROOT / "docs/pictures/floors.svg")
    if args.only != "floors":
        draw_schedule(ROOT / "docs/pictures/schedule.svg", run_weft(args.weft))


if __name__ == "__main__":
    main()
