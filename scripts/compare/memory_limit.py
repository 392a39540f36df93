"""One program inside a memory cgroup, version 1 or 2, which counts the page cache of what runs in it too."""
import itertools
import os
import pathlib
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path("/sys/fs/cgroup")
number = itertools.count()


def forget(folder):
    """Puts the files of a folder out of the page cache: what is cached outside a limit is not counted in it."""
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Group:
    """A cgroup for one run, so that nothing of the run before counts; without `mib` no limit and no cgroup."""

    def __init__(self, mib):
        self.folder = None
        if mib is None:
            return
        first = (ROOT / "memory/memory.limit_in_bytes").exists()
        self.folder = (ROOT / "memory" if first else ROOT) / f"weft-race-{os.getpid()}-{next(number)}"
        self.most = self.folder / ("memory.max_usage_in_bytes" if first else "memory.peak")
        self.folder.mkdir()
        (self.folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(mib << 20))
        swap = self.folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")

    def enter(self):
        if self.folder:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak_mib(self):
        return int(self.most.read_text()) >> 20 if self.folder and self.most.exists() else None

    def remove(self):
        for _ in range(50 if self.folder else 0):
            try:
                return self.folder.rmdir()
            except OSError:
                time.sleep(0.1)  # a killed program's pages are still being given back


class Outcome:
    def __init__(self, said="", reason="", killed=False, late=False, seconds=0.0, peak_mib=None):
        self.said, self.reason, self.killed, self.late = said, reason, killed, late
        self.seconds, self.peak_mib = seconds, peak_mib


def run_within(command, mib, seconds):
    """Runs a program for at most so long. An Outcome without a reason has its output."""
    group = Group(mib)
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=group.enter,
                                 start_new_session=True)
        late = False
        try:
            said, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
            os.killpg(child.pid, signal.SIGKILL)
            said, _ = child.communicate()
        took, peak = round(time.monotonic() - begin, 1), group.peak_mib()
        group.remove()
        if late:
            return Outcome(reason=f"not done after {seconds:.0f} s", late=True, seconds=took, peak_mib=peak)
        if child.returncode == 0:
            return Outcome(said=said, seconds=took, peak_mib=peak)
        if mib is not None and child.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return Outcome(reason="killed for memory", killed=True, seconds=took, peak_mib=peak)
        errors.seek(0)
        lines = [line for line in errors.read().splitlines() if line.strip()] or ["no word"]
        return Outcome(reason=f"exit code {child.returncode}: {lines[-1][:300]}", seconds=took, peak_mib=peak)
