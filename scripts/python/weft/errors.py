"""What can go wrong, by the exit code of the program."""

from __future__ import annotations

import signal


class WeftError(RuntimeError):
    """The program ended without its work done. `exit_code` is its exit code, negative for the signal that killed it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code

    @property
    def line(self) -> str:
        """The first line of the message."""
        return str(self).partition("\n")[0]


class UsageError(WeftError):
    """Options, a policy or requests are wrong (2)."""


class DataError(WeftError):
    """The checkpoint, its config or its tokenizer is wrong (3)."""


class CapacityError(WeftError):
    """The job does not fit (4)."""


class DeviceError(WeftError):
    """The device failed (5). The same call may succeed."""


class FileError(WeftError):
    """Input or output failed (6). The same call may succeed."""


class InternalError(WeftError):
    """A defect of Weft (70)."""


class StoppedError(WeftError):
    """Somebody stopped the program (130). The same call goes on."""


BY_CODE = {2: UsageError, 3: DataError, 4: CapacityError, 5: DeviceError, 6: FileError, 70: InternalError, 130: StoppedError}


def error_of(code: int, said: str) -> WeftError:
    """The exception for an exit code and what the program said on standard error."""
    _, found, message = said.rpartition("weft: error: ")
    if not found:
        _, found, message = said.rpartition("weft: internal error: ")
    message = (message if found else said).strip()
    if not message:
        message = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return BY_CODE.get(code, WeftError)(message, code)
