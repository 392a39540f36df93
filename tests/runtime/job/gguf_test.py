#!/usr/bin/env python3
"""GGUF files (tests/data/gguf) as a user meets them: every command takes them, a run continues, and what is wrong with one is
named. Also models by their name in the cache of the Hugging Face Hub.

Usage: gguf_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import Weft, read_lines, read_safetensors, write_lines  # noqa: E402

WEFT = None
GGUF = None
USAGE, DATA = 2, 3
REQUESTS = [{"id": i, "prompt_ids": [3, i + 1, 5], "max_tokens": 6} for i in range(5)]
PLACEMENT = ("--gpu-batch-size", "2", "--num-gpu-batches", "2", "--percent", "0", "50", "100", "0", "100", "0")


def run(*arguments):
    return WEFT.run(*arguments, text=True)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-gguf-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "disk").mkdir()
        write_lines(self.folder / "in.jsonl", REQUESTS)

    def answers(self, model, *flags):
        output = self.folder / "out.jsonl"
        for file in self.folder.glob("out.jsonl*"):
            file.unlink()
        done = run("generate", "--model", model, "--input", self.folder / "in.jsonl", "--output", output, "--disk-dir",
                   self.folder / "disk", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {line["id"]: line["token_ids"] for line in read_lines(output)}, done.stderr

    def refused(self, code, words, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_answers_are_those_of_the_numbers_wherever_the_weights_are(self):
        exact = ("--dtype", "float32", "--weight-dtype", "float32")
        wanted, _ = self.answers(GGUF / "llama-mixed", "--dtype", "float32")
        self.assertEqual(self.answers(GGUF / "llama-parts-00001-of-00003.gguf", *exact, *PLACEMENT)[0], wanted)
        own, log = self.answers(GGUF / "llama-mixed.gguf", *PLACEMENT)
        self.assertIn("llama-mixed.gguf: Q8_0 is unpacked to float16, which rounds its numbers", log)
        packed = self.folder / "packed"
        done = run("convert", "--model", GGUF / "llama-mixed.gguf", "--output", packed)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.answers(packed)[0], own)

    def test_blocks_of_256_numbers_answer_as_their_numbers_do(self):
        model = GGUF / "llama-256.gguf"
        wanted, _ = self.answers(GGUF / "llama-256", "--dtype", "float32")
        exact, _ = self.answers(model, "--dtype", "float32", "--weight-dtype", "float32", *PLACEMENT)
        self.assertEqual(exact, wanted)
        own, log = self.answers(model)
        for line in ("IQ4_XS, Q2_K keeps its levels, with scales and minima rounded to float16",
                     "Q3_K is unpacked to float16, which rounds its numbers"):  # the embedding is
            self.assertIn(f"llama-256.gguf: {line}\n", log)
        self.assertEqual(self.answers(model, *PLACEMENT)[0], own)  # on the disk
        packed = self.folder / "packed"
        self.assertEqual(run("convert", "--model", model, "--output", packed).returncode, 0)
        self.assertEqual(self.answers(packed, *PLACEMENT)[0], own)

    def test_a_copy_has_all_experts_in_one_tensor_where_transformers_has(self):
        exact = ("--dtype", "float32", "--weight-dtype", "float32")
        for name, shapes in (("gpt-oss-bf16.gguf", {"mlp.experts.gate_up_proj": 3, "mlp.experts.gate_up_proj_bias": 2,
                                                    "mlp.experts.down_proj": 3, "mlp.experts.down_proj_bias": 2}),
                             ("gemma4-experts-f32.gguf", {"experts.gate_up_proj": 3, "experts.down_proj": 3})):
            copy = self.folder / name
            self.assertEqual(run("convert", "--model", GGUF / name, "--output", copy, *exact).returncode, 0)
            header, _ = read_safetensors(copy / "model.safetensors")
            found = {tensor: len(header[tensor]["shape"]) for tensor in header if ".experts." in tensor}
            self.assertEqual({tensor.split(".0.", 1)[1]: size for tensor, size in found.items() if ".0." in tensor}, shapes)
            self.assertEqual(self.answers(copy, *exact)[0], self.answers(GGUF / name, *exact)[0])

    def test_a_copy_has_each_expert_in_a_tensor_of_its_own(self):
        model = GGUF / "mixtral-f16.gguf"
        for flags in (("--weight-dtype", "float16"), ("--dtype", "float32", "--weight-dtype", "float32")):
            copy = self.folder / flags[-1]
            self.assertEqual(run("convert", "--model", model, "--output", copy, *flags).returncode, 0)
            header, _ = read_safetensors(copy / "model.safetensors")
            names = [name for name in header if "experts" in name]
            self.assertIn("model.layers.0.block_sparse_moe.experts.1.w2.weight", names)
            self.assertTrue(all(len(header[name]["shape"]) == 2 and "*" not in name for name in names), names)
            self.assertEqual(self.answers(copy, *flags)[0], self.answers(model, *flags)[0])

    def test_groups_of_16_and_of_32_live_in_one_model(self):
        model = GGUF / "llama-k.gguf"
        wanted, _ = self.answers(GGUF / "llama-k", "--dtype", "float32")
        self.assertEqual(self.answers(model, "--dtype", "float32", "--weight-dtype", "float32", *PLACEMENT)[0], wanted)
        own, log = self.answers(model, "--weight-arithmetic", "exact")
        self.assertIn("llama-k.gguf: Q2_K, Q4_K, Q5_K, Q6_K keeps its levels, with scales and minima rounded to float16\n", log)
        self.assertEqual(self.answers(model, "--weight-arithmetic", "exact", *PLACEMENT)[0], own)  # on the disk
        packed = self.folder / "packed"
        self.assertEqual(run("convert", "--model", model, "--output", packed).returncode, 0)
        config = json.loads((packed / "config.json").read_text())["quantization_config"]
        layer = "layers.0."
        self.assertEqual((config["version"], config["group_size"], config["dtype"], config["head_dtype"]), (4, 32, "int4", "int8"))
        self.assertEqual(config["modules_by_group_size"], {"16": sorted(
            ["lm_head.weight", layer + "self_attn.k_proj.weight", layer + "self_attn.v_proj.weight", layer + "mlp.gate_proj.weight"])})
        self.assertEqual(self.answers(packed, "--weight-arithmetic", "exact", *PLACEMENT)[0], own)
        (packed / "config.json").write_text((packed / "config.json").read_text().replace('"16": [', '"64": ['))
        self.refused(DATA, ["packed"], "inspect", packed)

    def test_a_gemma_4_answers_as_its_folder_does(self):
        prompts = [{"id": i, "prompt_ids": [(7 * i + 3 * j) % 128 + 3 for j in range(length)], "max_tokens": 12, "logprobs": 10,
                    "prompt_logprobs": 5} for i, length in enumerate((2, 15, 40, 70))]  # windows have 16 tokens
        write_lines(self.folder / "in.jsonl", prompts)
        for file, folder in (("gemma4-bf16", "gemma4-slides-bf16"), ("gemma4-experts-f32", "gemma4-slides-experts-f32"),
                             ("gemma4-shared-bf16", "gemma4-slides-shared-bf16")):
            lines = []
            for model in (GGUF / f"{file}.gguf", GGUF.parent / "golden" / folder):
                self.answers(model, "--dtype", "float32", *PLACEMENT)
                lines.append(sorted((self.folder / "out.jsonl").read_text().splitlines()))
            self.assertEqual(len(lines[0]), len(prompts))
            self.assertEqual(*lines)

    def test_arithmetic_is_chosen_for_what_the_file_holds(self):
        wanted, _ = self.answers(GGUF / "llama-mixed", "--dtype", "float32")
        exact, _ = self.answers(GGUF / "llama-mixed.gguf", "--dtype", "float32", "--weight-arithmetic", "exact", "--report",
                                self.folder / "report.json")
        self.assertEqual(exact, wanted)
        self.assertEqual(json.loads((self.folder / "report.json").read_text())["policy"]["weights"]["arithmetic"], "exact")
        rounded = run("generate", "--model", GGUF / "llama-mixed.gguf", "--input", self.folder / "in.jsonl", "--output",
                      self.folder / "rounded.jsonl", "--weight-arithmetic", "bfloat16", "--report", self.folder / "report.json")
        if rounded.returncode == 0:
            self.assertEqual(json.loads((self.folder / "report.json").read_text())["policy"]["weights"]["arithmetic"], "bfloat16")
        else:
            self.assertIn("this processor does not multiply bfloat16 numbers", rounded.stderr)
        self.refused(USAGE, ["is only for --weight-dtype int8, int4 and bfloat16, and for models that have such weights"],
                     "generate", "--model", GGUF / "llama-f16.gguf", "--input", self.folder / "in.jsonl", "--output",
                     self.folder / "none.jsonl", "--weight-arithmetic", "exact")
        # What counts is the type that --dtype makes of it.
        of_bfloat16, _ = self.answers(GGUF / "llama-f16.gguf", "--dtype", "bfloat16", "--weight-arithmetic", "exact")
        self.assertEqual(of_bfloat16, self.answers(GGUF / "llama-f16.gguf", "--weight-dtype", "bfloat16",
                                                   "--weight-arithmetic", "exact", "--dtype", "bfloat16")[0])

    def test_a_vocabulary_alone_gives_its_ids(self):
        self.refused(DATA, ["has no matrix 'token_embd.weight', so it holds no model"], "plan", "--model", GGUF / "vocab-llama2.gguf",
                     "--prompt-len", "8", "--gen-len", "8")
        text = self.folder / "text.jsonl"
        write_lines(text, [{"id": 0, "text": "Hello world, 123"}])
        of_gguf = run("tokenize", "--model", GGUF / "vocab-llama2.gguf", "--input", text, "--output", "-")
        of_folder = run("tokenize", "--model", GGUF.parent / "tokenizer" / "llama2", "--input", text, "--output", "-")
        self.assertEqual(of_gguf.stdout, of_folder.stdout)

    def test_inspect_and_plan_say_what_is_there(self):
        done = run("inspect", GGUF / "llama-mixed.gguf")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("llama: 1 layers", "context 128", "architecture llama", "2 Q4_0", "3 F32", "quantised: GGUF"):
            self.assertIn(word, done.stdout)
        self.answers(GGUF / "llama-mixed.gguf", *PLACEMENT)
        done = run("inspect", GGUF / "llama-mixed.gguf", "--disk-dir", self.folder / "disk")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("packed copy: ", done.stdout)
        done = run("plan", "--model", GGUF / "llama-mixed.gguf", "--machine", GGUF.parents[2] / "configs/machines/t4.json",
                   "--prompt-len", "8", "--gen-len", "8")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_changed_file_is_not_resumed(self):
        model = self.folder / "m.gguf"
        shutil.copy(GGUF / "llama-mixed.gguf", model)
        self.answers(model)
        data = bytearray(model.read_bytes())
        data[-1] ^= 1
        model.write_bytes(data)
        self.refused(USAGE, ["m.gguf"], "generate", "--model", model, "--input", self.folder / "in.jsonl", "--output",
                     self.folder / "out.jsonl", "--resume", "--max-tokens", "9")

    def test_what_is_wrong_is_named(self):
        broken = self.folder / "broken.gguf"
        data = (GGUF / "llama-mixed.gguf").read_bytes()
        for content, words in ((data[:100], ["broken.gguf", "more"]), (data[:-1], ["ends beyond the file"]),
                               (data.replace(b"general.architecture", b"general.architectyre"), ["general.architecture"]),
                               (data.replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"), ["'blk.0.attn_x.weight' is in no layer"])):
            broken.write_bytes(content)
            self.refused(DATA, words, "inspect", broken)
        self.refused(DATA, ["give the first"], "inspect", GGUF / "llama-parts-00002-of-00003.gguf")

    def test_a_model_is_found_in_the_cache_of_the_hub(self):
        snapshots = self.folder / "cache" / "models--weft--tiny" / "snapshots"
        (snapshots.parent / "refs").mkdir(parents=True)
        shutil.copytree(GGUF / "llama-mixed", snapshots / "abc")
        (snapshots.parent / "refs" / "main").write_text("abc")
        with mock.patch.dict(os.environ, {"HF_HUB_CACHE": str(self.folder / "cache")}):
            found, _ = self.answers("weft/tiny")
            self.assertIn("llama: 1 layers", run("inspect", "weft/tiny").stdout)
            self.refused(USAGE, ["hf download weft/none"], "generate", "--model", "weft/none", "--input", self.folder / "in.jsonl",
                         "--output", self.folder / "none.jsonl")
        self.assertEqual(len(found), len(REQUESTS))


if __name__ == "__main__":
    WEFT = Weft(sys.argv.pop(1))
    GGUF = pathlib.Path(sys.argv.pop(1)).resolve() / "tests" / "data" / "gguf"
    unittest.main()
