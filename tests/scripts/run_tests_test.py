#!/usr/bin/env python3
"""scripts/dev/run_tests.py: the parts of the exhaustive tier, the lines of ctest that it reads. run_tests_test.py SOURCE_DIR"""
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(SOURCE / "scripts/dev"))
import run_tests  # noqa: E402


def test_of(name, *labels):
    return {"name": name, "properties": [{"name": "LABELS", "value": list(labels)}] if labels else []}


class Tiers(unittest.TestCase):
    def test_each_exhaustive_test_is_in_one_part_and_each_default_test_in_all(self):
        tests = [test_of(f"test {i}", *(["exhaustive"] if i % 3 == 0 else ["fast"] if i % 3 == 1 else [])) for i in range(50)]
        parts = [run_tests.chosen(tests, part) for part in range(run_tests.PARTS)]
        for number, test in enumerate(tests, 1):
            times = sum(number in part for part in parts)
            self.assertEqual(times, 1 if "exhaustive" in run_tests.labels_of(test) else run_tests.PARTS)
        sizes = [len(part) for part in parts]
        self.assertLessEqual(max(sizes) - min(sizes), 1)

    def test_lines_of_ctest(self):
        for line, name, seconds in (
                ("  3/802 Test #12: kernels: linear matches fp64 ...........   Passed    1.25 sec", "kernels: linear matches fp64", "1.25"),
                ("802/802 Test #1: faults: way 0 ...***Failed   30.01 sec", "faults: way 0", "30.01"),
                (" 10/802 Test #7: ray_job ..........***Skipped   0.10 sec", "ray_job", "0.10")):
            match = run_tests.LINE.match(line)
            self.assertIsNotNone(match, line)
            self.assertEqual((match.group(1), match.group(3)), (name, seconds))

    def test_a_slow_machine_has_more_time(self):
        self.assertGreaterEqual(run_tests.slowness(), 1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
