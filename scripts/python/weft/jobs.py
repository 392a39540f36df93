"""The jobs: weft.generate, weft.score and weft.plan."""

from __future__ import annotations

import collections
import errno
import fcntl
import importlib
import itertools
import json
import logging
import os
import pathlib
import signal
import sys
import tempfile
import time
from typing import Any, Deque, Dict, Iterator, List, Mapping, Optional

from . import rows as row_module
from .program import Child, find_program, flags_of, run

DONE = (0, 1)  # exit codes; 1: some requests have no answer, and their lines say why
SECONDS_OF_A_DYING_RUN = 15  # one whose Python was killed saves what is in flight, and holds the output meanwhile
REWRITING = ("repair", "retry")  # resumes that move lines away
log = logging.getLogger("weft")


class Answers(Iterator[Dict[str, Any]]):
    """The answers of a job as they finish, each once. Leaving a `with`, or close(), ends the program if it still runs."""

    def __init__(self, command: List[str], lines: row_module.Lines, output: Optional[str], rewrites: bool,
                 progress: bool) -> None:
        self._output, self._rewrites = output, rewrites
        self._file: Any = None
        self._lines: Deque[bytes] = collections.deque()
        self._at = 0  # what is read of the file, up to a newline
        self._hold = 0  # an earlier run's answers end there; they wait for the program to accept them
        self._child: Optional[Child] = None
        self._ended: Optional[int] = None  # the exit code
        self._done = False
        given = iter(lines)
        first = next(given, None)
        if first is None:  # no rows, no answers; the program refuses an input without requests
            return
        if output is None:
            self._file = tempfile.TemporaryFile(prefix="weft-answers-")  # has no name, so a kill leaves nothing
        else:
            _wait_for_a_dying_run(output)
            self._hold = _whole_bytes(output)
        self._child = Child(command, self._file, _print if progress else log.warning)
        try:
            for line in itertools.chain((first,), given):
                if not self._child.write(line):
                    break
            self._child.end_input()
        except BaseException as error:
            self._end(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
            raise

    def __iter__(self) -> "Answers":
        return self

    def __next__(self) -> Dict[str, Any]:
        if self._child is None:
            raise StopIteration
        try:
            while not self._lines:
                if self._done:
                    self._end(signal.SIGTERM)
                    raise StopIteration
                self._advance()
            answer: Dict[str, Any] = json.loads(self._lines.popleft())
            return answer
        except StopIteration:
            raise
        except BaseException as error:
            self._end(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
            raise

    def _advance(self) -> None:
        """Reads more, or waits a moment for the program."""
        assert self._child
        if self._ended is None and (self._rewrites or not self._read()):
            self._ended = self._child.wait(0.05)
        if self._ended is None:
            return
        if self._ended in DONE or not self._hold:
            self._hold = 0
            if self._read():
                return
        if self._ended not in DONE:
            raise self._child.error()
        self._done = True

    def _read(self) -> bool:
        """Reads whole lines, about 1 MiB of them. What follows the last newline may be cut by a resume."""
        if self._file is None:
            try:
                self._file = open(self._output or "", "rb")
            except FileNotFoundError:
                return False
        if self._hold:
            if not self._whole_from(self._hold):
                return False
            self._hold = 0
        whole = self._whole_from(self._at)
        self._lines.extend(whole.split(b"\n")[:-1])
        self._at += len(whole)
        return bool(whole)

    def _whole_from(self, at: int) -> bytes:
        size = 1 << 20
        while True:
            piece = os.pread(self._file.fileno(), size, at)
            whole = piece[:piece.rfind(b"\n") + 1]
            if whole or len(piece) < size:
                return whole
            size *= 2

    def _end(self, with_signal: int) -> None:
        child, self._child = self._child, None
        if child:
            child.stop(with_signal)
        if self._file:
            self._file.close()

    def close(self) -> None:
        """Ends the program. With an output the answers so far stay, and the same call goes on."""
        self._end(signal.SIGTERM)

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_child", None):
            self.close()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _whole_bytes(output: str) -> int:
    """The bytes up to the last newline of a file that may be missing."""
    try:
        with open(output, "rb") as file:
            at = file.seek(0, os.SEEK_END)
            while at > 0:
                begin = max(0, at - (1 << 16))
                file.seek(begin)
                newline = file.read(at - begin).rfind(b"\n")
                if newline >= 0:
                    return begin + newline + 1
                at = begin
    except FileNotFoundError:
        pass
    return 0


def _wait_for_a_dying_run(output: str) -> None:
    """Waits a while for the lock of the output. The program itself refuses an output that another run holds."""
    until = time.monotonic() + SECONDS_OF_A_DYING_RUN
    while time.monotonic() < until:
        try:
            with open(output + ".sums", "rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return
        time.sleep(0.1)


def _job(kind: str, rows: Any, lines: row_module.Lines, model: Any, output: Any, to: Optional[str], progress: bool,
         program: Any, resume: Optional[str], options: Dict[str, Any]) -> Any:
    if to not in (None, "list", "pandas", "dataset"):
        raise ValueError(f"to must be 'list', 'pandas' or 'dataset', got {to!r}")
    if to in ("pandas", "dataset"):  # before any work, which would be lost
        importlib.import_module("pandas" if to == "pandas" else "datasets")
        row_module.refuse_clash(row_module.names_of(rows))
        table = row_module.as_table(rows, to)
    for name in ("input", "ordered", "shard"):
        if name in options:
            raise TypeError(f"weft.{kind} takes no '{name}'")
    place = None if output is None else os.fspath(output)
    words = set((resume or "").split(",")) - {""}
    command = [find_program(program), kind, f"--model={os.fspath(model)}", "--input=-", f"--output={place or '-'}"]
    if place is not None:
        command.append(f"--resume={resume}" if words else "--resume")
    elif words:
        raise TypeError("resume wants an output")
    if not progress and not options.get("quiet") and not options.get("verbose"):
        options = {**options, "quiet": True}
    command += flags_of(options)
    answers = Answers(command, lines, place, bool(words & set(REWRITING)), progress)
    if to is None:
        return answers
    with answers:
        ordered = row_module.in_order(list(row_module.each_row(rows)), lines, answers)
    if to == "list":
        return ordered
    columns = row_module.answer_columns(ordered, "answer_logprob" if kind == "score" else "answer")
    return row_module.joined(table, columns, to)


def _again(rows: Any, to: Optional[str]) -> Any:
    """Rows that are gone through twice: once for the requests, once beside the answers."""
    row_module.refuse_no_rows(rows)
    return rows if to is None or row_module.columns_of(rows) is not None else list(rows)


def generate(rows: Any, model: "os.PathLike[str] | str", *, output: "Optional[os.PathLike[str] | str]" = None,
             prompt_column: Optional[str] = None, prompt_template: Optional[str] = None,
             fields: Optional[Mapping[str, Any]] = None, to: Optional[str] = None, resume: Optional[str] = None,
             progress: bool = False, program: "Optional[os.PathLike[str] | str]" = None, **options: Any) -> Any:
    """Answers rows; an iterator of answers as they finish, or all of them, in the order of the rows, as `to` says.

    rows: strings, dicts that are Weft's request lines, a pandas DataFrame or a datasets.Dataset. `prompt_column`, or
    `prompt_template` with {column} in it, makes prompts of columns; the other columns come back in an answer's `metadata`.
    fields: request fields that all rows have, such as {"guided_choice": ["yes", "no"]}; a request line's own go first.
    output: a file of the answers. The same call with the same rows goes on after any kind of end.
    to: 'list', 'pandas' or 'dataset'. The latter two have the rows' columns and, beside them, the answers'.
    resume: what a resume accepts besides: 'force', 'adopt', 'repair', 'retry', joined by commas.
    progress: prints what the program says; else warnings go to the logger 'weft'.
    program: the program, in place of find_program()'s.
    options: flags of weft generate, such as max_tokens=64, retention='h2o:0.1:0.1', percent=[0, 100, 0, 100, 0, 100].

    Raises WeftError, with the line and the exit code of the program; ValueError for rows that make no request.
    """
    rows = _again(rows, to)
    lines = row_module.Lines(rows, prompt_column, prompt_template, fields=fields)
    return _job("generate", rows, lines, model, output, to, progress, program, resume, options)


def score(rows: Any, model: "os.PathLike[str] | str", *, output: "Optional[os.PathLike[str] | str]" = None,
          prompt_column: Optional[str] = None, prompt_template: Optional[str] = None,
          continuation_column: Optional[str] = None, to: Optional[str] = None, resume: Optional[str] = None,
          progress: bool = False, program: "Optional[os.PathLike[str] | str]" = None, **options: Any) -> Any:
    """Log-probabilities of continuations; otherwise as generate(). Dicts have `prompt` and `continuation`; of a table
    `continuation_column` names the latter."""
    rows = _again(rows, to)
    lines = row_module.Lines(rows, prompt_column, prompt_template, continuation_column, scores=True)
    return _job("score", rows, lines, model, output, to, progress, program, resume, options)


def plan(model: "os.PathLike[str] | str", *, progress: bool = False,
         program: "Optional[os.PathLike[str] | str]" = None, **options: Any) -> Dict[str, Any]:
    """The fastest policy for a model, a machine and a job, and what it is predicted to do: the report of weft plan.

    options: flags of weft plan, such as machine='configs/machines/t4.json', prompt_len=512, gen_len=32, requests=1000.
    """
    if "report" in options:
        raise TypeError("weft.plan returns the report")
    with tempfile.TemporaryDirectory(prefix="weft-plan-") as folder:
        report = pathlib.Path(folder, "plan.json")
        command = [find_program(program), "plan", f"--model={os.fspath(model)}", f"--report={report}", *flags_of(options)]
        code, error = run(command, _print if progress else log.warning)
        if code != 0:
            raise error
        found: Dict[str, Any] = json.loads(report.read_text())
    return found


__all__ = ["Answers", "generate", "plan", "score"]
