#!/usr/bin/env python3
"""Checks the floors and their rooms.

- A file includes headers of its own floor or of a floor below, never of one above and never in a cycle. The rooms of a
  floor are ranked in the same way; what lies in a floor's own folder is below its rooms. Of the floors below, policy/
  sees only a few headers.
- Each library is included by the files of one place only.
- No folder of sources has more files than a reader can keep in mind.
- CMakeLists.txt of the floor lists every source.
- JSON that is written grows in no member that may be null: object_at() and array_at() of policy/base/json.h.

Prints every breach; exit code 1 if there is any."""

import pathlib
import re
import sys

FLOORS = ["kernels", "offload", "policy", "runtime"]
ROOMS = {  # of each floor, the lowest first
    "kernels": ["machine", "linear", "levels", "attention/cpu", "rows", "attention", "backend"],
    "offload": [],
    "policy": ["base", "model", "schedule", "layout", "planner"],
    "runtime": ["base", "pieces", "gguf", "checkpoint", "stored", "template", "text", "grammar", "model", "inputs", "requests", "results", "engine", "planning",
                "measure", "analyze", "job", "serve", "cli"],
}
MOST_FILES = 30  # in a folder
POLICY_SEES = {"offload/tier.h", "offload/memory.h", "offload/kv_layout.h", "kernels/tensor.h", "kernels/error.h",
               "kernels/keep.h"}
DOORS = [  # (what the include begins with, files that may)
    (r"cuda|cublas|nv", r"kernels/machine/cuda\.h|kernels/\w+/\w+_cuda\w*\.(cc|cu|h)"),
    (r"liburing", r"offload/disk_io_uring\.cc"),
    (r"nlohmann/json_fwd", r"(policy|runtime)/\w+/\w+\.(h|cc)"),
    (r"nlohmann/", r"(policy|runtime)/\w+/\w+\.cc"),
    (r"CLI/", r"runtime/cli/\w+\.cc"),
    (r"spdlog/", r"runtime/(planning/log\.h|(planning|measure|analyze|job|serve|cli)/\w+\.cc)"),
    (r"coin/", r"policy/planner/relaxation\.cc"),
    (r"utf8proc", r"runtime/text/tokenizer_nfc\.cc|runtime/template/letters\.cc|runtime/pieces/charsmap\.cc"),
    (r"zlib\.h", r"runtime/checkpoint/zip_reader\.cc|runtime/inputs/unpack\.cc"),
    (r"zstd\.h", r"runtime/inputs/unpack\.cc"),
    (r"xgrammar/", r"runtime/grammar/form_compiler\.cc"),
    (r"httplib\.h", r"runtime/serve/http_door\.h"),
    (r"catch2/", r"tests/.*"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) == '"', match.group(2)


def room_of(name):
    """(floor, room) of a path such as runtime/text/tokenizer.h; the room is "" for a floor's own folder."""
    floor, _, rest = name.partition("/")
    return floor, rest.rpartition("/")[0]


def rank(floor, room):
    return ROOMS[floor].index(room) if room else -1


def check_floor(name, number, header):
    (floor, room), (below, other) = room_of(name), room_of(header)
    if below not in FLOORS:
        return f"{name}:{number}: includes {header}; write paths from the root of the project"
    if FLOORS.index(below) > FLOORS.index(floor):
        return f"{name}:{number}: {floor} includes {header} of a floor above"
    for where in {(floor, room), (below, other)}:
        if where[1] and where[1] not in ROOMS[where[0]]:
            return f"{name}:{number}: includes {header}; the rooms of {where[0]}/ are {', '.join(ROOMS[where[0]])}"
    if floor == below and rank(floor, other) > rank(floor, room):
        return f"{name}:{number}: the room {room or floor} includes {header} of a room above"
    if floor == "policy" and below != "policy" and header not in POLICY_SEES:
        return f"{name}:{number}: policy may see of the floors below only {', '.join(sorted(POLICY_SEES))}, not {header}"
    return None


def check_door(name, number, header):
    for begins, allowed in DOORS:
        if re.match(begins, header):
            return None if re.fullmatch(allowed, name) else f"{name}:{number}: includes {header}; only {allowed} may"
    return None


def unlisted_sources(root):
    """Sources that no CMakeLists.txt on the way up to the root names: nobody would notice that they are not built."""
    for floor in FLOORS + ["tests"]:
        for path in sorted((root / floor).glob("**/*")):
            if path.suffix not in {".cc", ".cu"}:
                continue
            name = path.name.removesuffix("_fuzz.cc") if path.name.endswith("_fuzz.cc") else path.name
            lists = [folder / "CMakeLists.txt" for folder in path.parents if folder.is_relative_to(root)]
            words = {word for file in lists if file.exists() for word in re.findall(r"[\w./]+", file.read_text())}
            if not any(pathlib.PurePath(word).name == name for word in words):
                yield f"{path.relative_to(root)}: no CMakeLists.txt lists it"


def source_folders(root):
    """Every folder of the floors, the tests and the scripts; data and what Python compiled are no sources."""
    for top in FLOORS + ["tests", "scripts"]:
        yield root / top
        for path in sorted((root / top).glob("**/")):
            if not {"data", "__pycache__"} & set(path.relative_to(root).parts):
                yield path


def find_cycle(graph):
    state = {}

    def visit(node, path):
        state[node] = "open"
        for next_node in graph.get(node, []):
            if state.get(next_node) == "open":
                return path + [node, next_node]
            if next_node not in state:
                cycle = visit(next_node, path + [node])
                if cycle:
                    return cycle
        state[node] = "done"
        return None

    for node in graph:
        if node not in state:
            cycle = visit(node, [])
            if cycle:
                return cycle
    return None


def grown_nulls(root):
    """x["name"][...] and x["name"].push_back(): a null becomes an object or a list there, and a broken one without memory."""
    grown = re.compile(r"""\w\["[^"]+"\](\[|\.(push_back|emplace|update)\w*\()""")
    for floor in ("policy", "runtime"):
        for path in sorted((root / floor).glob("**/*.cc")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if found := grown.search(line):
                    name = path.relative_to(root).as_posix()
                    yield f"{name}:{number}: {found.group()}; write object_at(), array_at() or, of a member that is there, at()"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2])
    faults, graph, files = [], {}, 0
    for floor in FLOORS:
        for path in sorted((root / floor).glob("**/*")):
            if path.suffix not in {".h", ".cc", ".cu"}:
                continue
            files += 1
            name = path.relative_to(root).as_posix()
            graph[name] = []
            for number, quoted, header in includes(path):
                if quoted:
                    faults.append(check_floor(name, number, header))
                    graph[name].append(header)
                else:
                    faults.append(check_door(name, number, header))
    for floor in FLOORS:
        for path in sorted((root / floor).glob("**/*")):
            room = path.relative_to(root / floor).as_posix()
            if path.is_dir() and not any(known == room or known.startswith(room + "/") for known in ROOMS[floor]):
                faults.append(f"{floor}/{room}: no room; the rooms are {', '.join(ROOMS[floor])}")
    for path in source_folders(root):
        if (count := sum(entry.is_file() for entry in path.iterdir())) > MOST_FILES:
            faults.append(f"{path.relative_to(root)}: {count} files; split it at {MOST_FILES}")
    faults += unlisted_sources(root)
    faults += grown_nulls(root)
    cycle = find_cycle(graph)
    if cycle:
        faults.append("cycle: " + " -> ".join(cycle))
    faults = [fault for fault in faults if fault]
    print("\n".join(faults) if faults else f"{files} files keep to the floors, rooms and doors")
    return 1 if faults or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
