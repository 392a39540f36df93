#!/usr/bin/env python3
"""Checkpoints of 4 bits that others wrote (tests/data/quantised), and of 8 bits, as a user meets them: every command takes
them, and what is wrong with one is named.

Usage: foreign_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import pathlib
import random
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from foreign import DATA, LLAMA_Q, OPT_Q, REQUESTS, USAGE, Case, File, cut, main, put, typed, without  # noqa: E402
from weft_process import read_lines, write_lines  # noqa: E402

GPTQ, AWQ, CT, CT_BYTES = "opt-gptq-asym-f16", "qwen2-awq-f16", "llama-ct-asym-f16", "qwen2-ct-asym-bytes-bf16"
GPTQ_8, CT_8, GPTQ_96 = "llama-gptq-8-f16", "qwen2-ct-8-asym-f16", "llama-gptq-96-f16"


class Uses(Case):
    def test_placements_and_copies_give_the_same_answers(self):
        for name in (GPTQ, AWQ, CT, GPTQ_8, CT_8, GPTQ_96):
            with self.subTest(name=name):
                model, packed = self.golden / name, self.folder / f"packed-{name}"
                done = self.weft.run("convert", "--model", model, "--output", packed)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads((packed / "config.json").read_text())["quantization_config"]["quant_method"], "weft")
                wanted = self.answers(model, "--percent", 100, 0, 100, 0, 100, 0)
                for percent in ((0, 100, 100, 0, 100, 0), (0, 0, 100, 0, 100, 0), (30, 30, 0, 0, 0, 0)):
                    self.assertEqual(self.answers(model, "--percent", *percent), wanted)
                    self.assertEqual(self.answers(packed, "--percent", *percent), wanted)

    def test_what_stays_in_16_bits_does_so_in_a_copy(self):
        packed = self.folder / "packed"
        self.assertEqual(self.weft.run("convert", "--model", self.golden / CT, "--output", packed).returncode, 0)
        config = json.loads((packed / "config.json").read_text())
        self.assertEqual(config["quantization_config"]["modules_to_not_convert"], ["layers.1.mlp.down_proj.weight"])

    def test_other_formats(self):
        model, plain = self.golden / GPTQ, self.folder / "plain"
        self.assertEqual(self.weft.run("convert", "--model", model, "--output", plain, "--weight-dtype", "float16").returncode, 0)
        self.assertNotIn("quantization_config", json.loads((plain / "config.json").read_text()))
        self.assertEqual(self.answers(plain), self.answers(model, "--weight-dtype", "float16"))
        self.assertEqual(len(self.answers(model, "--weight-dtype", "int8")), len(REQUESTS))
        self.refused(USAGE, model, ["--weight-dtype int4", "groups of 64", "leave the flag out"], "--weight-dtype", "int4",
                     "--weight-group", 32)
        self.assertEqual(self.answers(model, "--weight-dtype", "int4", "--weight-group", 64), self.answers(model))

    def test_inspect_says_how(self):
        for name, words in ((GPTQ, ["GPTQ", "groups of 64", "12 matrices", "bits a number"]), (AWQ, ["AWQ", "groups of 32"]),
                            (CT, ["compressed-tensors", "13 matrices", "2 matrices and tables are not"]),
                            (GPTQ_8, ["GPTQ", "8 bits in groups of 32"]), (GPTQ_96, ["4 bits in groups of 96"])):
            done = self.weft.run("inspect", self.golden / name)
            self.assertEqual(done.returncode, 0, done.stderr)
            for word in words:
                self.assertIn(word, done.stdout.decode())
        packed = self.folder / "packed"
        self.weft.run("convert", "--model", self.golden / AWQ, "--output", packed)
        self.assertIn("by weft convert, int4 in groups of 32", self.weft.run("inspect", packed).stdout.decode())


class BadFiles(Case):
    def test_tensors_that_are_missing_or_of_another_shape(self):
        for name, stem, parts in ((GPTQ, OPT_Q, ("scales", "qzeros")), (AWQ, LLAMA_Q, ("scales", "qzeros")),
                                  (CT, LLAMA_Q, ("weight_scale", "weight_zero_point", "weight_shape")),
                                  (GPTQ_8, LLAMA_Q, ("scales", "qzeros")), (CT_8, LLAMA_Q, ("weight_scale", "weight_zero_point"))):
            for part in parts:
                self.bad(name, without(f"{stem}.{part}"), [f"{stem}.{part}", "is missing"])
        self.bad(GPTQ, without(f"{OPT_Q}.qweight"), [f"{OPT_Q}.weight", "is missing"])
        for name, tensor in ((GPTQ, f"{OPT_Q}.scales"), (GPTQ, f"{OPT_Q}.qzeros"), (GPTQ, f"{OPT_Q}.qweight"), (GPTQ, f"{OPT_Q}.g_idx"),
                             (AWQ, f"{LLAMA_Q}.scales"), (AWQ, f"{LLAMA_Q}.qweight"), (CT, f"{LLAMA_Q}.weight_scale"),
                             (CT, f"{LLAMA_Q}.weight_packed"), (CT, f"{LLAMA_Q}.weight_zero_point"), (GPTQ_8, f"{LLAMA_Q}.qweight"),
                             (GPTQ_8, f"{LLAMA_Q}.qzeros"), (CT_8, f"{LLAMA_Q}.weight_packed"), (GPTQ_96, f"{LLAMA_Q}.scales")):
            self.bad(name, cut(tensor, 0), [f"'{tensor}' is [", "wanted ["])
        self.bad(GPTQ, typed(f"{OPT_Q}.qweight", "F32"), ["qweight", "stored as F32, wanted I32"])
        self.bad(CT, typed(f"{LLAMA_Q}.weight_packed", "F32"), ["weight_packed", "stored as F32, wanted I32"])

    def test_numbers_that_cannot_be(self):
        infinity = b"\x00\x7c"
        self.bad(GPTQ, put(f"{OPT_Q}.scales", 2 * 7, infinity), [f"{OPT_Q}.scales", "row 7, group 0", "not finite"])
        self.bad(AWQ, put(f"{LLAMA_Q}.scales", 2 * (64 + 3), infinity), [f"{LLAMA_Q}.scales", "row 3, group 1", "not finite"])
        self.bad(CT, put(f"{LLAMA_Q}.weight_scale", 2 * 5, infinity), [f"{LLAMA_Q}.weight_scale", "row 5, group 0", "not finite"])
        self.bad(GPTQ, put(f"{OPT_Q}.scales", 0, b"\xff\x7b"), [f"{OPT_Q}.weight", "row 0", "too large for float16"])
        self.bad(GPTQ, put(f"{OPT_Q}.qzeros", 4, b"\xff"), ["qzeros", "row 8, group 0", "out of range", "gptq_v2"])
        self.bad(GPTQ_8, put(f"{LLAMA_Q}.qzeros", 6, b"\xff"), ["qzeros", "row 6, group 0", "out of range: 255", "gptq_v2"])
        self.bad(GPTQ_96, put(f"{LLAMA_Q}.scales", 2 * 5, infinity), [f"{LLAMA_Q}.scales", "row 5, group 0", "not finite"])
        stem = f"{LLAMA_Q}.weight_zero_point"
        self.bad(CT_BYTES, put(stem, 3, b"\x08"), [stem, "row 3, group 0", "out of range: 8, wanted -8 to 7"])
        self.bad(CT_BYTES, put(stem, 0, b"\x80"), [stem, "row 0, group 0", "out of range: -128"])
        self.bad(CT, put(f"{LLAMA_Q}.weight_shape", 0, struct.pack("<q", 65)), [f"{LLAMA_Q}.weight_shape", "says [65, 64]"])
        self.bad(CT, put(f"{LLAMA_Q}.weight_shape", 8, struct.pack("<q", -1)), [f"{LLAMA_Q}.weight_shape", "says [64, -1]"])

    def test_columns_in_an_order_of_their_own(self):
        def order(tensors):
            tensors["model.decoder.layers.1.fc2.g_idx"][2][:4] = struct.pack("<i", 1)
        self.bad(GPTQ, order, ["layers.1.fc2.g_idx", "column 0 is in group 1, wanted 0", "desc_act"])

        def no_order(tensors):
            del tensors[f"{OPT_Q}.g_idx"]
        model = self.copy(GPTQ)
        wanted = self.answers(model)
        config = json.loads((model / "config.json").read_text())
        config["quantization_config"]["desc_act"] = True
        (model / "config.json").write_text(json.dumps(config))
        self.assertEqual(self.answers(model), wanted)  # it says so, and every column is where it would be
        file = File(model / "model.safetensors")
        no_order(file.tensors)
        file.write()
        self.refused(DATA, model, [f"{OPT_Q}.g_idx", "is missing"])

    def test_what_else_changes_the_model(self):
        def scaled(tensors):
            tensors["model.layers.0.mlp.act.scales"] = ["F16", [2], bytearray(4)]
        self.bad(AWQ, scaled, ["act.scales", "scaled activations"])

        def tied(tensors):
            for part in ("qweight", "scales", "qzeros"):
                tensors[f"lm_head.{part}"] = tensors[f"{LLAMA_Q}.{part}"]
        self.bad(AWQ, tied, ["lm_head", "tie_word_embeddings"])

    def test_a_config_that_says_nothing_of_it(self):
        model = self.copy(GPTQ)
        config = json.loads((model / "config.json").read_text())
        del config["quantization_config"]
        (model / "config.json").write_text(json.dumps(config))
        self.refused(DATA, model, ["qweight' is quantised", "no quantization_config"])

    def test_other_bits_than_the_file_has(self):
        for name, bits in ((GPTQ, 8), (GPTQ_8, 4)):
            model = self.copy(name)
            config = json.loads((model / "config.json").read_text())
            config["quantization_config"]["bits"] = bits
            (model / "config.json").write_text(json.dumps(config))
            self.refused(DATA, model, ["qweight' is [", "wanted ["])

    def test_another_group_than_the_file_has(self):
        for name, group in ((GPTQ, 128), (AWQ, 64), (GPTQ_96, 32), (GPTQ_96, 192)):
            model = self.copy(name)
            config = json.loads((model / "config.json").read_text())
            config["quantization_config"]["group_size"] = group
            (model / "config.json").write_text(json.dumps(config))
            self.refused(DATA, model, ["scales", "wanted ["])


class Floats(Case):
    """Numbers of 8 bits with scales, against the same numbers in fp32."""

    def number(self, bits):
        exponent, mantissa = bits >> 3 & 15, bits & 7
        size = mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        return -size if bits & 128 else size

    def make(self, how, scales_of):
        """Two folders of one model: in one, matrices of layers have 8 bits."""
        generator = random.Random(3)
        eight, plain = self.folder / f"{how}-eight", self.folder / f"{how}-plain"
        for folder in (eight, plain):
            shutil.copytree(self.golden.parent / "gguf" / "llama-mixed", folder)
        files = File(eight / "model.safetensors"), File(plain / "model.safetensors")
        for name in [name for name in files[0].tensors if "proj" in name]:
            rows, cols = files[0].tensors[name][1]
            numbers = bytes(generator.choice([0, 1, 9]) * 16 + generator.randrange(16) for _ in range(rows * cols))
            suffix, shape, scales, index = scales_of(rows, cols, generator)
            files[0].tensors[name] = ["F8_E4M3", [rows, cols], numbers]
            files[0].tensors[name + suffix] = ["F32", shape, struct.pack(f"<{len(scales)}f", *scales)]
            exact = [self.number(bits) * scales[index(i // cols, i % cols)] for i, bits in enumerate(numbers)]
            files[1].tensors[name] = ["F32", [rows, cols], struct.pack(f"<{rows * cols}f", *exact)]
        for file in files:
            file.write()
        return eight, plain

    def answers_in_fp32(self, model):
        output = self.folder / f"{model.name}.jsonl"
        done = self.weft.run("generate", "--model", model, "--input", self.folder / "in.jsonl", "--output", output, "--dtype",
                             "float32", "--disk-dir", self.folder / "disk")
        self.assertEqual(done.returncode, 0, done.stderr)
        return {line["id"]: line["token_ids"] for line in read_lines(output)}

    def scores_in_fp32(self, model, *flags, block=3):
        self.count += 1
        requests, output = self.folder / "score.jsonl", self.folder / f"scores{self.count}.jsonl"
        write_lines(requests, [{"id": i, "prompt_ids": [3, i + 1, 5], "continuation_ids": list(range(7, 19 + i))} for i in range(6)])
        done = self.weft.run("score", "--model", model, "--input", requests, "--output", output, "--dtype", "float32", "--quiet",
                             "--disk-dir", self.folder / "disk", "--gpu-batch-size", block, "--num-gpu-batches", 2,
                             *(flags if "--percent" in flags else ("--percent", 100, 0, 100, 0, 100, 0, *flags)))
        self.assertEqual(done.returncode, 0, done.stderr)
        return {line["id"]: line["logprobs"] for line in read_lines(output)}

    def test_each_way_to_scale(self):
        def blocks(rows, cols, generator):
            shape = [(rows + 127) // 128, (cols + 127) // 128]
            scales = [2.0 ** -generator.randrange(5, 8) for _ in range(shape[0] * shape[1])]
            return "_scale_inv", shape, scales, lambda row, col: row // 128 * shape[1] + col // 128

        def channels(rows, _, generator):
            return "_scale", [rows, 1], [2.0 ** -generator.randrange(5, 8) for _ in range(rows)], lambda row, _: row

        def whole(rows, cols, _):
            return "_scale", [], [0.0123], lambda row, col: 0

        for how, scales_of, said in (
                ("whole", whole, {"quant_method": "modelopt", "quant_algo": "FP8"}),
                ("blocks", blocks, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}),
                ("channels", channels, {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
                    "group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})):
            eight, plain = self.make(how, scales_of)
            config = json.loads((eight / "config.json").read_text())
            (eight / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
            self.assertEqual(self.answers_in_fp32(eight), self.answers_in_fp32(plain))
            # Its numbers are those of fp32, to the bit, wherever they are and however many rows they meet.
            wanted = self.scores_in_fp32(plain)
            self.assertEqual(self.scores_in_fp32(eight), wanted)
            self.assertEqual(self.scores_in_fp32(eight, block=1), wanted)
            self.assertEqual(self.scores_in_fp32(eight, "--percent", 0, 0, 100, 0, 100, 0), wanted)
            self.assertEqual(self.scores_in_fp32(eight, "--percent", 30, 30, 100, 0, 100, 0), wanted)
            self.assertEqual(self.scores_in_fp32(eight, "--weight-dtype", "float32"), wanted)
            packed = self.folder / f"{how}-packed"
            done = self.weft.run("convert", "--model", eight, "--output", packed, "--dtype", "float32")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.scores_in_fp32(packed, "--percent", 0, 0, 100, 0, 100, 0), wanted)
            config = json.loads((packed / "config.json").read_text())["quantization_config"]
            self.assertEqual((config["dtype"], config["group_size"]), ("float8", 128))
            self.assertIn("quantised: FP8, floats of 8 bits with scales", self.weft.run("inspect", eight).stdout.decode())
            for type_of_copy in ("bfloat16", "int8"):
                self.assertNotEqual(self.scores_in_fp32(eight, "--weight-dtype", type_of_copy), wanted)

    def test_what_is_not_float8(self):
        plain = self.golden.parent / "gguf" / "llama-mixed"
        self.refused(USAGE, plain, ["--weight-dtype float8", "has no weights of float8"], "--weight-dtype", "float8")
        self.refused(USAGE, self.golden / "llama-gptq-f16", ["--weight-dtype float8", "has no weights of float8"], "--weight-dtype", "float8")
        self.refused(USAGE, plain, ["--kv-dtype must be"], "--kv-dtype", "float8")
        done = self.weft.run("convert", "--model", plain, "--output", self.folder / "none", "--weight-dtype", "float8")
        self.assertEqual(done.returncode, USAGE)
        self.assertFalse((self.folder / "none").exists())


if __name__ == "__main__":
    main()
