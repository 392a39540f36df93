#!/usr/bin/env python3
"""Quantised weights as a user meets them: the packed copy next to what a run spills, and what is refused.

Usage: packed_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import os
import pathlib
import random
import shutil
import signal
import stat
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import Weft, read_lines, read_safetensors, safetensors, write_lines, write_tiny_model  # noqa: E402

WEFT = None
KILLS = 50
USAGE, DATA, CAPACITY = 2, 3, 4
REQUESTS = [{"id": i, "prompt_ids": [3, i + 1], "max_tokens": 6} for i in range(5)]
ON_DISK = ("--percent", 0, 0, 100, 0, 100, 0)
IN_MEMORY = ("--percent", 100, 0, 100, 0, 100, 0)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-packed-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        self.model = write_tiny_model(self.folder / "tiny", hidden_size=64, ffn_dim=256, word_embed_proj_dim=64,
                                      num_hidden_layers=6)
        self.count = 0
        write_lines(self.folder / "in.jsonl", REQUESTS)

    def command(self, *flags, model=None, output=None):
        self.count += 1
        output = output or self.folder / f"out{self.count}.jsonl"
        return output, ["generate", "--model", model or self.model, "--input", self.folder / "in.jsonl", "--output", output,
                        "--backend", "cpu", "--disk-dir", self.disk, "--gpu-batch-size", 3, "--num-gpu-batches", 2, "--quiet",
                        *flags]

    def answers(self, *flags, **options):
        output, command = self.command(*flags, **options)
        done = WEFT.run(*command)
        self.assertEqual(done.returncode, 0, done.stderr)
        return sorted((line["id"], line["token_ids"]) for line in read_lines(output))

    def refused(self, code, words, *flags, **options):
        _, command = self.command(*flags, **options)
        done = WEFT.run(*command)
        said = done.stderr.decode()
        self.assertEqual((done.returncode, said.count("\n")), (code, 1), said)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, said)

    def copies(self):
        return sorted(self.disk.glob("weft-*.safetensors"))


class Packed(Case):
    def test_a_copy_is_made_once_is_private_and_changes_no_answer(self):
        wanted = self.answers("--weight-dtype", "int4", *IN_MEMORY)
        self.assertEqual(self.copies(), [])
        self.assertEqual(self.answers("--weight-dtype", "int4", *ON_DISK), wanted)
        [copy] = self.copies()
        state = copy.stat()
        self.assertEqual(stat.S_IMODE(state.st_mode), 0o600)
        self.assertEqual(self.answers("--compress-weight", *ON_DISK), wanted)
        self.assertEqual((copy.stat().st_ino, copy.stat().st_mtime_ns), (state.st_ino, state.st_mtime_ns))
        self.answers("--weight-dtype", "int4", "--weight-group", 32, *ON_DISK)
        self.answers("--weight-dtype", "int8", *ON_DISK)
        self.assertEqual(len(self.copies()), 3)
        self.assertNotEqual(self.answers(*IN_MEMORY), wanted)  # and it is not the 16-bit model's answer

    def test_a_folder_that_convert_packed_gives_the_same_answers(self):
        for dtype in ("int4", "int8"):
            packed = self.folder / dtype
            done = WEFT.run("convert", "--model", self.model, "--output", packed, "--weight-dtype", dtype)
            self.assertEqual(done.returncode, 0, done.stderr)
            wanted = self.answers("--weight-dtype", dtype, *IN_MEMORY)
            for placement in (ON_DISK, IN_MEMORY):
                self.assertEqual(self.answers(*placement, model=packed), wanted)
            self.assertEqual(self.copies(), [])
            self.assertIn(dtype, WEFT.run("inspect", packed).stdout.decode())

    def test_a_damaged_copy_is_made_anew(self):
        wanted = self.answers("--weight-dtype", "int4", *ON_DISK)
        [copy] = self.copies()
        whole = copy.read_bytes()
        generator = random.Random(3)
        for place in [9, 100, 5000, len(whole) - 2, *(generator.randrange(len(whole)) for _ in range(4))]:
            damaged = bytearray(whole)
            damaged[place] ^= 1 << generator.randrange(8)
            copy.write_bytes(damaged)
            self.made_anew(wanted, copy, whole)
        for rest in whole[:-4096], b"", b"notes":
            copy.write_bytes(rest)
            self.made_anew(wanted, copy, whole)

    def made_anew(self, wanted, copy, whole, words="made anew"):
        output, command = self.command("--weight-dtype", "int4", *ON_DISK)
        done = WEFT.run(*command)
        said = done.stderr.decode()
        self.assertEqual((done.returncode, said.count(copy.name)), (0, 1), said)
        self.assertIn(words, said)
        self.assertEqual(sorted((line["id"], line["token_ids"]) for line in read_lines(output)), wanted)
        self.assertEqual(copy.read_bytes(), whole)
        self.assertEqual(self.copies(), [copy])

    def test_a_copy_of_other_weights_is_made_anew(self):
        """The samples, the size and the time of the weights are the same, as with a copy from elsewhere (rsync -c -t, images)."""
        self.answers("--weight-dtype", "int4", *ON_DISK)
        [copy] = self.copies()
        weights = self.model / "model.safetensors"
        before, data = weights.stat(), bytearray(weights.read_bytes())
        for at in range(80 << 10, 100 << 10, 2):  # between the samples; another sign
            data[at + 1] ^= 0x80
        weights.write_bytes(data)
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
        wanted = self.answers("--weight-dtype", "int4", *IN_MEMORY)
        output, command = self.command("--weight-dtype", "int4", *ON_DISK)
        done = WEFT.run(*command)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"is of other contents of", done.stderr)
        self.assertEqual(sorted((line["id"], line["token_ids"]) for line in read_lines(output)), wanted)
        state = copy.stat()
        os.utime(weights)  # touched: read whole, and the same
        self.assertEqual(self.answers("--weight-dtype", "int4", *ON_DISK), wanted)
        self.assertEqual((copy.stat().st_ino, copy.stat().st_mtime_ns), (state.st_ino, state.st_mtime_ns))

    def test_what_is_not_this_users_own_is_not_used(self):
        wanted = self.answers("--weight-dtype", "int4", *ON_DISK)
        [copy] = self.copies()
        whole = copy.read_bytes()
        elsewhere = self.folder / "elsewhere"

        def link():
            elsewhere.write_bytes(whole)
            copy.symlink_to(elsewhere)

        def hard_link():
            elsewhere.write_bytes(whole)
            copy.hardlink_to(elsewhere)

        def theirs():
            copy.write_bytes(whole)
            os.chown(copy, 65534, 65534)

        for make in (link, hard_link, copy.mkdir, lambda: os.mkfifo(copy), *([theirs] if os.geteuid() == 0 else [])):
            copy.rmdir() if copy.is_dir() else copy.unlink()
            make()
            output, command = self.command("--weight-dtype", "int4", *ON_DISK)
            done = WEFT.run(*command)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(b"makes a copy of its own", done.stderr)
            self.assertEqual(sorted((line["id"], line["token_ids"]) for line in read_lines(output)), wanted)
            self.assertEqual(list(self.disk.iterdir()), [copy])

    def test_a_copy_counts_on_the_disk(self):
        report = self.folder / "report.json"
        self.answers("--weight-dtype", "int4", "--report", report, *ON_DISK)
        [copy] = self.copies()
        peak = json.loads(report.read_text())["peak_bytes"]["disk"]
        self.assertGreater(peak, 0.9 * copy.stat().st_size)
        copy.unlink()
        self.refused(CAPACITY, "disk", "--weight-dtype", "int4", "--disk-memory", peak // 2, *ON_DISK)
        self.assertEqual(self.copies(), [])
        self.answers("--weight-dtype", "int4", "--disk-memory", 2 * peak, *ON_DISK)

    def test_copies_are_named_after_their_model_listed_and_removed(self):
        other = write_tiny_model(self.folder / "other model", seed=2, hidden_size=64, ffn_dim=256, word_embed_proj_dim=64,
                                 num_hidden_layers=6)
        for model, dtype in (self.model, "int4"), (self.model, "int8"), (other, "int4"):
            self.answers("--weight-dtype", dtype, *ON_DISK, model=model)
        names = [copy.name for copy in self.copies()]
        self.assertEqual([name.split("-int")[0] for name in names],
                         ["weft-packed-other-model", "weft-packed-tiny", "weft-packed-tiny"])
        said = WEFT.run("inspect", self.model, "--disk-dir", self.disk).stdout.decode()
        self.assertEqual([name in said for name in names], [False, True, True], said)
        done = WEFT.run("inspect", self.model, "--disk-dir", self.disk, "--remove-packed")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([copy.name for copy in self.copies()], names[:1])
        done = WEFT.run("inspect", self.model, "--remove-packed")
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"--disk-dir", done.stderr)

    def test_another_checkpoint_has_another_copy(self):
        self.answers("--weight-dtype", "int4", *ON_DISK)
        other = write_tiny_model(self.folder / "other", seed=2, hidden_size=64, ffn_dim=256, word_embed_proj_dim=64,
                                 num_hidden_layers=6)
        wanted = self.answers("--weight-dtype", "int4", *IN_MEMORY, model=other)
        self.assertEqual(self.answers("--weight-dtype", "int4", *ON_DISK, model=other), wanted)
        self.assertEqual(len(self.copies()), 2)

    def test_a_kill_while_a_copy_is_made_leaves_none_that_could_be_taken_for_one(self):
        wanted = self.answers("--weight-dtype", "int4", *IN_MEMORY)
        begin = time.monotonic()
        self.answers("--weight-dtype", "int4", *ON_DISK)
        seconds = time.monotonic() - begin
        [copy] = self.copies()
        whole = copy.read_bytes()
        generator, unfinished = random.Random(4), 0
        for _ in range(KILLS):
            for file in self.disk.iterdir():
                file.unlink()
            _, command = self.command("--weight-dtype", "int4", *ON_DISK)
            process = WEFT.start(*command)
            time.sleep(generator.uniform(0, seconds))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            unfinished += not self.copies()
            for left in self.copies():
                self.assertEqual(left.read_bytes(), whole)
        self.assertGreater(unfinished, 0)
        self.assertEqual(self.answers("--weight-dtype", "int4", *ON_DISK), wanted)


class Refusals(Case):
    def test_a_resume_with_another_format_is_refused(self):
        output, command = self.command("--weight-dtype", "int4", *IN_MEMORY)
        self.assertEqual(WEFT.run(*command).returncode, 0)
        lines = output.read_bytes().splitlines(keepends=True)
        output.write_bytes(b"".join(lines[:2]))
        for flags in ((), ("--weight-dtype", "int8"), ("--weight-dtype", "int4", "--weight-group", 32),
                      ("--weight-dtype", "int4", "--weight-arithmetic", "exact")):
            self.refused(USAGE, ["another run", "weight_dtype"], "--resume", *flags, *IN_MEMORY, output=output)
        _, command = self.command("--resume", "--weight-dtype", "int4", *ON_DISK, output=output)
        self.assertEqual(WEFT.run(*command).returncode, 0)
        self.assertEqual(sorted(output.read_bytes().splitlines(keepends=True)), sorted(lines))

    def test_flags_that_do_not_fit_are_refused(self):
        for words, *flags in (("must be auto, float16", "--weight-dtype", "int3"), ("--weight-group", "--weight-group", 64),
                              ("16, 32, 64 or 128", "--weight-dtype", "int4", "--weight-group", 63),
                              ("exact, int8 or bfloat16", "--weight-dtype", "int4", "--weight-arithmetic", "fast"),
                              ("--weight-arithmetic", "--weight-arithmetic", "exact")):
            self.refused(USAGE, words, *flags, *IN_MEMORY)

    def test_numbers_that_cannot_be_quantised_are_named(self):
        file = self.model / "model.safetensors"
        data = bytearray(file.read_bytes())
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        name = "model.decoder.layers.2.fc1.weight"
        at = 8 + int.from_bytes(data[:8], "little") + header[name]["data_offsets"][0] + 2 * 64 * 5
        data[at:at + 2] = b"\x00\x7c"  # infinity
        file.write_bytes(data)
        for placement in (ON_DISK, IN_MEMORY):
            self.refused(DATA, ["layers.2.fc1.weight", "row 5", "int4"], "--weight-dtype", "int4", *placement)
        self.assertEqual(self.copies(), [])

    def test_checkpoints_that_others_quantised_are_refused_by_name(self):
        file = self.model / "model.safetensors"  # with plain weights alone the config would be a leftover
        header, data = read_safetensors(file)
        header["model.decoder.layers.0.fc1.qweight"] = header.pop("model.decoder.layers.0.fc1.weight")
        file.write_bytes(safetensors(header, data))
        config = json.loads((self.model / "config.json").read_text())
        for method, words in (("hqq", "'hqq'"), ("auto-round", "'auto-round'"),
                              ("eetq", "'eetq'"), (None, "names no quant_method")):
            given = {"bits": 4} if method is None else {"quant_method": method, "bits": 4}
            (self.model / "config.json").write_text(json.dumps({**config, "quantization_config": given}))
            self.refused(DATA, [words, "use the unquantized model"], *IN_MEMORY)
        for method, field, value in (("gptq", "bits", 3), ("awq", "version", "gemv"), ("compressed-tensors", "format", "dense")):
            given = {"quant_method": method, "bits": 4, "group_size": 64, field: value}
            (self.model / "config.json").write_text(json.dumps({**config, "quantization_config": given}))
            self.refused(DATA, [f"'{field}' must be", "use the unquantized model"], *IN_MEMORY)
        for field, value in (("version", 5), ("dtype", "int3"), ("group_size", 48)):
            good = {"quant_method": "weft", "version": 1, "dtype": "int4", "group_size": 64, field: value}
            (self.model / "config.json").write_text(json.dumps({**config, "quantization_config": good}))
            self.refused(DATA, field, *IN_MEMORY)
        tables = {"quant_method": "weft", "version": 2, "dtype": "int4", "group_size": 32}  # whose levels stand for others
        head = {**tables, "version": 3}  # whose head has levels
        groups = {**tables, "version": 4}  # some of whose matrices have groups of another size
        for given, words in ((groups, "'modules_by_group_size' is missing"),
                             ({**groups, "modules_by_group_size": {"16": "all"}}, "modules_by_group_size"),
                             (head, "'head_dtype' is missing"), ({**head, "head_dtype": "float16"}, "head_dtype"),
                             (tables, "'level_table' is missing"), ({**tables, "level_table": "nf9"}, "level_table")):
            (self.model / "config.json").write_text(json.dumps({**config, "quantization_config": given}))
            self.refused(DATA, words, *IN_MEMORY)


if __name__ == "__main__":
    WEFT = Weft(sys.argv.pop(1))
    sys.argv.pop(1)  # the source folder
    unittest.main()
