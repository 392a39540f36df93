#!/usr/bin/env python3
"""The Python package `weft` (scripts/python) against the built program: rows of every kind, errors, the end of the program
with its parent, a kill -9 amid answers, and the examples of docs/python.md and docs/classify.md.

Usage: python_test.py WEFT_BINARY|installed SOURCE_FOLDER [unittest arguments]. `installed` takes the package and the program
of this Python's environment: those of a wheel. What needs pandas, datasets, Ray or lm-eval is skipped where they are not
installed.
"""

import csv
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = None
LAID_OUT = {"backend": "cpu", "gpu_batch_size": 5, "num_gpu_batches": 1, "percent": [100, 0, 100, 0, 100, 0], "threads": 1}
SLOW = {**LAID_OUT, "gpu_batch_size": 2, "percent": [0, 0, 100, 0, 100, 0]}  # weights come from the disk in each sweep
MANY = 24
AMID = """
import sys, weft
rows = [f"It was {number} o'clock" for number in range(%d)]
for answer in weft.generate(rows, model=sys.argv[1], output=sys.argv[2], max_tokens=24, **%r):
    print(answer["id"], flush=True)
"""


def installed(*names):
    return all(importlib.util.find_spec(name) for name in names)


def program_of(parent):
    """The id of the weft process that a process has started."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent:
                return int(folder.name)
        except OSError:
            pass
    return None


def ends_soon(process, seconds=1):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-python-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = SOURCE / "models" / "demo"

    def generate(self, rows, **options):
        return weft.generate(rows, self.model, **{"max_tokens": 4, **LAID_OUT, **options})


class Rows(Case):
    def test_strings_and_request_lines(self):
        first, second = self.generate(["The sea", "It was"], to="list")
        self.assertEqual((first["id"], second["id"]), (0, 1))
        self.assertEqual(first["usage"]["completion_tokens"], 4)
        (line,) = self.generate([{"id": "x", "prompt": "The sea", "max_tokens": 2}], to="list")
        self.assertEqual((line["id"], line["usage"]["completion_tokens"]), ("x", 2))
        self.assertTrue(first["text"].startswith(line["text"]))

    def test_columns_pass_through(self):
        rows = [{"q": "The sea", "n": 1, "when": float("nan")}, {"q": "It", "n": [2], "when": None}]
        for options, metadata in [({"prompt_column": "q"}, {"n": 1, "when": None}),
                                  ({"prompt_template": "{q} {{was}}"}, {"q": "The sea", "n": 1, "when": None})]:
            answers = self.generate(rows, to="list", **options)
            self.assertEqual(answers[0]["metadata"], metadata)
            self.assertEqual(answers[1]["metadata"]["n"], [2])

    def test_fields_that_all_rows_share(self):
        table = self.generate([{"q": "The sea", "n": 1}], prompt_column="q", fields={"max_tokens": 2, "seed": 1}, to="list")
        self.assertEqual((table[0]["usage"]["completion_tokens"], table[0]["metadata"]), (2, {"n": 1}))
        own = self.generate([{"prompt": "The sea", "max_tokens": 3}, {"prompt": "It was"}], fields={"max_tokens": 2}, to="list")
        self.assertEqual([answer["usage"]["completion_tokens"] for answer in own], [3, 2])
        null = self.generate([{"prompt": "The sea", "max_tokens": None}], fields={"max_tokens": 2}, to="list")  # counts as absent
        self.assertEqual(null[0]["usage"]["completion_tokens"], 2)
        with self.assertRaisesRegex(ValueError, "'prompt' is of one row"):
            self.generate(["x"], fields={"prompt": "y"})
        with self.assertRaisesRegex(weft.UsageError, "did you mean 'max_tokens'?"):
            list(self.generate(["x"], fields={"max_token": 2}))

    def test_answers_come_in_the_order_of_the_rows(self):
        sea, was = (answer["text"] for answer in self.generate(["The sea", "It was"], to="list"))
        self.assertNotEqual(sea, was)
        for rows, options in [([{"id": 1, "q": "The sea"}, {"id": 0, "q": "It was"}], {"prompt_column": "q"}),  # ids of a table
                              ([{"id": 9, "q": "The sea"}, {"id": 9, "q": "It was"}], {"prompt_template": "{q}"}),
                              ([{"id": 1.0, "prompt": "The sea"}, {"id": 0.0, "prompt": "It was"}], {}),  # pandas' 1 and 0
                              (["The sea", {"id": "b", "prompt": "It was"}], {})]:
            with self.subTest(rows):
                self.assertEqual([answer["text"] for answer in self.generate(rows, to="list", **options)], [sea, was])

    def test_no_rows_have_no_answers(self):
        output = self.folder / "none.jsonl"
        for rows, options in [([], {}), ((row for row in ()), {"prompt_column": "q"}), ([], {"output": output})]:
            with self.subTest(options):
                self.assertEqual(list(self.generate(rows, **options)), [])
                self.assertEqual(self.generate(rows, to="list", **options), [])
        self.assertFalse(output.exists())
        self.assertEqual(weft.score([], self.model, to="list"), [])

    def test_integers_that_json_of_the_program_lacks_are_texts(self):
        (answer,) = self.generate([{"q": "The sea", "n": 2 ** 64, "m": [-2 ** 63 - 1, 2 ** 64 - 1, True]}], prompt_column="q", to="list")
        self.assertEqual(answer["metadata"], {"n": str(2 ** 64), "m": [str(-2 ** 63 - 1), 2 ** 64 - 1, True]})

    def test_values_that_look_like_flags(self):
        self.assertEqual(self.generate(["The sea"], to="list", stop=["---", "-x"])[0]["usage"]["completion_tokens"], 4)

    def test_rows_that_make_no_request(self):
        for rows, options, words in [
                ([{"q": None}], {"prompt_column": "q"}, "row 0: column 'q' is empty"),
                ([{"q": "a"}, {"p": "b"}], {"prompt_column": "q"}, "row 1: has no column 'q'; it has p"),
                ([{"q": "a"}], {"prompt_template": "{q:>3}"}, "wanted the name of a column between braces, got {q:>3}"),
                ([{"q": "a"}], {"prompt_template": "{q"}, "prompt_template: "),
                (["a"], {"prompt_template": "{q}"}, "row 0: wanted a row with columns"),
                ([{"q": "a"}], {"prompt_template": "{q}", "prompt_column": "q"}, "not both")]:
            with self.subTest(words), self.assertRaisesRegex(ValueError, re.escape(words)):
                self.generate(rows, **options)

    def test_what_has_no_rows(self):
        for rows in ("The sea", b"The sea", {"prompt": "The sea"}):
            for to in (None, "list"):
                with self.subTest(rows, to=to), self.assertRaisesRegex(TypeError, "rows must be a list"):
                    self.generate(rows, to=to)

    def test_a_row_with_the_id_of_another_has_its_error(self):
        rows = [{"id": "x", "prompt": "The sea"}, {"id": "x", "prompt": "It was"}]
        first, second = self.generate(rows, to="list", on_bad_request="record")
        self.assertEqual(first["usage"]["completion_tokens"], 4)
        self.assertEqual(second["error"]["code"], "duplicate_custom_id")

    def test_a_generator_that_fails_ends_the_program(self):
        def rows():
            yield "The sea"
            raise OSError("gone")
        with self.assertRaisesRegex(OSError, "gone"):
            self.generate(rows())
        self.assertIsNone(program_of(os.getpid()))

    def test_scores(self):
        (answer,) = weft.score([{"prompt": "The sea", "continuation": " was"}], self.model, to="list", **LAID_OUT)
        table = weft.score([{"a": "The sea", "b": " was", "c": 3}], self.model, prompt_column="a", continuation_column="b",
                           to="list", **LAID_OUT)
        self.assertEqual(answer["logprob"], table[0]["logprob"])
        self.assertEqual(table[0]["metadata"], {"c": 3})

    def test_a_plan(self):
        plan = weft.plan(SOURCE / "configs/models/opt-1.3b.json", machine=SOURCE / "configs/machines/t4.json", prompt_len=64,
                         gen_len=8, requests=4)
        self.assertGreater(plan["predicted"]["tokens_per_second"]["total"], 0)


class Errors(Case):
    def test_the_programs_line_and_code(self):
        for call, kind, code, words in [
                (lambda: list(weft.generate(["x"], self.folder / "none")), weft.UsageError, 2, "no such folder"),
                (lambda: list(self.generate(["x"], max_tokns=1)), weft.UsageError, 2, "did you mean --max-tokens?"),
                (lambda: list(self.generate([{"prompt": 3}])), weft.UsageError, 2, "standard input:1: "),
                (lambda: weft.plan(self.folder / "none"), weft.UsageError, 2, "no such folder"),
                (lambda: list(self.generate(["x"], device_memory="1KiB", percent=[100, 0, 100, 0, 100, 0])),
                 weft.CapacityError, 4, "memory")]:
            with self.subTest(words), self.assertRaises(kind) as caught:
                call()
            self.assertEqual(caught.exception.exit_code, code)
            self.assertIn(words, caught.exception.line)

    def test_requests_without_an_answer_have_a_line(self):
        answers = self.generate([{"prompt": "The sea"}, {"prompt": 3}], on_bad_request="record", to="list")
        self.assertIn("text", answers[0])
        self.assertIn("error", answers[1])

    def test_no_program(self):
        with self.assertRaisesRegex(FileNotFoundError, "there is no such program"):
            self.generate(["x"], program=self.folder / "weft")


class Ends(Case):
    def start(self):
        self.output = self.folder / "out.jsonl"
        script = self.folder / "amid.py"
        script.write_text(AMID % (MANY, SLOW))
        return subprocess.Popen([sys.executable, script, self.model, self.output], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))  # not ignored

    def again(self):
        rows = [f"It was {number} o'clock" for number in range(MANY)]
        return self.generate(rows, output=self.output, **{**SLOW, "max_tokens": 24})

    def test_after_kill_9_nothing_is_lost_or_doubled(self):
        process = self.start()
        for _ in range(3):
            process.stdout.readline()
        program = program_of(process.pid)
        process.kill()
        process.communicate()
        there = len(self.output.read_text().splitlines())
        self.assertLess(there, MANY)
        answers = list(self.again())
        self.assertTrue(ends_soon(program))
        self.assertEqual(sorted(answer["id"] for answer in answers), list(range(MANY)))
        self.assertEqual([json.loads(line) for line in self.output.read_text().splitlines()], answers)
        self.assertEqual([answer["id"] for answer in self.again()], [answer["id"] for answer in answers])

    def test_ctrl_c_is_passed_on(self):
        process = self.start()
        process.stdout.readline()
        program = program_of(process.pid)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
        self.assertIn("KeyboardInterrupt", said)
        self.assertTrue(ends_soon(program))
        self.assertTrue(self.output.with_name("out.jsonl.inflight").exists(), "the program had no time to save")

    def test_leaving_ends_the_program(self):
        with self.generate([f"It was {n}" for n in range(MANY)], **{**SLOW, "max_tokens": 24}) as answers:
            next(answers)
            program = program_of(os.getpid())
        self.assertTrue(ends_soon(program))
        self.assertEqual(list(answers), [])

    def test_other_rows_are_refused_before_any_answer(self):
        output = self.folder / "out.jsonl"
        list(self.generate(["The sea"], output=output))
        with self.assertRaises(weft.UsageError):
            next(self.generate(["It was"], output=output))


class Tables(Case):
    @unittest.skipUnless(installed("pandas"), "pandas is not installed")
    def test_a_data_frame(self):
        import pandas
        frame = pandas.DataFrame({"q": ["The sea", "It was"], "when": [pandas.Timestamp(0), pandas.NaT]}, index=[7, 5])
        found = self.generate(frame, prompt_column="q", to="pandas")
        self.assertEqual(list(found.index), [7, 5])
        self.assertEqual(list(found["when"]), list(frame["when"]))
        self.assertEqual([found.loc[7, "answer"], found.loc[5, "answer"]],
                         [answer["text"] for answer in self.generate(list(frame["q"]), to="list")])
        with self.assertRaisesRegex(ValueError, "there is no column 'prompt' in q, when"):
            self.generate(frame)
        other = pandas.DataFrame({"prompt": ["The sea"], "continuation": ["x"]})  # a column like any other
        self.assertEqual(self.generate(other, to="list")[0]["metadata"], {"continuation": "x"})
        none = self.generate(frame[:0], prompt_column="q", to="pandas")
        self.assertEqual((list(none.columns), len(none)), (["q", "when", "answer"], 0))
        scores = weft.score(pandas.DataFrame({"prompt": [], "continuation": []}), self.model, to="pandas")
        self.assertEqual(list(scores.columns), ["prompt", "continuation", "answer_logprob"])
        refused = self.generate(frame, prompt_column="q", to="pandas", fields={"n": 2}, on_bad_request="record")
        self.assertEqual((refused["answer"].isna().tolist(), refused["answer_error"].notna().tolist()), ([True] * 2, [True] * 2))
        for rows in found, [{"q": "a", "answer_error": 1}]:
            with self.assertRaisesRegex(ValueError, "have a column 'answer"):  # before any work
                self.generate(rows, prompt_column="q", to="pandas", program="/nowhere")
        with self.assertRaisesRegex(ValueError, "two columns are called 'q'"):
            self.generate(pandas.DataFrame([["a", "b"]], columns=["q", "q"]), prompt_column="q")

    @unittest.skipUnless(installed("datasets"), "datasets is not installed")
    def test_a_dataset(self):
        import datasets
        dataset = datasets.Dataset.from_dict({"q": ["The sea", "It was"], "n": [1, 2]})
        found = self.generate(dataset, prompt_template="{q} {n}", to="dataset")
        self.assertEqual(found.column_names[:3], ["q", "n", "answer"])
        self.assertEqual(found["n"], dataset["n"])
        self.assertEqual(self.generate(dataset.select([]), prompt_column="q", to="dataset").column_names, ["q", "n", "answer"])


TASK = """
task: tiny_%(name)s
dataset_path: json
dataset_kwargs: {data_files: %(data)s}
test_split: train
output_type: %(type)s
doc_to_text: "{{question}}"
doc_to_target: %(target)s
%(more)s
"""


class Harness(Case):
    """lm-evaluation-harness from its own command line, with tasks of local files."""

    @unittest.skipUnless(installed("lm_eval", "datasets", "transformers"), "lm-eval is not installed")
    def test_tasks_of_local_files(self):
        data = [{"question": "The sea was", "choices": [" calm", " quarrel"], "gold": 0},
                {"question": "It was a dark", "choices": [" carpet", " night"], "gold": 1},
                {"question": "He said", "choices": [" that", " the"], "gold": 1}]
        (self.folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
        for name, kind, target, more in [
                ("choices", "multiple_choice", "gold", 'doc_to_choice: "{{choices}}"\nmetric_list: [{metric: acc}]'),
                ("until", "generate_until", '" x"', "generation_kwargs: {until: ['.'], max_gen_toks: 4, do_sample: false}\n"
                 "metric_list: [{metric: exact_match}]")]:
            (self.folder / f"{name}.yaml").write_text(TASK % {"name": name, "data": self.folder / "data.jsonl", "type": kind,
                                                              "target": target, "more": more})
        done = subprocess.run(
            [sys.executable, "-m", "weft.lm_eval", "run", "--model", "weft", "--model_args",
             f"model={self.model},backend=cpu,threads=1", "--tasks", "tiny_choices,tiny_until", "--include_path", self.folder,
             "--output_path", self.folder / "results", "--log_samples"],
            capture_output=True, text=True, timeout=300,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(self.folder / "hub")})
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        (found,) = (self.folder / "results").glob("**/results_*.json")
        results = json.loads(found.read_text())["results"]
        pairs = [{"prompt": row["question"], "continuation": choice} for row in data for choice in row["choices"]]
        scores = [score["logprob"] for score in weft.score(pairs, self.model, to="list", **LAID_OUT)]
        right = [(scores[2 * n + 1] > scores[2 * n]) == bool(row["gold"]) for n, row in enumerate(data)]
        self.assertAlmostEqual(results["tiny_choices"]["acc,none"], sum(right) / len(right))
        (samples,) = (self.folder / "results").glob("**/samples_tiny_until_*.jsonl")
        texts = [json.loads(line)["resps"][0][0] for line in samples.read_text().splitlines()]
        wanted = self.generate([row["question"] for row in data], stop=".", to="list")
        self.assertEqual(texts, [answer["text"] for answer in wanted])


class Page(Case):
    """The examples of pages, one after another in a folder."""

    def test_python(self):
        self.run_page("python.md", 5)

    def test_classify(self):
        for rows in "4", "8":  # as the page says: fewer rows first, in the same folder
            self.run_page("classify.md", 5, ROWS=rows)
        made, classified = ([row for row in csv.DictReader((self.folder / "build" / name).read_text().splitlines())]
                            for name in ("tickets.csv", "classified.csv"))
        self.assertEqual([{**row, "label": None} for row in classified], [{**row, "label": None} for row in made])
        self.assertEqual(len(made), 8)

    def setUp(self):
        super().setUp()
        for link in "configs", "models":
            (self.folder / link).symlink_to(SOURCE / link)
        (self.folder / "build").mkdir()

    def run_page(self, name, least, **variables):
        examples = re.findall(r"(?ms)^```python\n(.*?)^```", (SOURCE / "docs" / name).read_text())
        self.assertGreaterEqual(len(examples), least)
        for example in examples:
            others = set(re.findall(r"(?m)^import (\w+)", example)) - {"weft"}
            if not installed(*others):
                print(f"skipped, wants {', '.join(sorted(others))}: {example.splitlines()[0]}", flush=True)
                continue
            done = subprocess.run([sys.executable, "-c", example], cwd=self.folder, capture_output=True, text=True, timeout=120,
                                  env={**os.environ, **variables})
            self.assertEqual(done.returncode, 0, example + done.stderr)


class Package(Case):
    def test_the_version_is_the_programs(self):
        (version,) = re.findall(r"project\(weft VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())
        self.assertEqual(weft.__version__, version)


if __name__ == "__main__":
    SOURCE = pathlib.Path(sys.argv[2]).resolve()
    os.environ.update({"PYTHONDONTWRITEBYTECODE": "1", "RAY_USAGE_STATS_ENABLED": "0"})
    if sys.argv[1] != "installed":
        package = str(SOURCE / "scripts" / "python")
        os.environ.update({"WEFT": os.path.abspath(sys.argv[1]), "PYTHONPATH": package})
        sys.path.insert(0, package)
    import weft
    print(f"{weft.find_program()}, from {weft.__file__}", flush=True)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
