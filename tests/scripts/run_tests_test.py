#!/usr/bin/env python3
"""scripts/dev/run_tests.py: the parts of the exhaustive tier, the lines of ctest that it reads. run_tests_test.py SOURCE_DIR"""
import pathlib
import sys
import unittest

SOURCE = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(SOURCE / "scripts/dev"))
import run_tests  # noqa: E402


def test_of(name, *labels, **properties):
    listed = dict(properties, LABELS=list(labels)) if labels else properties
    return {"name": name, "properties": [{"name": key, "value": value} for key, value in listed.items()]}


class Tiers(unittest.TestCase):
    def test_each_exhaustive_test_is_in_one_part_and_each_default_test_in_all(self):
        tests = [test_of(f"test {i}", *(["exhaustive"] if i % 3 == 0 else ["fast"] if i % 3 == 1 else [])) for i in range(50)]
        parts = [run_tests.chosen(tests, part) for part in range(run_tests.PARTS)]
        for number, test in enumerate(tests, 1):
            times = sum(number in part for part in parts)
            self.assertEqual(times, 1 if "exhaustive" in run_tests.labels_of(test) else run_tests.PARTS)
        sizes = [len(part) for part in parts]
        self.assertLessEqual(max(sizes) - min(sizes), 1)

    def test_what_needs_a_fixture_is_in_one_part_with_it(self):
        tests = [test_of(f"test {i}", "exhaustive", FIXTURES_REQUIRED=[f"library {i % 3}"], COST=5) for i in range(12)]
        tests += [test_of(f"library {i}", "exhaustive", FIXTURES_SETUP=[f"library {i}"], COST=100) for i in range(3)]
        tests += [test_of(f"another {i}", "exhaustive") for i in range(20)]
        parts = [run_tests.chosen(tests, part) for part in range(run_tests.PARTS)]
        self.assertEqual(sorted(number for part in parts for number in part), list(range(1, len(tests) + 1)))
        for library in range(3):
            users = {number for number in range(1, 13) if (number - 1) % 3 == library} | {13 + library}
            self.assertEqual([users & set(part) for part in parts if users & set(part)], [users])

    def test_parts_cost_alike(self):
        costs = [112, 104, 99, 61, 56] + [30] * 20 + [1] * 200
        tests = [test_of(f"test {i}", "exhaustive", COST=cost) for i, cost in enumerate(costs)]
        sums = [sum(costs[number - 1] for number in run_tests.chosen(tests, part)) for part in range(run_tests.PARTS)]
        self.assertLessEqual(max(sums) - min(sums), 1)

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
