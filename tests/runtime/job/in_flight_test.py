#!/usr/bin/env python3
"""Work in flight survives: runs that are killed amid their answers go on there, and answer as if undisturbed.

Usage: in_flight_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import os
import pathlib
import random
import shutil
import signal
import stat
import struct
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, read_lines, write_lines, write_tiny_model  # noqa: E402

WEFT = None
SOURCE = None
WORDS = "the sea and a dark night when old men looked at every door of that house in silence".split()
RESIDENT = ["--percent", 100, 0, 100, 0, 100, 0]
TIERS = ["--percent", 34, 33, 34, 33, 34, 33]
DISK = ["--percent", 0, 0, 0, 0, 0, 0]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def table():
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        yield value


TABLE = list(table())


def requests(of_prompts=False):
    """Greedy, sampled, several choices, log-probabilities, also `of_prompts`, stop strings, penalties."""
    more = [{"temperature": 0.9, "logprobs": 2, "frequency_penalty": 0.3}, {"stop": ["xyzzy"], "repetition_penalty": 1.2},
            {"logprobs": 0, "min_tokens": 50, **({"prompt_logprobs": 1} if of_prompts else {})}]
    return [{"id": i, "prompt": " ".join(WORDS[i % 7:i % 7 + 3 + i % 11]), "max_tokens": 60 + 37 * i % 101, **more[i % 3],
             **({"seed": i, "n": 1 + i % 4} if i % 3 == 0 else {})} for i in range(20)]


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-in-flight-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"
        self.saved, self.report = self.folder / "out.jsonl.inflight", self.folder / "report.json"
        self.model, self.verb = SOURCE / "models" / "demo", "generate"

    def command(self, block, *flags, every="0.03s"):
        return [self.verb, "--model", self.model, "--input", self.input, "--output", self.output, "--backend", "cpu",
                "--gpu-batch-size", block[0], "--num-gpu-batches", block[1], "--checkpoint-every", every, *flags]

    def undisturbed(self, lines, *flags):
        write_lines(self.input, lines)
        done = WEFT.run(*self.command((16, 2), *RESIDENT, *flags, every="off"))
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = sorted(self.output.read_bytes().splitlines())
        self.clear()
        return answers

    def clear(self):
        for name in ("", ".inflight", ".sums", ".run.json"):
            pathlib.Path(f"{self.output}{name}").unlink(missing_ok=True)

    def start_and_kill(self, block, *flags, number=signal.SIGKILL, after=0.2, grown=0):
        """Killed a moment after it has saved something for the first time, and what it saves has grown by so many bytes."""
        process = WEFT.start(*self.command(block, *flags))
        first = None
        while first is None or self.saved.stat().st_size < first + grown:
            self.assertIsNone(process.poll(), "it ended before it saved enough")
            if first is None and self.saved.exists():
                first = self.saved.stat().st_size
            time.sleep(0.002)
        time.sleep(after)
        process.send_signal(number)
        said = process.communicate(timeout=HANGS)[1].decode()
        self.assertEqual(process.returncode, -number if number == signal.SIGKILL else 130, said)
        return said

    def resume(self, answers, block, *flags):
        done = WEFT.run(*self.command(block, "--resume", "--report", self.report, *flags, every="10m"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(self.output.read_bytes().splitlines()), answers)
        self.assertFalse(self.saved.exists())
        return done.stderr.decode(), json.loads(self.report.read_text())["checkpoints"]


class GoesOn(Case):
    def ways(self, retention, ways, *flags):
        choice = random.Random(retention)
        keep = ["--retention", retention, *flags]
        answers = self.undisturbed(requests(of_prompts=retention == "full"), *keep)
        for (first, first_flags), (second, second_flags) in ways:
            with self.subTest(retention=retention, first=(first, first_flags), second=(second, second_flags)):
                self.start_and_kill(first, *first_flags, *keep, after=0.3 * choice.random())
                self.assertEqual(stat.S_IMODE(self.saved.stat().st_mode), 0o600)
                said, done = self.resume(answers, second, *second_flags, *keep)
                self.assertNotIn("begins again", said)
                self.assertGreater(done["resumed_sequences"], 0)
                self.clear()

    def test_in_another_block_and_place(self):
        self.ways("full", [(((5, 3), TIERS), ((16, 2), DISK)),
                           (((4, 2), DISK), ((3, 2), [*TIERS, "--attention", "host"]))])

    def test_in_another_block_and_place_more(self):
        self.ways("full", [(((16, 2), RESIDENT), ((5, 2), TIERS)),
                           (((20, 2), [*TIERS, "--attention", "host", "--threads", 1]), ((40, 1), [*RESIDENT, "--threads", 2]))])

    def test_with_h2o(self):
        self.ways("h2o:0.2:0.2", [(((16, 2), RESIDENT), ((5, 2), [*DISK, "--attention", "0.5"]))])

    def test_with_h2o_more(self):
        self.ways("h2o:0.2:0.2", [(((5, 3), [*TIERS, "--attention", "host"]), ((4, 1), RESIDENT))])

    def test_with_budgets_by_head(self):
        self.ways("h2o:0.2:0.2:layers=1,1.5/0.5/0.5/1.5,full/1/1/full,1",
                  [(((16, 2), DISK), ((5, 2), [*TIERS, "--attention", "host"]))])

    def test_with_cold_tokens(self):
        self.ways("h2o:0.1:0.1:cold=0.6", [(((16, 2), RESIDENT), ((5, 2), [*DISK, "--attention", "0.5"]))],
                  "--kv-dtype", "int8:3:2")

    def test_with_cold_tokens_more(self):
        self.ways("snapkv:0.1:0.1:cold=0.6", [(((5, 3), [*TIERS, "--attention", "host"]), ((4, 1), RESIDENT))],
                  "--kv-dtype", "int8")

    def test_with_tokens_that_are_not_read_in_full(self):
        self.ways("full:read=0.1", [(((16, 2), RESIDENT), ((5, 2), [*DISK, "--attention", "0.5"]))],
                  "--kv-dtype", "int8:3:2")
        self.ways("h2o:0.2:0.1:read=0.1", [(((5, 3), [*TIERS, "--attention", "host"]), ((4, 1), RESIDENT))],
                  "--kv-dtype", "int8")

    def test_with_scores(self):
        self.ways("random:0.1:0.2", [(((4, 2), DISK), ((30, 1), [*TIERS, "--disk-engine", "threads"]))])
        self.ways("recent:0.4", [(((16, 2), TIERS), ((7, 2), DISK))])
        self.ways("defensive:0.1:0.1:rest=true", [(((16, 2), TIERS), ((7, 2), [*DISK, "--attention", "host"]))])
        self.ways("h2o:0.2:0.2:layers=full,1.5,0.5,1", [(((16, 2), RESIDENT), ((5, 2), [*DISK, "--attention", "0.5"])),
                                                       (((5, 3), [*TIERS, "--attention", "host"]), ((4, 1), RESIDENT))])
        self.ways("snapkv:0.2:0.1", [(((16, 2), DISK), ((7, 2), RESIDENT))])

    def test_past_the_context(self):
        """Answers many times as long as the context: those in flight have rolled their positions, or are about to."""
        self.model = self.folder / "model"
        shutil.copytree(SOURCE / "tests/data/golden/llama-linear-biases-f16", self.model)
        config = self.model / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 32}))
        lines = [{"id": i, "prompt_ids": [(7 * i + k) % 130 for k in range(18 + i)], "max_tokens": 2000 + 31 * i,
                  **({"temperature": 0.9, "seed": i} if i % 2 else {})} for i in range(12)]
        for retention, format in (("h2o:8:8:positions=rolled", []), ("recent:9:sinks=2:positions=rolled", ["--kv-dtype", "int4"])):
            keep = ["--retention", retention, *format]
            answers = self.undisturbed(lines, *keep)
            self.assertEqual({len(json.loads(line)["token_ids"]) for line in answers}, {2000 + 31 * i for i in range(12)})
            for (first, first_flags), (second, second_flags) in (
                    (((12, 1), RESIDENT), ((5, 2), [*DISK, "--attention", "0.5"])),
                    (((4, 3), [*TIERS, "--attention", "host"]), ((7, 1), RESIDENT))):
                with self.subTest(retention=retention, first=(first, first_flags), second=(second, second_flags)):
                    self.start_and_kill(first, *first_flags, *keep, after=0, grown=4000)  # some hundred tokens
                    said, done = self.resume(answers, second, *second_flags, *keep)
                    self.assertNotIn("begins again", said)
                    self.assertGreater(done["resumed_sequences"], 0)
                    self.assertGreater(done["resumed_tokens"], 12 * 32)
                    self.clear()
        write_lines(self.input, lines)
        refused = WEFT.run(*self.command((12, 1), *RESIDENT, "--retention", "h2o:8:8"))
        self.assertEqual(refused.returncode, 2)
        self.assertIn(b"the model's context is 32", refused.stderr)
        self.model = SOURCE / "models" / "demo"
        refused = WEFT.run(*self.command((12, 1), *RESIDENT, "--retention", "h2o:8:8:positions=rolled"))
        self.assertEqual(refused.returncode, 2)
        self.assertIn(b"opt adds learned positions", refused.stderr)

    def test_in_blocks_that_run_to_their_end(self):
        def fixed(shares):
            policy = self.folder / f"{shares['device']}.json"
            policy.write_text(json.dumps({"version": 1, "schedule": "static", "overlap": False, "weights": shares, "kv": shares,
                                          "activations": shares}))
            return ["--policy", policy]

        tiers, disk = fixed({"device": 0.4, "host": 0.3, "disk": 0.3}), fixed({"device": 0, "disk": 1})
        self.ways("full", [(((6, 2), tiers), ((4, 2), disk)), (((6, 2), disk), ((5, 2), TIERS)), (((6, 2), TIERS), ((4, 3), disk))])

    def test_again_and_again(self):
        """A block smaller than what is saved: what waits for a place is saved again."""
        answers = self.undisturbed(requests())
        self.start_and_kill((40, 1), *RESIDENT)
        for _ in range(3):
            before = self.saved.stat().st_mtime_ns
            process = WEFT.start(*self.command((3, 2), "--resume", *TIERS))
            while process.poll() is None and self.saved.stat().st_mtime_ns == before:
                time.sleep(0.002)
            process.kill()
            process.communicate()
        _, done = self.resume(answers, (4, 2), *DISK)
        self.assertGreater(done["resumed_sequences"], 6)

    def test_scores(self):
        self.verb = "score"
        lines = [{"id": i, "prompt": " ".join(WORDS[i % 7:i % 7 + 4]), "continuation": " ".join(WORDS * 6)} for i in range(12)]
        answers = self.undisturbed(lines)
        self.start_and_kill((4, 2), *TIERS, after=0.05)
        _, done = self.resume(answers, (5, 1), *RESIDENT)
        self.assertGreater(done["resumed_sequences"], 0)

    def test_a_signal_saves(self):
        answers = self.undisturbed(requests())
        for number in (signal.SIGTERM, signal.SIGINT):
            for seconds in (1.5, 6, 24):  # until it has got as far
                process = WEFT.start(*self.command((16, 2), "--threads", 1, *DISK, every="10m"))
                time.sleep(seconds)
                process.send_signal(number)
                said = process.communicate(timeout=HANGS)[1].decode()
                self.assertEqual(process.returncode, 130, said)
                if "in flight are saved" in said:
                    break
                self.clear()
            self.assertRegex(said, r"sequences in flight are saved; run the same command with --resume")
            _, done = self.resume(answers, (5, 2), *TIERS)
            self.assertGreater(done["resumed_sequences"], 0)
            self.clear()


class NothingAnsweredYet(Case):
    LINES = [{"id": i, "prompt": " ".join(WORDS[i % 7:i % 7 + 4]), "max_tokens": 300, "ignore_eos": True} for i in range(12)]

    def begin(self, number, times, after=0, pause=0.01):
        """Signals a run before any of its answers has ended."""
        process = WEFT.start(*self.command((4, 3), "--threads", 1, *DISK, every="0.01s"))
        while not self.saved.exists():
            self.assertIsNone(process.poll())
            time.sleep(0.002)
        time.sleep(after)
        for _ in range(times):
            process.send_signal(number)
            time.sleep(pause)
        said = process.communicate(timeout=HANGS)[1].decode()
        self.assertEqual(process.returncode, 130, said)
        self.assertEqual(self.output.stat().st_size, 0)
        self.assertIn("in flight are saved", said)

    def test_a_signal_that_comes_twice_at_once_is_one_request(self):
        answers = self.undisturbed(self.LINES)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self.begin(number, times=2)
            self.assertEqual(self.resume(answers, (5, 2), *TIERS)[1]["resumed_sequences"], 12)
            self.clear()

    def test_other_settings_are_refused(self):
        answers = self.undisturbed(self.LINES)
        self.begin(signal.SIGTERM, times=1)
        saved, record = self.saved.read_bytes(), pathlib.Path(f"{self.output}.run.json").read_bytes()
        for wrong in (["--kv-dtype", "int8"], ["--max-tokens", 7], ["--retention", "h2o:0.2:0.2"], ["--dtype", "float32"]):
            done = WEFT.run(*self.command((4, 3), "--resume", *wrong, *DISK))
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("belongs to another run", done.stderr.decode())
            self.assertEqual(self.saved.read_bytes(), saved)
            self.assertEqual(pathlib.Path(f"{self.output}.run.json").read_bytes(), record)
        self.assertEqual(self.resume(answers, (4, 3), *TIERS)[1]["resumed_sequences"], 12)

    def test_whatever_comes_twice(self):
        """200 doubled signals at any moment, and after each a resume with a wrong setting: nothing that was saved is lost."""
        answers = self.undisturbed(self.LINES)
        choice = random.Random(int(os.environ.get("WEFT_TEST_SEED", "1")))
        for turn in range(200):
            number = choice.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
            self.begin(number, times=2, after=choice.uniform(0, 0.3), pause=choice.uniform(0, 0.05))
            saved = self.saved.read_bytes()
            wrong = choice.choice([["--kv-dtype", "int8"], ["--kv-dtype", "int4"], ["--max-tokens", 7], ["--dtype", "float32"],
                                   ["--retention", "h2o:0.2:0.2"]])
            done = WEFT.run(*self.command((4, 3), "--resume", *wrong, *DISK))
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(self.saved.read_bytes(), saved)
            if turn % 20 == 0:
                self.assertEqual(self.resume(answers, (5, 2), *TIERS)[1]["resumed_sequences"], 12)
            self.clear()

    def test_other_weights_by_force_begin_anew(self):
        """What was in flight is of the weights that it was begun with, and answers of two models are none."""
        self.model = write_tiny_model(self.folder / "model", max_position_embeddings=512, hidden_size=64, ffn_dim=256,
                                      word_embed_proj_dim=64, num_hidden_layers=6)
        self.LINES = [{"id": i, "prompt_ids": [i + 1, 5], "max_tokens": 400} for i in range(12)]
        self.undisturbed(self.LINES)
        self.begin(signal.SIGTERM, times=1)
        weights = self.model / "model.safetensors"
        state, data = weights.stat(), bytearray(weights.read_bytes())
        for at in range(len(data) // 8 * 2, len(data) // 8 * 2 + 20000, 2):  # between the samples; another sign
            data[at + 1] ^= 0x80
        weights.write_bytes(data)
        os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
        kept = {name: pathlib.Path(f"{self.output}{name}").read_bytes() for name in ("", ".inflight", ".run.json")}
        self.clear()
        answers = self.undisturbed(self.LINES)
        for name, content in kept.items():
            pathlib.Path(f"{self.output}{name}").write_bytes(content)
        self.assertEqual(WEFT.run(*self.command((4, 3), "--resume", *DISK)).returncode, 2)
        done = WEFT.run(*self.command((4, 3), "--resume=force", *DISK, every="10m"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"what was in flight begins again", done.stderr)
        self.assertEqual(sorted(self.output.read_bytes().splitlines()), answers)


class Contradictions(Case):
    """Snapshots with right checksums whose fields say what no run says."""

    def crafted(self, change):
        """Changes the index of the snapshot, and makes its checksums right again."""
        data = self.saved.read_bytes()
        index_at, _, _ = struct.unpack("<QII", data[-16:])
        index = bytearray(data[index_at:-16])
        at = 0

        def take(form):
            nonlocal at
            at += struct.calcsize(form)
            return struct.unpack_from(form, index, at - struct.calcsize(form))[0]

        for _ in range(3):
            length = take("<Q")  # of the texts of the kind
            at += length
        take("<i"), take("<Q")
        place = {"request": at, "choice": at + 8, "keep": at + 16, "count": at + 16 + 32}  # keep: eight numbers
        change(index, place)
        end = struct.pack("<QI", index_at, crc32c(index))
        self.saved.write_bytes(data[:index_at] + index + end + struct.pack("<I", crc32c(end)))

    def test_each_begins_again_by_itself(self):
        answers = self.undisturbed(requests())
        self.start_and_kill((16, 2), *RESIDENT, "--quiet")
        files = {name: pathlib.Path(f"{self.output}{name}").read_bytes() for name in ("", ".inflight", ".sums", ".run.json")}

        def token(value):
            return lambda index, place: struct.pack_into("<i", index, place["count"] + 8, value)

        def keep(index, place):
            struct.pack_into("<i", index, place["keep"], 1)

        def request(index, place):
            struct.pack_into("<Q", index, place["request"], 1 << 40)

        for name, change in {"a token below 0": token(-1), "a token beyond the vocabulary": token(1 << 30), "another keep": keep,
                             "no such request": request}.items():
            with self.subTest(name):
                for file, content in files.items():
                    pathlib.Path(f"{self.output}{file}").write_bytes(content)
                self.crafted(change)
                said, done = self.resume(answers, (8, 2), *TIERS, "--quiet")
                if name != "no such request":
                    self.assertIn("is not as this run would have saved it; it begins again", said)
                self.assertGreater(done["resumed_sequences"], 0)


class CostsOnlyTime(Case):
    """A snapshot that cannot be used is said in a line and ignored."""

    def setUp(self):
        super().setUp()
        self.answers = self.undisturbed(requests())
        self.start_and_kill((16, 2), *RESIDENT, "--quiet")

    def ignored(self, words, *flags):
        said, done = self.resume(self.answers, (8, 2), *TIERS, "--quiet", *flags)
        self.assertEqual(said.count("\n"), 1, said)
        self.assertIn(words, said)
        return done["resumed_sequences"]

    def test_damaged(self):
        whole = self.saved.read_bytes()
        files = {name: pathlib.Path(f"{self.output}{name}").read_bytes() for name in ("", ".sums", ".run.json")}
        cases = {"its end is damaged": whole[:-100], "is too short": whole[:20], "begins as no such file does": b"x" + whole[1:],
                 "was saved by another version of Weft": whole[:15] + b"1" + whole[16:],
                 "begins otherwise": b"a text of somebody else's, and no snapshot" * 9,
                 "its index is damaged": whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:]}
        for words, data in cases.items():
            with self.subTest(words):
                for name, content in files.items():
                    pathlib.Path(f"{self.output}{name}").write_bytes(content)
                self.saved.write_bytes(data)
                flags = ["--checkpoint-every", "off"] if words == "begins otherwise" else []  # it would not be replaced
                if flags:
                    done = WEFT.run(*self.command((8, 2), "--resume", *TIERS))
                    self.assertEqual(done.returncode, 2)
                    self.assertIn("is another file than this would write", done.stderr.decode())
                    self.assertEqual(self.saved.read_bytes(), data)
                    continue
                self.assertEqual(self.ignored(words + "; what was in flight begins again"), 0)

    def test_a_sequence_of_it_is_damaged(self):
        whole = bytearray(self.saved.read_bytes())
        whole[len(whole) // 2] ^= 1
        self.saved.write_bytes(whole)
        self.assertGreater(self.ignored("the KV cache of a sequence is damaged; it begins again"), 0)

    def test_missing(self):
        self.saved.unlink()
        said, done = self.resume(self.answers, (8, 2), *TIERS, "--quiet")
        self.assertEqual((said, done["resumed_sequences"]), ("", 0))

    def test_of_another_run(self):
        """Other requests, accepted by force: their answers are their own."""
        lines = requests()
        for line in lines:
            line["prompt"] += " and"
        shutil.copy(self.saved, self.folder / "old")
        self.clear()
        answers = self.undisturbed(lines)
        process = WEFT.start(*self.command((16, 2), *RESIDENT))
        while not self.saved.exists():
            time.sleep(0.002)
        process.kill()
        process.communicate()
        shutil.copy(self.folder / "old", self.saved)
        self.answers = answers
        self.assertEqual(self.ignored("is of another run; what was in flight begins again"), 0)

    def test_another_retention(self):
        self.clear()
        for layers in ("", ":layers=1.5,0.5,1,1"):
            self.start_and_kill((16, 2), *RESIDENT, "--quiet", "--retention", "h2o:0.2:0.2" + layers, after=0)
            self.output.write_bytes(b"")  # nothing is answered, and yet another retention would lose what is in flight
            done = WEFT.run(*self.command((8, 2), "--resume", *TIERS))
            self.assertEqual(done.returncode, 2)
            self.assertIn("belongs to another run", done.stderr.decode())
            self.assertTrue(self.saved.exists())
            done = WEFT.run(*self.command((8, 2), "--resume=force", "--report", self.report, *TIERS))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("is of another run; what was in flight begins again", done.stderr.decode())
            self.assertEqual(sorted(self.output.read_bytes().splitlines()), self.answers)
            self.clear()


class Files(Case):
    def test_what_is_there_is_kept(self):
        write_lines(self.input, requests())
        for make in (lambda: self.saved.write_text("notes"), lambda: self.saved.symlink_to(self.folder / "notes"), self.saved.mkdir):
            make()
            done = WEFT.run(*self.command((8, 2), *RESIDENT))
            self.assertEqual((done.returncode, done.stderr.count(b"\n")), (2, 1), done.stderr)
            self.assertIn(b"out.jsonl.inflight: is another file than this would write", done.stderr)
            self.assertFalse(self.output.exists())
            shutil.rmtree(self.saved) if self.saved.is_dir() and not self.saved.is_symlink() else self.saved.unlink()
        self.saved.write_text("notes")
        done = WEFT.run(*self.command((8, 2), *RESIDENT, every="off"))
        self.assertEqual((done.returncode, self.saved.read_text()), (0, "notes"), done.stderr)

    def test_what_appears_meanwhile_is_kept(self):
        answers = self.undisturbed(requests())
        process = WEFT.start(*self.command((8, 2), "--quiet", *TIERS))
        while not self.saved.exists():
            time.sleep(0.001)
        self.saved.unlink()
        self.saved.write_text("notes")
        said = process.communicate(timeout=HANGS)[1].decode()
        self.assertEqual((process.returncode, said.count("\n")), (0, 1), said)
        self.assertIn("is another file than this would write", said)
        self.assertEqual(self.saved.read_text(), "notes")
        self.assertEqual(sorted(self.output.read_bytes().splitlines()), answers)

    def test_a_full_disk_ends_nothing(self):
        """A limit on the size of files, above which a write fails, as a full disk makes it fail."""
        answers = self.undisturbed(requests())
        limit = sum(len(line) + 1 for line in answers) + 1000
        done = WEFT.run(*self.command((40, 1), "--quiet", *RESIDENT), preexec_fn=lambda: limit_files(limit))
        said = done.stderr.decode()
        self.assertEqual((done.returncode, said.count("\n")), (0, 1), said)
        self.assertIn("what is in flight is not saved, and the job goes on", said)
        self.assertEqual(sorted(self.output.read_bytes().splitlines()), answers)
        self.assertEqual([p.name for p in self.folder.iterdir() if "inflight" in p.name], [])

    @unittest.skipUnless(os.path.ismount("/dev/shm"), "there is no tmpfs")
    def test_a_spill_file_in_memory_is_said(self):
        write_lines(self.input, requests()[:2])
        for flags, said in ((DISK, True), (RESIDENT, False)):
            done = WEFT.run(*self.command((2, 1), "--disk-dir", "/dev/shm", *flags))
            self.assertEqual((done.returncode, b"--disk-dir /dev/shm: is in memory (tmpfs)" in done.stderr), (0, said))
            self.clear()

    def test_intervals(self):
        write_lines(self.input, requests())
        for text in ("10", "ten minutes", "-1s", "nan", "1d", "inf", "1e9h"):
            done = WEFT.run(*self.command((8, 2), *RESIDENT, every=text))
            self.assertEqual((done.returncode, done.stderr.count(b"\n")), (2, 1), done.stderr)
            self.assertIn(b"--checkpoint-every must be off or a time such as 10m", done.stderr)
        done = WEFT.run(*self.command((8, 2), "--report", self.report, *RESIDENT, every="0s"))
        self.assertEqual(done.returncode, 0, done.stderr)
        done = json.loads(self.report.read_text())["checkpoints"]
        self.assertGreater(done["count"], 50)
        self.assertGreater(done["bytes"], 1000)
        self.assertGreater(done["seconds"], 0)


def limit_files(most):
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


if __name__ == "__main__":
    WEFT, SOURCE = Weft(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
