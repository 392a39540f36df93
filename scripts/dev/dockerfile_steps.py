#!/usr/bin/env python3
"""Runs the steps of the Dockerfile without Docker, each stage in a root of its own, and then the image's program.

    scripts/dev/dockerfile_steps.py [--wheel FILE]

--wheel FILE   takes this wheel for what the stage `build` makes, which takes minutes, and leaves that stage out

The root is clean where debootstrap is installed: a minimal Debian 12. Elsewhere it is this system under an overlay, which
keeps what the steps write and shows them what is installed here; the script says so. It needs root (unshare, mount,
chroot), and the network for what the steps install. Exit code 77: the roots cannot be made here.
"""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
NO_ROOT = 77
OWN_MOUNTS = "WEFT_DOCKERFILE_FOLDER"  # set for the child that has mounts of its own
KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "ENTRYPOINT"}
TRY = ["generate", "--model", "/data/demo", "--input", "/data/prompts.jsonl", "--output", "/data/answers.jsonl", "--quiet"]


def instructions(text):
    """(word, the rest) of each instruction; a line that ends with a backslash goes on."""
    for line in re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text)).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            if word not in KNOWN:
                sys.exit(f"dockerfile_steps: wanted one of {', '.join(sorted(KNOWN))}, found '{word}'; teach this script")
            yield word, rest.strip()


class Stage:
    """A root, and what the instructions have set in it."""

    def __init__(self, name, base, folder):
        self.name, self.root, self.cwd, self.entry = name, folder / "root", "/", None
        self.environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        self.root.mkdir(parents=True)
        if base != "debian:bookworm-slim":
            sys.exit(f"dockerfile_steps: wanted FROM debian:bookworm-slim, found '{base}'; teach this script")
        if shutil.which("debootstrap"):
            run("debootstrap", "--variant=minbase", "bookworm", self.root)
        else:
            print(f"{name}: not clean: debootstrap is not installed, so the root is this system under an overlay", flush=True)
            over = folder / "over"  # a file system of its own, because an overlay takes none that is an overlay itself
            over.mkdir()
            run("mount", "-t", "tmpfs", "tmpfs", over)
            (over / "upper").mkdir()
            (over / "work").mkdir()
            run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={over}/upper,workdir={over}/work", self.root)
        for place in "proc", "dev":
            run("mount", "--rbind", f"/{place}", self.root / place)
        names = self.root / "etc" / "resolv.conf"
        if not names.exists() and pathlib.Path("/etc/resolv.conf").exists():
            shutil.copy("/etc/resolv.conf", names)

    def inside(self, path):
        """A path of the image as this system sees it; relative ones begin at WORKDIR."""
        return self.root / os.path.normpath(os.path.join(self.cwd, path)).lstrip("/")

    def run(self, *command):
        run("chroot", self.root, "env", "-i", *(f"{key}={value}" for key, value in self.environment.items()),
            "sh", "-c", 'cd "$0" && exec "$@"', self.cwd, *command)


def run(*command):
    subprocess.run(list(map(str, command)), check=True)


def copy(stage, stages, rest, wheel):
    """COPY [--from=STAGE] SOURCE TARGET, without what .dockerignore names."""
    words = shlex.split(rest)
    of = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
    source, target = words[0], stage.inside(words[1])
    target.mkdir(parents=True, exist_ok=True)
    if of is None:
        ignored = (SOURCE / ".dockerignore").read_text().split()
        packed = subprocess.Popen(["tar", "-C", SOURCE / source, *(f"--exclude=./{name}" for name in ignored), "-c", "."],
                                  stdout=subprocess.PIPE)
        subprocess.run(["tar", "-C", target, "--no-same-owner", "-x"], stdin=packed.stdout, check=True)
        if packed.wait():
            sys.exit("dockerfile_steps: the project cannot be packed")
    elif wheel:
        shutil.copy(wheel, target)
    else:
        found = list(stages[of].root.glob(source.lstrip("/")))
        if not found:
            sys.exit(f"dockerfile_steps: COPY: there is no {source} in the stage {of}")
        for path in found:
            shutil.copy(path, target)


def steps(folder, wheel):
    stages, stage = {}, None
    for word, rest in instructions((SOURCE / "Dockerfile").read_text()):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            name = name or "image"
            left_out = wheel is not None and name == "build"
            stage = None if left_out else Stage(name, base, folder / name)
            stages[name] = stage
            continue
        if stage is None:
            print(f"left out for --wheel: {word} {rest}", flush=True)
            continue
        print(f"{stage.name}: {word} {rest}", flush=True)
        if word == "RUN":
            stage.run("sh", "-c", rest)
        elif word == "COPY":
            copy(stage, stages, rest, wheel)
        elif word == "WORKDIR":
            stage.cwd = os.path.join(stage.cwd, rest)
            stage.inside(".").mkdir(parents=True, exist_ok=True)
        elif word == "ENV":
            stage.environment.update([rest.split("=", 1)])
        else:
            stage.entry = re.findall(r'"([^"]*)"', rest)
    return stage


def try_it(image):
    """What `docker run` would: the demo model answers the example's prompts."""
    data = image.inside("/data")
    shutil.copytree(SOURCE / "models" / "demo", data / "demo")
    shutil.copy(SOURCE / "configs" / "examples" / "prompts.jsonl", data)
    image.run(*image.entry, *TRY)
    wanted = len((data / "prompts.jsonl").read_text().splitlines())
    found = len((data / "answers.jsonl").read_text().splitlines())
    if found != wanted:
        sys.exit(f"dockerfile_steps: wanted {wanted} answers, found {found}")
    print(f"dockerfile_steps: all steps ran, and the image's program has answered {found} prompts")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=pathlib.Path)
    wheel = parser.parse_args().wheel
    if wheel is not None and not wheel.is_file():
        parser.error(f"--wheel: there is no file {wheel}")
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        print("dockerfile_steps: no root can be made here: it wants to be root and to have mounts of its own", file=sys.stderr)
        sys.exit(NO_ROOT)
    if OWN_MOUNTS in os.environ:
        try:
            return try_it(steps(pathlib.Path(os.environ[OWN_MOUNTS]), wheel and wheel.resolve()))
        except subprocess.CalledProcessError as error:
            sys.exit(f"dockerfile_steps: exit code {error.returncode}: {shlex.join(map(str, error.cmd))}")
    # The mounts are a child's alone and end with it, so that what is removed afterwards is never what lies behind one.
    with tempfile.TemporaryDirectory(prefix="weft-dockerfile-") as folder:
        child = subprocess.run(["unshare", "-m", "--propagation", "private", sys.executable, *sys.argv],
                               env={**os.environ, OWN_MOUNTS: folder})
    sys.exit(child.returncode)


if __name__ == "__main__":
    main()
