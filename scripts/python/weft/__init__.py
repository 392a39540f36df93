"""Weft from Python: batch generation with language models that do not fit on the GPU.

    import weft
    for answer in weft.generate(["The sea"], model="models/demo", max_tokens=16):
        print(answer["text"])

Every job is a process of the program weft, which ends with the Python process that started it.
"""

from .errors import (CapacityError, DataError, DeviceError, FileError, InternalError, StoppedError, UsageError, WeftError)
from .jobs import Answers, generate, plan, score
from .program import find_program
from .ray_stage import RayStage
from .version import VERSION as __version__

__all__ = ["Answers", "CapacityError", "DataError", "DeviceError", "FileError", "InternalError", "RayStage", "StoppedError",
           "UsageError", "WeftError", "__version__", "find_program", "generate", "plan", "score"]
