"""Asks weft for a plan, for the scripts of this folder."""

import json
import pathlib
import subprocess
import sys
import tempfile


def plan(weft, *flags):
    """The report of `weft plan`, with these flags."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        done = subprocess.run([str(weft), "plan", *map(str, flags), "--report", str(report)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{pathlib.Path(sys.argv[0]).name}: {done.stderr.strip()}")
        return json.loads(report.read_text())
