#!/usr/bin/env python3
"""lm-evaluation-harness (PyPI lm-eval) with weft as its model, where the package of scripts/python is not installed.

    python3 scripts/evaluate/lm_eval_weft.py run --model weft --model_args model=models/demo,retention=h2o:0.1:0.1 \\
        --tasks TASK [all other arguments of lm_eval]

scripts/python/weft/lm_eval.py has the arguments. The program is that of the package that scripts/package.sh made, else
build/release/weft, unless WEFT names another.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "bin" / "weft", ROOT / "build" / "release" / "weft"
os.environ.setdefault("WEFT", str(next(filter(Path.exists, PROGRAMS), "weft")))
sys.path.insert(0, str(ROOT / "scripts" / "python"))

from weft.lm_eval import Weft, main  # noqa: E402

__all__ = ["Weft", "main"]

if __name__ == "__main__":
    main()
