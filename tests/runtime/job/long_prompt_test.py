#!/usr/bin/env python3
"""Prompts that are longer than a chunk: the same bytes as in one chunk, and memory that hardly grows with the prompt.

Usage: long_prompt_test.py WEFT_BINARY SOURCE_FOLDER [--full] [unittest arguments]

With --full a prompt of 100,000 tokens is attended to as a whole and evicted by its scores. Otherwise layers have windows.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, write_lines  # noqa: E402

WEFT = None
FULL = False
MIB = 1 << 20
LONG = 100_000
SHAPE = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "torch_dtype": "float16", "hidden_size": 256,
         "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 500,
         "max_position_embeddings": 131072, "sliding_window": 256, "bos_token_id": 1, "eos_token_id": 2}
# A layer of the shape above attends to all of a prompt in about a minute on two cores.
NARROW = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 1, "sliding_window": None}


class LongPrompts(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-long-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.config, self.input = self.folder / "config.json", self.folder / "in.jsonl"
        self.report = self.folder / "report.json"
        self.config.write_text(json.dumps(SHAPE))

    def write_prompts(self, *lengths, common=0):
        dice = random.Random(7)
        prefix = [dice.randrange(3, 500) for _ in range(common)]
        write_lines(self.input, [{"id": i, "prompt_ids": prefix + [dice.randrange(3, 500) for _ in range(length - common)],
                                  "max_tokens": 3, "logprobs": 1} for i, length in enumerate(lengths)])

    def command(self, output, *flags):
        return ["generate", "--model", self.config, "--weights", "random:1", "--input", self.input, "--output", output,
                "--backend", "cpu", "--percent", *[100, 0] * 3, "--gpu-batch-size", 4, "--num-gpu-batches", 1, "--report",
                self.report, "--quiet", *flags]

    def answers(self, output, *flags):
        done = WEFT.run(*self.command(output, *flags))
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return sorted(output.read_bytes().splitlines())

    def peak(self, *flags):
        """The peak resident bytes of a run besides its weights and its KV cache."""
        process = WEFT.start(*self.command(self.folder / f"out{len(list(self.folder.iterdir()))}", *flags))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said = process.stderr.read().decode()
        process.stderr.close()
        self.assertEqual(process.returncode, 0, said)
        placement = json.loads(self.report.read_text())["placement"]
        return usage.ru_maxrss * 1024 - sum(tier["bytes"] for kind in ("weights", "kv") for tier in placement[kind].values())

    def test_the_same_bytes(self):
        self.write_prompts(1000, 64, 1, 2500, 700)
        for retention in ("full", "h2o:0.1:0.1", "snapkv:0.1:0.1"):
            with self.subTest(retention=retention):
                whole = self.answers(self.folder / f"{retention}-whole", "--max-num-batched-tokens", 1 << 20, "--retention",
                                     retention)
                for tokens in (64, 1000):
                    self.assertEqual(whole, self.answers(self.folder / f"{retention}-{tokens}", "--max-num-batched-tokens",
                                                         tokens, "--retention", retention))

    def test_killed(self):
        self.write_prompts(*[1500 + 10 * i for i in range(12)], common=1200)
        whole = self.answers(self.folder / "whole")
        output, flags = self.folder / "killed", ["--max-num-batched-tokens", 256, "--checkpoint-every", "0.05s"]
        for moment in range(3):
            process = WEFT.start(*self.command(output, *(["--resume"] if moment else []), *flags))
            time.sleep(0.2 + 0.2 * moment)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=HANGS)
        self.assertEqual(self.answers(output, "--resume", *flags), whole)

    def test_memory(self):
        if FULL:
            self.config.write_text(json.dumps({**SHAPE, **NARROW}))
        rule = ["--retention", "h2o:0.01:0.01"] if FULL else []
        self.write_prompts(LONG)
        peak = self.peak(*rule)
        # A token takes 4 bytes a number of hidden states and, in the layer at hand, 2 a number of keys and of values.
        hidden, kv = LONG * 256 * 4, LONG * (64 if FULL else 256) * 4
        print(f"{LONG} tokens: {peak / MIB:.0f} MiB besides weights and KV, {(hidden + kv) / MIB:.0f} of them the prompt's")
        self.assertLess(peak, hidden + kv + 100 * MIB)
        self.assertLess(peak, 1024 * MIB)
        if FULL:
            return
        # Four such prompts begin one after another.
        self.write_prompts(*[LONG - i for i in range(4)])
        self.assertLess(self.peak(*rule, "--max-num-batched-tokens", 2048), hidden + kv + 110 * MIB)

    def test_refusals(self):
        self.write_prompts(10)
        for tokens in (63, 0, -1):
            done = WEFT.run(*self.command(self.folder / "out", "--max-num-batched-tokens", tokens))
            self.assertEqual(done.returncode, 2, done.stderr.decode())
            self.assertIn(f"--max-num-batched-tokens must be from 64 to 1073741824, got {tokens}", done.stderr.decode())


if __name__ == "__main__":
    WEFT = Weft(sys.argv[1])
    FULL = "--full" in sys.argv
    unittest.main(argv=[sys.argv[0], *[argument for argument in sys.argv[3:] if argument != "--full"]])
