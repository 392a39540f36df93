#!/usr/bin/env python3
"""What a user types first, where a GPU is: the commands of README.md and of quickstart.sh, and the policies of
configs/policies, on the simulated GPU. The demo model is a stand-in of its shape, but narrower, and answers are shorter, so
that this takes seconds.

Usage: first_commands_test.py WEFT_SIM SOURCE_FOLDER [unittest arguments]
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

WEFT = SOURCE = None
OVERHEAD = 1 << 30  # bytes of a device that its context and libraries take; 0.93 GB were measured


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-first-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        config = json.loads((SOURCE / "models/demo/config.json").read_text())
        narrow = {key: config[key] for key in ("num_hidden_layers", "num_attention_heads", "vocab_size",
                                               "max_position_embeddings", "eos_token_id")}
        demo = write_tiny_model(cls.folder / "demo", **narrow, hidden_size=32, word_embed_proj_dim=32, ffn_dim=32)
        for file in (SOURCE / "models/demo").iterdir():
            if file.name not in ("config.json", "model.safetensors"):
                shutil.copy(file, demo)
        (cls.folder / "models").mkdir()
        demo.rename(cls.folder / "models/demo")
        (cls.folder / "configs/examples").mkdir(parents=True)
        for name in "machines", "models", "policies":
            (cls.folder / "configs" / name).symlink_to(SOURCE / "configs" / name)
        for file in (SOURCE / "configs/examples").iterdir():
            short = re.sub(r'"max_tokens": \d+', '"max_tokens": 5', file.read_text())
            (cls.folder / "configs/examples" / file.name).write_text(short)
        machine = json.loads((SOURCE / "configs/machines/h100.json").read_text())
        machine["memory"]["device_overhead"] = OVERHEAD
        (cls.folder / "machine.json").write_text(json.dumps(machine))
        # What leaves something open plans with that file: to measure the simulated GPU, however briefly, takes minutes.
        cls.weft = cls.folder / "weft"
        cls.weft.write_text(f"""#!/bin/sh
case "$1" in generate | score) exec {WEFT} "$@" --machine {cls.folder}/machine.json ;; esac
exec {WEFT} "$@"
""")
        cls.weft.chmod(0o755)

    def run_weft(self, *flags):
        done = subprocess.run([self.weft, *map(str, flags)], capture_output=True, text=True, timeout=120, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("cusim:", done.stderr)
        return done


class Commands(Case):
    def test_of_the_readme(self):
        docs_test.WEFT, docs_test.LINKS = str(self.weft), {name: self.folder / name for name in ("models", "configs")}
        commands = [command for command in docs_test.commands("README.md") if docs_test.runs_here(command)]
        self.assertGreaterEqual(sum("generate" in command for command in commands), 2)
        self.assertEqual(docs_test.run_page("README.md"), [])

    def test_of_quickstart(self):
        script = (SOURCE / "scripts/quickstart.sh").read_text().replace("\\\n", "")
        command = re.search(r"(?m)^build/release/weft (generate .*)$", script).group(1)
        flags = command.replace("$out", str(self.folder)).replace('"', "").split()
        done = self.run_weft(*flags, "-v")
        self.assertRegex(done.stderr, r"backend cuda: --backend auto found a GPU")
        self.assertEqual(len((self.folder / "answers.jsonl").read_text().splitlines()), 12)
        report = json.loads((self.folder / "report.json").read_text())
        for kind in "weights", "kv", "activations":
            for tier in "device", "host", "disk":
                self.assertGreater(report["placement"][kind][tier]["bytes"], 0, (kind, tier))


class Policies(Case):
    def test_each_runs_or_fits(self):
        for policy in sorted((SOURCE / "configs/policies").glob("*.json")):
            with self.subTest(policy.name):
                size = re.match(r"opt-([\d.]+[bm])", policy.name)
                if size:
                    self.run_weft("plan", "--model", f"configs/models/opt-{size.group(1)}.json", "--policy", policy,
                                  "--machine", "machine.json", "--prompt-len", 512, "--gen-len", 32)
                elif policy.name.startswith("smollm2"):
                    continue  # its model is not in configs/models; its retention is read by policy_test.cc
                else:
                    self.run_weft("generate", "--model", "models/demo", "--input", "configs/examples/prompts.jsonl",
                                  "--output", self.folder / f"{policy.stem}.jsonl", "--policy", policy, "--backend", "cuda",
                                  "--gpu-batch-size", 4, "--num-gpu-batches", 3, "--disk-dir", self.folder)


class Refusals(Case):
    def test_a_budget_below_the_context_names_it(self):
        done = subprocess.run([WEFT, "bench", "--model", "models/demo", "--prompt-len", "8", "--gen-len", "8", "--backend",
                               "cuda", "--device-memory", "64MiB", "--gpu-batch-size", "2", "--num-gpu-batches", "1"],
                              capture_output=True, text=True, timeout=120, cwd=self.folder)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertRegex(done.stderr, r"needs [\d.]+ MiB on device, the budget is 64\.00 MiB \([\d.]+ MiB of it are what the "
                                      r"GPU's context and libraries take\)")


if __name__ == "__main__":
    WEFT, SOURCE = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    sys.path[:0] = [str(SOURCE / "tests/scripts"), str(SOURCE / "tests/support")]
    import docs_test
    from weft_process import write_tiny_model

    docs_test.SOURCE = SOURCE
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
