#!/usr/bin/env python3
"""Checkpoints of floats of 4 bits and of levels of a table (scripts/fixtures/foreign_floats.py), as a user meets them: their
tokens are those of transformers, and what is wrong with one is named.

Usage: foreign_floats_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import pathlib
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from foreign import DATA, LLAMA_Q, OPT_Q, REQUESTS, Case, cut, main, put, typed, without  # noqa: E402
from weft_process import read_lines, write_lines  # noqa: E402

MXFP4, CT_MXFP4, NVFP4, MODELOPT = "llama-mxfp4-bf16", "qwen2-ct-mxfp4-f16", "llama-ct-nvfp4-bf16", "qwen2-modelopt-nvfp4-f16"
NF4, FP4, INT8 = "llama-bnb-nf4-bf16", "opt-bnb-fp4-f16", "llama-bnb-int8-f16"
FP8, CT_FP8, MODELOPT_FP8 = "llama-fp8-blocks-bf16", "qwen2-ct-fp8-rows-f16", "llama-modelopt-fp8-f16"
FLOATS = (MXFP4, CT_MXFP4, NVFP4, MODELOPT, NF4, FP4, INT8, FP8, CT_FP8, MODELOPT_FP8)
NAN = struct.pack("<f", float("nan"))


class SmallFloats(Case):
    """Floats of 4 bits, and levels of a table (scripts/fixtures/foreign_floats.py)."""

    def sure_answers(self, name, model):
        """Of each prompt of a golden checkpoint the tokens that cannot be others: transformers', and those of `model`."""
        prompts = json.loads((self.golden / name / "expected.json").read_text())["prompts"]
        self.count += 1
        requests, output = self.folder / "prompts.jsonl", self.folder / f"sure{self.count}.jsonl"
        write_lines(requests, [{"id": i, "prompt_ids": p["prompt_ids"], "max_tokens": len(p["greedy_ids"]), "ignore_eos": True}
                               for i, p in enumerate(prompts)])
        done = self.weft.run("generate", "--model", model, "--input", requests, "--output", output,
                             "--backend", "cpu", "--dtype", "float32", "--weight-dtype", "float32", "--quiet",
                             "--percent", 100, 0, 100, 0, 100, 0)
        self.assertEqual(done.returncode, 0, done.stderr)
        theirs, ours = [], []
        for line in sorted(read_lines(output), key=lambda line: line["id"]):
            prompt = prompts[line["id"]]
            sure = next((i for i, gap in enumerate(prompt["relative_gap"]) if gap < 1e-4), len(prompt["relative_gap"]))
            theirs.append(prompt["greedy_ids"][:sure])
            ours.append(line["token_ids"][:sure])
        return theirs, ours

    def test_the_tokens_of_transformers_with_the_numbers_that_files_mean(self):
        for name in FLOATS:
            with self.subTest(name=name):
                theirs, ours = self.sure_answers(name, self.golden / name)
                self.assertEqual(ours, theirs)
                self.assertGreaterEqual(sum(map(len, theirs)), 3 * 64)  # of 4 * 64
                plain = self.folder / f"plain-{name}"
                done = self.weft.run("convert", "--model", self.golden / name, "--output", plain, "--weight-dtype", "float32")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertNotIn("quantization_config", json.loads((plain / "config.json").read_text()))
                self.assertFalse((plain / "hf_quant_config.json").exists())
                self.assertEqual(self.sure_answers(name, plain)[1], theirs)

    def test_levels_that_are_kept(self):
        for name, dtype, group, table in ((MXFP4, "int4", 32, "e2m1"), (CT_MXFP4, "int4", 32, "e2m1"), (NVFP4, "int4", 16, "e2m1"),
                                          (MODELOPT, "int4", 16, "e2m1"), (NF4, "int4", 64, "nf4"), (INT8, "int8", 128, None),
                                          (FP8, "float8", 128, None), (CT_FP8, "float8", 128, None), (MODELOPT_FP8, "float8", 128, None)):
            with self.subTest(name=name):
                wanted = self.answers(self.golden / name)
                self.assertEqual(self.answers(self.golden / name, "--weight-dtype", dtype, "--weight-group", group), wanted)
                packed = self.folder / f"packed-{name}"
                self.assertEqual(self.weft.run("convert", "--model", self.golden / name, "--output", packed).returncode, 0)
                config = json.loads((packed / "config.json").read_text())["quantization_config"]
                self.assertEqual((config["quant_method"], config["dtype"], config["group_size"]), ("weft", dtype, group))
                self.assertEqual(config.get("level_table"), table)
                self.assertEqual(self.answers(packed, "--percent", 0, 0, 100, 0, 100, 0), wanted)
                if table:  # as the levels of 8 bits that they stand for
                    self.assertEqual(self.answers(self.golden / name, "--weight-dtype", "int8", "--weight-group", group), wanted)

    def test_numbers_that_are_not(self):
        wanted = self.answers(self.golden / FP4)
        self.assertEqual(self.answers(self.golden / FP4, "--percent", 0, 0, 100, 0, 100, 0), wanted)
        plain = self.folder / "plain"
        self.assertEqual(self.weft.run("convert", "--model", self.golden / FP4, "--output", plain).returncode, 0)
        self.assertEqual(self.answers(plain), wanted)
        for small in "int8", "int4":
            self.assertEqual(len(self.answers(self.golden / FP4, "--weight-dtype", small)), len(REQUESTS))

    def test_inspect_says_how(self):
        for name, words in ((MXFP4, ["MXFP4, 4 bits in groups of 32: 14 matrices", "4.25 bits a number"]),
                            (NVFP4, ["NVFP4, 4 bits in groups of 16: 7 matrices", "4.51 bits a number"]),
                            (MODELOPT, ["NVFP4", "7 matrices"]), (NF4, ["bitsandbytes, 4 bits in groups of 64: 7 matrices"]),
                            (FP4, ["bitsandbytes, computed with as floats: 6 matrices"]),
                            (INT8, ["bitsandbytes, 8 bits in whole rows"]),
                            (FP8, ["FP8, floats of 8 bits with scales: 7 matrices", "8.00 bits a number"]),
                            (CT_FP8, ["FP8, floats of 8 bits with scales: 6 matrices"]), (MODELOPT_FP8, ["FP8", "14 matrices"])):
            done = self.weft.run("inspect", self.golden / name)
            self.assertEqual(done.returncode, 0, done.stderr)
            for word in words:
                self.assertIn(word, done.stdout.decode())
        config = self.folder / "config.json"
        shutil.copy(self.golden / FP4 / "config.json", config)
        self.assertIn("quantised: bitsandbytes, computed with as floats", self.weft.run("inspect", config).stdout.decode())

    def test_where_modelopt_says_it(self):
        model = self.copy(MODELOPT)
        wanted = self.answers(model)
        own = json.loads((model / "hf_quant_config.json").read_text())
        (model / "hf_quant_config.json").unlink()
        self.refused(DATA, model, ["weight_scale_2' is quantised", "no quantization_config"])
        config = json.loads((model / "config.json").read_text())
        said = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
        (model / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
        self.assertEqual(self.answers(model), wanted)
        (model / "config.json").write_text(json.dumps(config))
        own["quantization"]["quant_algo"] = "NVFP4_AWQ"
        (model / "hf_quant_config.json").write_text(json.dumps(own))
        self.refused(DATA, model, ["hf_quant_config.json", "'quant_algo' must be NVFP4", "NVFP4_AWQ"])

    def test_plain_weights_of_which_it_is_still_said(self):
        model = self.copy(NF4)
        plain = self.folder / "plain"
        self.assertEqual(self.weft.run("convert", "--model", model, "--output", plain, "--weight-dtype", "bfloat16").returncode, 0)
        wanted = self.answers(plain)
        shutil.copy(model / "config.json", plain / "config.json")
        done, output = self.generate(plain)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted((line["id"], line["token_ids"]) for line in read_lines(output)), wanted)

    def test_a_scheme_for_the_kv_cache_is_not_followed(self):
        model = self.copy(CT_FP8)
        wanted = self.answers(model)
        config = json.loads((model / "config.json").read_text())
        config["quantization_config"]["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
        (model / "config.json").write_text(json.dumps(config))
        self.assertEqual(self.answers(model), wanted)


class BadFloats(Case):
    def test_tensors_that_are_missing_or_of_another_shape(self):
        for name, stem, parts in ((MXFP4, LLAMA_Q, ["weight_scales"]), (CT_MXFP4, LLAMA_Q, ["weight_scale"]),
                                  (NVFP4, LLAMA_Q, ["weight_scale", "weight_global_scale"]),
                                  (MODELOPT, LLAMA_Q, ["weight_scale", "weight_scale_2"]),
                                  (NF4, LLAMA_Q, [f"weight.{part}" for part in ("absmax", "quant_map", "nested_absmax", "nested_quant_map",
                                                                                "quant_state.bitsandbytes__nf4")]),
                                  (INT8, LLAMA_Q, ["SCB"])):
            for part in parts:
                self.bad(name, without(f"{stem}.{part}"), [f"'{stem}.{part}'", "is missing"])
        for name, tensor, axis in ((MXFP4, "weight_scales", 0), (MXFP4, "weight_blocks", 1), (CT_MXFP4, "weight_packed", 1),
                                   (NVFP4, "weight_scale", 1), (NVFP4, "weight_packed", 0), (MODELOPT, "weight", 0),
                                   (NF4, "weight.absmax", 0), (NF4, "weight", 0), (NF4, "weight.quant_map", 0),
                                   (NF4, "weight.nested_quant_map", 0), (INT8, "weight", 0), (INT8, "SCB", 0),
                                   (FP8, "weight_scale_inv", 0), (FP8, "weight_scale_inv", 1), (CT_FP8, "weight_scale", 0)):
            self.bad(name, cut(f"{LLAMA_Q}.{tensor}", axis), [f"'{LLAMA_Q}.{tensor}' is [", "wanted ["])
        self.bad(MXFP4, typed(f"{LLAMA_Q}.weight_blocks", "I8"), ["weight_blocks", "stored as I8, wanted U8"])
        self.bad(NVFP4, typed(f"{LLAMA_Q}.weight_scale", "U8"), ["weight_scale", "stored as U8, wanted F8_E4M3"])
        self.bad(FP4, typed(f"{OPT_Q}.weight.quant_map", "I32"), ["quant_map", "stored as I32, wanted F32"])

    def test_numbers_that_cannot_be(self):
        self.bad(MXFP4, put(f"{LLAMA_Q}.weight_scales", 5, b"\xff"), ["weight_scales", "row 2, group 1 is not a number"])
        self.bad(MXFP4, put(f"{LLAMA_Q}.weight_scales", 5, b"\x50"), [f"{LLAMA_Q}.weight", "row 2", "too small for float16", "bfloat16"])
        self.bad(MXFP4, put(f"{LLAMA_Q}.weight_scales", 5, b"\xa0"), [f"{LLAMA_Q}.weight", "row 2", "too large for float16"])
        self.bad(NVFP4, put(f"{LLAMA_Q}.weight_scale", 6, b"\x7f"), ["weight_scale", "row 1, group 2 is not finite"])
        self.bad(NVFP4, put(f"{LLAMA_Q}.weight_global_scale", 0, bytes(4)), ["weight_global_scale", "is 0, or not finite"])
        self.bad(MODELOPT, put(f"{LLAMA_Q}.weight_scale_2", 0, NAN), ["weight_scale_2", "is 0, or not finite"])
        self.bad(FP4, put(f"{OPT_Q}.weight.absmax", 12, NAN), ["absmax", "element 3 makes numbers that are not finite"])
        self.bad(NF4, put(f"{LLAMA_Q}.weight.nested_absmax", 0, NAN), ["nested_absmax", "element 0 is not finite"])
        self.bad(INT8, put(f"{LLAMA_Q}.SCB", 28, NAN), ["SCB", "row 7 is not finite"])

    def test_numbers_of_8_bits_that_cannot_be(self):
        weight, scale, infinity = f"{LLAMA_Q}.weight", f"{LLAMA_Q}.weight_scale_inv", struct.pack("<f", float("inf"))
        for bits in (b"\x7f", b"\xff"):
            self.bad(FP8, put(weight, 160 * 3 + 130, bits), [f"'{weight}'", "row 3, column 130 is not finite"])
        for at, row, column in ((0, 0, "column"), (3, 128, "column")):
            for number in (NAN, infinity):
                self.bad(FP8, put(scale, 4 * at, number), [f"'{weight}'", f"row {row}, {column}", "is not finite"])
        self.bad(MODELOPT_FP8, put(f"{LLAMA_Q}.weight_scale", 0, NAN), [f"'{weight}'", "row 0, column", "is not finite"])
        # fp16, in which a GPU computes, holds no number above 65504; here the largest is 448 times the scale.
        self.bad(FP8, put(scale, 0, struct.pack("<f", 147.0)), [f"'{weight}'", "is too large for float16", "--weight-dtype bfloat16"])
        self.bad(FP8, put(scale, 0, struct.pack("<f", -147.0)), [f"'{weight}'", "is too large for float16", "--weight-dtype bfloat16"])

        def small_numbers(tensors):
            tensors[weight][2][:] = bytes(len(tensors[weight][2]))
            put(scale, 0, struct.pack("<f", 256.0))(tensors)
        self.bad(FP8, small_numbers, [f"'{weight}'", "has a scale of 256 or more", "--weight-dtype float16"])
        self.bad(FP8, without(scale), ["is stored as F8_E4M3 without"])
        self.bad(FP8, typed(scale, "I32"), [scale, "stored as I32"])

    def test_a_state_that_contradicts_the_tensors(self):
        name = f"{LLAMA_Q}.weight.quant_state.bitsandbytes__nf4"

        def state(**keys):
            def change(tensors):
                text = json.dumps(json.loads(bytes(tensors[name][2])) | keys).encode()
                tensors[name] = ["U8", [len(text)], bytearray(text)]
            return change

        def text(content):
            def change(tensors):
                tensors[name] = ["U8", [len(content)], bytearray(content)]
            return change

        self.bad(NF4, state(shape=[64, 65]), [name, "'shape' must be [64, 64]"])
        self.bad(NF4, state(shape=[1 << 62, 64]), [name, "'shape' must be [64, 64]"])
        self.bad(NF4, state(blocksize=32), [f"{LLAMA_Q}.weight.absmax' is [64], wanted [128]"])
        self.bad(NF4, state(blocksize=0), [name, "'blocksize' must be an integer from 1"])
        self.bad(NF4, state(blocksize=1 << 40), [name, "'blocksize' must be an integer from 1"])
        self.bad(NF4, state(nested_blocksize=16), ["nested_absmax' is [1], wanted [4]"])
        self.bad(NF4, state(nested_blocksize=-1), [name, "'nested_blocksize'"])
        self.bad(NF4, state(nested_offset="0"), [name, "'nested_offset' must be a number"])
        self.bad(NF4, text(b"[1]"), [name, "must be an object"])
        self.bad(NF4, text(b"{" * 4000), [name])
        self.bad(NF4, text(b" " * 5000), [name, "in at most 4096 bytes"])

    def test_what_else_changes_the_model(self):
        def scaled(tensors):
            tensors[f"{LLAMA_Q}.pre_quant_scale"] = ["F16", [48], bytearray(96)]
        self.bad(MODELOPT, scaled, ["pre_quant_scale", "scaled activations"])

        def tied(tensors):
            for part in ("weight_packed", "weight_scale", "weight_global_scale"):
                tensors[f"lm_head.{part}"] = tensors[f"{LLAMA_Q}.{part}"]
        self.bad(NVFP4, tied, ["lm_head", "tie_word_embeddings"])
        model = self.copy(NF4)
        config = json.loads((model / "config.json").read_text())
        del config["quantization_config"]
        (model / "config.json").write_text(json.dumps(config))
        self.refused(DATA, model, ["weight.absmax' is quantised", "no quantization_config"])


if __name__ == "__main__":
    main()
