"""The program: where it is, its flags, and a process of it that ends with this one."""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
from typing import Any, Callable, Dict, IO, List, Optional, Tuple

from .errors import WeftError, error_of

SECONDS_TO_STOP = 20  # a stopped program saves what is in flight within ten
Notice = Callable[[str], None]


def find_program(program: Optional[os.PathLike[str] | str] = None) -> str:
    """The program: `program` if it is given, else the wheel's own, else the one that WEFT names, else that on the PATH."""
    inside = pathlib.Path(__file__).parent / "bin" / "weft"
    if program is not None:
        wanted = os.fspath(program)
    elif inside.is_file():
        wanted = str(inside)
    else:
        wanted = os.environ.get("WEFT") or "weft"
    found = shutil.which(wanted)
    if found is None:
        raise FileNotFoundError(f"{wanted}: there is no such program; install the wheel, set WEFT to the program, or put it "
                                "on the PATH")
    return found


def flags_of(options: Dict[str, Any]) -> List[str]:
    """Keyword arguments as flags: max_tokens=8 is --max-tokens=8, True a flag alone, a list several values."""
    flags: List[str] = []
    for name, value in options.items():
        flag = "--" + name.strip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            flags.append(flag)
        elif isinstance(value, (list, tuple)):
            words = [_word(each) for each in value]
            dashed = any(word.startswith("-") for word in words)  # else such a word would be a flag itself
            flags += [f"{flag}={word}" for word in words] if dashed else [flag, *words] if words else []
        else:
            flags.append(f"{flag}={_word(value)}")
    return flags


def _word(value: Any) -> str:
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else str(value)


class _Starter:
    """Starts processes from a thread that lives as long as this process. PR_SET_PDEATHSIG is about the thread that starts a
    process, and others may end at any time."""

    def __init__(self) -> None:
        self._pool: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._lock = threading.Lock()

    def start(self, command: List[str], **options: Any) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(1, "weft-starter")
            pool = self._pool
        return pool.submit(_start, command, options).result()


def _start(command: List[str], options: Dict[str, Any]) -> subprocess.Popen[bytes]:
    libc, parent = ctypes.CDLL(None), os.getpid()

    def end_with_the_parent() -> None:
        libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(130)

    # A session of its own: Ctrl-C reaches it through stop() alone, so that it is one signal and not two.
    return subprocess.Popen(command, preexec_fn=end_with_the_parent, start_new_session=True, **options)


_starter = _Starter()


def _renew_starter() -> None:
    global _starter
    _starter = _Starter()


os.register_at_fork(after_in_child=_renew_starter)  # a fork has no threads of its parent


class Child:
    """A process of the program. What it says is kept for the error, and handed to `notice` line by line."""

    def __init__(self, command: List[str], stdout: Optional[IO[bytes] | int], notice: Notice) -> None:
        self._notice = notice
        self._said: List[str] = []
        self.process = _starter.start(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE,
                                      stdout=subprocess.DEVNULL if stdout is None else stdout)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr
        for raw in self.process.stderr:
            line = raw.decode(errors="replace").rstrip("\n")
            failed = line.startswith(("weft: error: ", "weft: internal error: "))
            if self._said or failed:
                self._said.append(line)  # the error is the last that it says, and may list lines
            if not self._said:
                self._notice(line)
        self.process.stderr.close()

    def write(self, line: bytes) -> bool:
        """Writes a line of standard input; false if the program has ended."""
        assert self.process.stdin
        try:
            self.process.stdin.write(line)
        except BrokenPipeError:
            return False
        return True

    def end_input(self) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass

    def wait(self, seconds: float) -> Optional[int]:
        """The exit code, or None if it still runs after so many seconds."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def error(self) -> WeftError:
        self._listener.join(5)
        return error_of(self.process.returncode, "\n".join(self._said))

    def stop(self, with_signal: int = signal.SIGTERM) -> None:
        """Ends the program as Ctrl-C would, and waits for it. A second Ctrl-C while it waits ends it at once."""
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
            try:
                self.process.wait(SECONDS_TO_STOP)
            except BaseException:
                self.process.kill()
                self.process.wait()
        self.end_input()
        self._listener.join(5)


def run(command: List[str], notice: Notice) -> Tuple[int, WeftError]:
    """Runs the program to its end."""
    child = Child(command, None, notice)
    try:
        child.end_input()
        code = child.process.wait()
    except BaseException:
        child.stop(signal.SIGINT)
        raise
    return code, child.error()


def main() -> None:
    """The command weft of the wheel: becomes the program."""
    program = find_program()
    os.execv(program, [program, *sys.argv[1:]])
