#!/usr/bin/env python3
"""Checks the floors and the rooms of runtime/.

- A file includes headers of its own floor or of a floor below, never of one above and never in a cycle. The rooms of
  runtime/ are ranked in the same way. Of the floors below, policy/ sees only a few headers.
- Each library is included by the files of one place only.
- No room has more files than a reader can keep in mind.
- CMakeLists.txt of the floor lists every source.

Prints every breach; exit code 1 if there is any."""

import pathlib
import re
import sys

FLOORS = ["kernels", "offload", "policy", "runtime"]
ROOMS = ["base", "checkpoint", "text", "requests", "engine", "planning", "measure", "job", "cli"]  # of runtime/
MOST_FILES = 30  # in a room
POLICY_SEES = {"offload/tier.h", "offload/memory.h", "offload/kv_layout.h", "kernels/tensor.h", "kernels/error.h"}
DOORS = [  # (what the include begins with, files that may)
    (r"cuda|cublas|nv", r"kernels/cuda\.h|kernels/\w+_cuda\.(cc|cu|h)"),
    (r"liburing", r"offload/disk_io_uring\.cc"),
    (r"nlohmann/json_fwd", r"(policy|runtime/\w+)/\w+\.(h|cc)"),
    (r"nlohmann/", r"(policy|runtime/\w+)/\w+\.cc"),
    (r"CLI/", r"runtime/cli/\w+\.cc"),
    (r"spdlog/", r"runtime/(planning|measure|job|cli)/\w+\.cc"),
    (r"dnnl|oneapi/dnnl|cblas|openblas", r"kernels/linear_library\.cc"),
    (r"coin/", r"policy/relaxation\.cc"),
    (r"utf8proc", r"runtime/text/tokenizer_nfc\.cc"),
    (r"zlib\.h", r"runtime/checkpoint/zip_reader\.cc"),
    (r"catch2/", r"tests/.*"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) == '"', match.group(2)


def check_floor(name, number, header):
    floor, below = name.split("/")[0], header.split("/")[0]
    if below not in FLOORS:
        return f"{name}:{number}: includes {header}; write paths from the root of the project"
    if FLOORS.index(below) > FLOORS.index(floor):
        return f"{name}:{number}: {floor} includes {header} of a floor above"
    if floor == below == "runtime":
        room, other = name.split("/")[1], header.split("/")[1]
        if room not in ROOMS or other not in ROOMS:
            return f"{name}:{number}: includes {header}; the rooms of runtime/ are {', '.join(ROOMS)}"
        if ROOMS.index(other) > ROOMS.index(room):
            return f"{name}:{number}: the room {room} includes {header} of a room above"
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


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
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
    for path in sorted((root / "runtime").iterdir()):
        if path.name in {"README.md", "CMakeLists.txt"}:  # what each room is for, and how it is built
            continue
        if not path.is_dir() or path.name not in ROOMS:
            faults.append(f"runtime/{path.name}: no room; the rooms are {', '.join(ROOMS)}")
        elif (count := len(list(path.iterdir()))) > MOST_FILES:
            faults.append(f"runtime/{path.name}: {count} files; split it at {MOST_FILES}")
    faults += unlisted_sources(root)
    cycle = find_cycle(graph)
    if cycle:
        faults.append("cycle: " + " -> ".join(cycle))
    faults = [fault for fault in faults if fault]
    print("\n".join(faults) if faults else f"{files} files keep to the floors, rooms and doors")
    return 1 if faults or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
