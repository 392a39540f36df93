#!/usr/bin/env python3
"""Tests of scripts/bench/rules.py: rules_test.py WEFT SOURCE_DIR."""

import pathlib
import subprocess
import sys
import unittest

WEFT, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path.insert(0, str(SOURCE / "scripts/bench"))
import rules  # noqa: E402


class Rules(unittest.TestCase):
    def test_each_rule_is_compared_with_h2o_of_as_many_slots(self):
        command = [SOURCE / "scripts/bench/rules.py", "--weft", WEFT, "--model", SOURCE / "models/demo", "--slots", "16", "--batch",
                   "2", "--tokens", "3", "--rounds", "1", "--rules", *rules.RULES[1:]]
        said = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.splitlines()[2:]]
        self.assertEqual([row[0] for row in rows], rules.RULES)
        self.assertEqual(rows[0][2:], ["1.00", "1.00-1.00"])
        for row in rows:
            self.assertGreater(float(row[1]), 0, row)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
