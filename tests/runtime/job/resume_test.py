#!/usr/bin/env python3
"""What --resume takes and what it refuses, with the expected error; and what else is next to an output.

Usage: resume_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, read_lines, write_lines, write_tiny_model  # noqa: E402

WEFT = None
SOURCE = None
USAGE, IO = 2, 6
REQUESTS = [{"id": f"request {i}" if i % 2 else i, "prompt_ids": [3, i + 1], "max_tokens": 1 + 5 * i % 13} for i in range(12)]


class Case(unittest.TestCase):
    """A job of twelve requests, of which seven are answered."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-resume-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"
        self.record, self.model = self.folder / "out.jsonl.run.json", write_tiny_model(self.folder / "tiny")
        write_lines(self.input, REQUESTS)
        self.run_job()
        self.whole = self.output.read_bytes().splitlines(keepends=True)
        self.assertEqual(len(self.whole), len(REQUESTS))
        self.output.write_bytes(b"".join(self.whole[:7]))

    def command(self, *flags, **changes):
        arguments = {"--model": self.model, "--input": self.input, "--output": self.output, "--backend": "cpu",
                     "--gpu-batch-size": 3, "--num-gpu-batches": 2, **changes}
        return ["generate", *(word for pair in arguments.items() for word in pair), "--percent", 100, 0, 100, 0, 100, 0,
                "--quiet", *flags]

    def run_job(self, *flags, code=0, **changes):
        done = WEFT.run(*self.command(*flags, **changes))
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr.decode()

    def refused(self, code, words, *flags, output=None, **changes):
        """One line, and every file is as it was."""
        before = {p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}
        done = WEFT.run(*self.command(*flags, **({"--output": output} if output else {}), **changes))
        said = done.stderr.decode()
        with self.subTest(flags=flags, words=words):
            self.assertEqual((done.returncode, said.count("\n")), (code, 1), said)
            for word in [words] if isinstance(words, str) else words:
                self.assertIn(word, said)
            self.assertEqual({p: p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}, before)

    def resumed(self, *flags, **changes):
        """Goes on to the end: what was there stays, and the answers are those of a run that was not disturbed."""
        kept = self.output.read_bytes().splitlines(keepends=True)
        kept = list(dict.fromkeys(line for line in kept if line in self.whole))
        said = self.run_job(*flags, **changes)
        lines = self.output.read_bytes().splitlines(keepends=True)
        self.assertEqual(lines[:len(kept)], kept)
        self.assertEqual(sorted(lines), sorted(self.whole))
        return said


class Record(Case):
    def test_what_it_holds(self):
        record = json.loads(self.record.read_text())
        self.assertEqual(record["format"], 1)
        self.assertRegex(record["created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual(set(record["run"]), {"program", "job", "requests", "dtype", "max_tokens", "retention",
                                              "model/config.json", "model/model.safetensors"})
        self.assertTrue(record["run"]["requests"].startswith("12, "))
        self.assertIn("crc32c", record["weights"]["model.safetensors"])
        self.assertEqual(len(record["kernels"]), 1)
        self.assertRegex(record["kernels"][0], "^(AVX-512|AVX2|plain C\\+\\+.*)$")
        self.resumed("--resume")
        self.assertEqual(json.loads(self.record.read_text()), record)  # `created` included

    def test_another_run(self):
        for flags, words in [(["--dtype", "bfloat16"], ["'dtype' was 'float16' and is now 'bfloat16'"]),
                             (["--max-tokens", 9], ["'max_tokens' was '128' and is now '9'"]),
                             (["--retention", "recent:9"], ["'retention' was"]),
                             (["--retention", "recent:9:layers=1.5,0.5"], ["'retention' was", "[1.5,0.5]"]),
                             (["--kv-dtype", "int4"], ["'kv' was not said and is now 'int4, keys int8, rotated'"]),
                             (["--kv-dtype", "int4", "--kv-keys", "int4"], ["is now 'int4, rotated'"]),
                             (["--compress-cache"], ["is now 'int4, keys int8, rotated'"]),
                             (["--weights", "random:3"], ["'weights' was not said and is now 'random:3'"])]:
            self.refused(USAGE, ["out.jsonl: belongs to another run", "--resume=force", *words], "--resume", *flags)
        for number, changes in enumerate([{"seed": 2}, {"ffn_dim": 48}, {"eos_token_id": 5}]):
            other = write_tiny_model(self.folder / f"other{number}", **changes)
            self.refused(USAGE, ["belongs to another run", "'model/"], "--resume", **{"--model": other})
        for changed in (REQUESTS[::-1], REQUESTS[:-1], [{**REQUESTS[0], "max_tokens": 2}, *REQUESTS[1:]]):
            write_lines(self.input, changed)
            self.refused(USAGE, ["'requests' was '12, ", f"and is now '{len(changed)}, "], "--resume")
        done = WEFT.run("score", *self.command("--resume")[1:])
        self.assertEqual(done.returncode, USAGE, done.stderr)
        record = json.loads(self.record.read_text())
        record["run"]["program"] = "weft 0.0.1"
        self.record.write_text(json.dumps(record))
        write_lines(self.input, REQUESTS)
        self.refused(USAGE, "'program' was 'weft 0.0.1' and is now 'weft ", "--resume")

    def test_other_kernels(self):
        """Those that give other bits are warned of; AVX2 and AVX-512 give the same."""
        mine = json.loads(self.record.read_text())["kernels"]
        for others, warned in ((["AVX2"], mine[0] not in ("AVX2", "AVX-512")), (["AVX-512"], mine[0] not in ("AVX2", "AVX-512")),
                               (["plain C++"], mine[0] != "plain C++"), (["CUDA on a\u001bcard"], True),
                               (["AVX2", "CUDA on a card"], True), ([], False)):
            with self.subTest(others=others):
                record = json.loads(self.record.read_text())
                self.record.write_text(json.dumps({**record, "kernels": others}))
                self.output.write_bytes(b"".join(self.whole[:7]))
                said = self.resumed("--resume")
                self.assertEqual(said.count("some answers were computed by '"), 1 if warned else 0, said)
                self.assertNotIn("\x1b", said)
                self.assertEqual(json.loads(self.record.read_text())["kernels"], list(dict.fromkeys(others + mine)))
        for damaged in "AVX2", [1], {}:
            self.record.write_text(json.dumps({**json.loads(self.record.read_text()), "kernels": damaged}))
            self.output.write_bytes(b"".join(self.whole[:7]))
            self.refused(USAGE, ["'kernels'", "a list of names", "remove it"], "--resume")
            self.record.write_text(json.dumps(record))

    def test_what_is_the_same(self):
        """Line ends, blank lines and where the model lies change no answer."""
        self.input.write_bytes(b"\r\n\n".join(json.dumps(request).encode() for request in REQUESTS))
        self.model = self.model.rename(self.folder / "moved")
        self.resumed("--resume", "--retention", "full", "--dtype", "float16")

    def test_force(self):
        more = [*REQUESTS, {"id": "more", "prompt_ids": [9], "max_tokens": 3}]
        write_lines(self.input, more)
        self.refused(USAGE, "--resume=force", "--resume")
        self.assertIn("going on anyway", self.run_job("--resume=force"))
        self.assertEqual(len(read_lines(self.output)), 13)
        self.run_job("--resume")  # the record is of these requests now
        write_lines(self.input, REQUESTS)
        self.assertIn("answers a request that is not in the input (byte ", self.run_job("--resume=force", code=USAGE))

    def test_adopt(self):
        self.record.unlink()
        for how in "--resume", "--resume=force", "--resume=repair":
            self.refused(USAGE, ["out.jsonl: there is no out.jsonl.run.json", "--resume=adopt"], how)
        self.resumed("--resume=adopt")
        self.assertEqual(stat.S_IMODE(self.record.stat().st_mode), 0o600)
        self.run_job("--resume")

    def test_damaged_record(self):
        text = self.record.read_text()
        for cut in [0, 1, len(text) // 2, len(text.rstrip()) - 1]:
            self.record.write_text(text[:cut])
            self.refused(USAGE, ["out.jsonl.run.json", "remove it and use --resume=adopt"], "--resume")
            self.refused(USAGE, "remove it", "--resume=adopt")
        for change in {"format": "1"}, {"run": []}, {"run": {"dtype": 16}}, {"durable_bytes": -1}, {"more": 1}:
            self.record.write_text(json.dumps({**json.loads(text), **change}))
            self.refused(USAGE, ["out.jsonl.run.json", "remove it"], "--resume")
        self.record.write_text(json.dumps({**json.loads(text), "format": 2, "new": []}))
        self.refused(USAGE, ["is of format 2, this program knows 1", "go on with the version"], "--resume")
        self.record.unlink()
        self.record.mkdir()
        self.refused(USAGE, ["record", "a directory"], "--resume")
        self.record.rmdir()
        self.record.symlink_to(self.folder / "nowhere")
        self.refused(USAGE, ["out.jsonl.run.json", "is a symbolic link"], "--resume")

    def test_killed_before_the_record(self):
        """An empty output needs none; a half written one is replaced."""
        self.output.write_bytes(b"")
        self.record.unlink()
        half = self.folder / ".out.jsonl.run.json.weft-part"
        half.write_text("{")
        self.refused(USAGE, "exists", )
        self.resumed("--resume")
        self.assertFalse(half.exists())
        self.output.unlink()  # a record without an output is of no run
        self.run_job("--dtype", "bfloat16")
        self.assertEqual(json.loads(self.record.read_text())["run"]["dtype"], "bfloat16")

    def test_a_chosen_retention_stays(self):
        """The plan may choose another cache among those allowed; a resume keeps to the first choice."""
        record = json.loads(self.record.read_text())
        record["run"]["retention"] = json.dumps({"rule": "recent", "recent": 40}, separators=(",", ":"))
        self.output.write_bytes(b"")
        allowed = ["--retention", "full", "--or-retention", "recent:40", "--machine", SOURCE / "configs/machines/cpu.json"]
        self.run_job("--resume", "--retention", "recent:40")
        chosen = json.loads(self.record.read_text())["run"]["retention"]
        self.output.write_bytes(b"".join(self.output.read_bytes().splitlines(keepends=True)[:5]))
        self.run_job("--resume", *allowed)
        self.assertEqual(json.loads(self.record.read_text())["run"]["retention"], chosen)

    def test_chosen_formats_stay(self):
        """The plan may choose formats among those allowed; a resume keeps to the first choice."""
        asked = ["--or-kv-dtype", "int8", "--or-weight-dtype", "int8", "--machine", SOURCE / "configs/machines/cpu.json"]
        for begun, said in [(["--kv-dtype", "int8", "--weight-dtype", "int8"], ("int8, rotated", "int8 in groups of 64, int8 arithmetic")),
                            ([], (None, None))]:
            self.output.unlink()
            self.run_job(*begun)
            whole = sorted(self.output.read_bytes().splitlines())
            self.output.write_bytes(b"".join(self.output.read_bytes().splitlines(keepends=True)[:5]))
            self.run_job("--resume", *asked)
            run = json.loads(self.record.read_text())["run"]
            self.assertEqual((run.get("kv"), run.get("weight_dtype")), said)
            self.assertEqual(sorted(self.output.read_bytes().splitlines()), whole)
        self.output.unlink()
        self.run_job(*asked)  # and without a record the plan's is taken
        self.assertTrue(json.loads(self.record.read_text())["run"])

    def test_flags(self):
        for flag, words in [("--resume=maybe", "got 'maybe'"), ("--resume=force,", "got ''"), ("--resume=no", "'no'"),
                            ("--durability=disk", "--durability must be process or power, got 'disk'")]:
            self.refused(USAGE, words, flag)


class Lines(Case):
    def test_damaged(self):
        good, bad = self.whole[:3], self.folder / "out.jsonl.bad"
        begin = sum(map(len, good))
        rows = [(b"notes\n", "not valid JSON"), (b"\n", "empty"), (b'{"id":0,"logprobs":[]}\n', "not a result"),
                (b'{"level":"info","msg":"another program"}\n', "not a result"),
                (good[0], "second time"), (b'{"id":"new","token_ids":[1]}\n', "not in the input"),
                (self.whole[3].replace(b"\n", b"\r\n"), "lines end in"), (bytes(300) + b"\n", "not valid JSON"),
                (self.whole[3][:-9] + b"\n", "not valid JSON")]
        for line, words in rows:
            bad.unlink(missing_ok=True)
            self.output.write_bytes(b"".join(good) + line + self.whole[4])
            self.refused(USAGE, ["out.jsonl:4: ", words, f"(byte {begin})", "--resume=repair"], "--resume")
            self.assertIn("1 damaged lines are now in", self.resumed("--resume=repair"))
            self.assertEqual(bad.read_bytes(), line)
            self.assertEqual(stat.S_IMODE(bad.stat().st_mode), 0o600)
            self.assertFalse(list(self.folder.glob(".*.weft-part*")))
        self.output.write_bytes(b"\xef\xbb\xbf" + b"".join(good))
        self.refused(USAGE, ["out.jsonl:1: ", "(byte 0)"], "--resume")
        self.output.write_bytes(b"x\n" + b"".join(good) + b"y\n" + self.whole[4] + b"not a result's beginning")
        self.refused(USAGE, ["out.jsonl:1: ", "3 such lines"], "--resume")
        self.resumed("--resume=repair")
        self.assertTrue(bad.read_bytes().endswith(b"x\ny\nnot a result's beginning\n"))

    def test_failures_are_tried_again(self):
        """A refused request is put right. Only with =force,retry does it run; its old line is set aside."""
        bad, record = self.folder / "out.jsonl.bad", ("--on-bad-request", "record")
        self.output.unlink()
        write_lines(self.input, [*REQUESTS[:2], {**REQUESTS[2], "max_tokens": 0}, *REQUESTS[3:]])
        said = self.run_job(*record, code=1)
        self.assertIn("1 of 12 requests have no answer; each has a line that says why; mend what it names and give "
                      "--resume=force,retry", said)
        failed = [line for line in self.output.read_bytes().splitlines(keepends=True) if b'"error"' in line]
        self.assertIn("--resume=force,retry", self.run_job("--resume", *record, code=1))
        self.run_job("--resume=retry", *record, code=1)  # nothing has changed, so it fails again
        self.assertEqual(bad.read_bytes(), failed[0])
        write_lines(self.input, REQUESTS)
        self.refused(USAGE, ["belongs to another run", "--resume=force,retry"], "--resume=retry")
        self.assertIn("--resume=force,retry", self.run_job("--resume=force", code=1))
        self.run_job("--resume=force,retry")
        self.assertEqual(sorted(self.output.read_bytes().splitlines(keepends=True)), sorted(self.whole))
        self.assertEqual(bad.read_bytes(), 2 * failed[0])

    def test_tails(self):
        """Every length of the last line: 1 to all but the newline; and what a crashed file system may leave."""
        before, last = b"".join(self.whole[:11]), self.whole[11]
        for cut in [1, 2, 7, len(last) // 2, len(last) - 1]:  # all of them: journal_test.cc
            self.output.write_bytes(before + last[:cut])
            self.resumed("--resume")
        for tail in bytes(1), bytes(4096), last[:9] + bytes(4096):
            self.output.write_bytes(before + tail)
            self.resumed("--resume")

    def test_mode(self):
        for path in self.output, self.record:
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        self.output.chmod(0o640)
        self.output.write_bytes(b"x\n" + self.whole[0])
        self.resumed("--resume=repair")
        self.assertEqual(stat.S_IMODE(self.output.stat().st_mode), 0o640)

    def test_order(self):
        in_order = self.folder / "out.sorted.jsonl"
        self.resumed("--resume", "--ordered")
        self.assertEqual([answer["id"] for answer in read_lines(in_order)], [request["id"] for request in REQUESTS])
        self.assertEqual(sorted(in_order.read_bytes().splitlines(keepends=True)), sorted(self.whole))
        self.assertEqual(stat.S_IMODE(in_order.stat().st_mode), 0o600)
        in_order.unlink()
        self.run_job("--resume", "--ordered")  # all was answered already
        self.assertEqual(len(read_lines(in_order)), len(REQUESTS))
        self.output.unlink()
        self.refused(USAGE, ["--ordered", "out.sorted.jsonl exists"], "--ordered")
        self.refused(USAGE, ["--report", "--ordered"], "--ordered", "--report", in_order)
        self.refused(USAGE, ["--report", "record"], "--report", self.record)

    def test_power(self):
        for position in 4, 7:
            self.output.write_bytes(b"".join(self.whole[:position]))
            self.resumed("--resume", "--durability=power")
        record = json.loads(self.record.read_text())
        self.output.write_bytes(b"".join(self.whole[:7]))
        self.record.write_text(json.dumps({**record, "durable_bytes": sum(map(len, self.whole[:5]))}))
        self.assertIn("durable_bytes", self.resumed("--resume") + self.record.read_text())  # cuts nothing and forgets nothing
        said = self.run_job("--resume", "--durability=power")
        self.assertIn("after byte", said)
        lines = self.output.read_bytes().splitlines(keepends=True)
        self.assertEqual((lines[:5], sorted(lines)), (self.whole[:5], sorted(self.whole)))
        self.assertNotIn("durable_bytes", self.record.read_text())


class Places(Case):
    def test_no_file_to_write(self):
        fifo, loop, dangling = self.folder / "pipe", self.folder / "loop", self.folder / "dangling"
        os.mkfifo(fifo)
        loop.symlink_to("loop")
        dangling.symlink_to("nowhere")
        for resume in ["--resume"], []:
            self.refused(USAGE, ["--output", "is a directory"], *resume, output=self.folder)
            self.refused(USAGE, ["--output", "is a pipe"], *resume, output=fifo)
            self.refused(IO, ["loop", "Too many levels of symbolic links"], *resume, output=loop)
            self.refused(USAGE, ["--output", "a symbolic link to nothing"], *resume, output=dangling)
            self.refused(IO, ["--output", "nowhere"], *resume, output=self.folder / "nowhere" / "out.jsonl")
            self.refused(USAGE, ["--output", "--input"], *resume, output=self.input)
        self.refused(USAGE, "exists")
        hard = self.folder / "hard.jsonl"
        hard.hardlink_to(self.output)
        self.refused(USAGE, ["hard.jsonl", "several names"], "--resume", output=hard)
        hard.unlink()
        hard.hardlink_to(self.input)
        for flags in [], ["--resume"], ["--resume=adopt"]:
            self.refused(USAGE, "is also the file of --input", *flags, output=hard)

    def test_no_permission(self):
        """A file that may only be read, somebody else's file, a folder that may only be read."""
        command, who = self.command("--resume"), {}
        weft = WEFT
        if os.geteuid() == 0:  # root may write everywhere, so somebody else runs it
            who = {"user": 65534, "group": 65534, "extra_groups": []}
            weft = Weft(shutil.copy(WEFT.binary, self.folder / "weft"))
            for path in self.folder, *self.folder.rglob("*"):
                os.chown(path, 65534, 65534)

        def refused(words):
            done = weft.run(*command, **who)
            self.assertEqual((done.returncode, done.stderr.count(b"\n")), (IO, 1), done.stderr)
            for word in words, b"Permission denied":
                self.assertIn(word, done.stderr)

        self.output.chmod(0o400)
        refused(b"out.jsonl")
        self.output.chmod(0o600)
        if who:
            os.chown(self.output, 0, 0)
            refused(b"out.jsonl")
            os.chown(self.output, 65534, 65534)
        self.record.chmod(0)
        refused(b"out.jsonl.run.json")
        self.record.chmod(0o600)
        self.folder.chmod(0o500)
        refused(b"out.jsonl")
        self.folder.chmod(0o700)
        done = weft.run(*command, **who)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_read_only_file_system(self):
        mount = "mount --bind {0} {0} && mount -o remount,ro,bind {0} && exec \"$@\""
        command = ["unshare", "-rm", "sh", "-c", mount.format(self.folder), "sh"]
        if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
            self.skipTest("no name spaces here")
        done = subprocess.run([*command, *WEFT.command(*self.command("--resume"))], capture_output=True, timeout=HANGS)
        self.assertEqual(done.returncode, IO, done.stderr)
        self.assertIn(b"Read-only file system", done.stderr)

    def full_disk(self, pages_left, then):
        """A job whose output lies on a disk of 16 pages; once it says that there is no space, `then` is done."""
        disk, spill = self.folder / "disk", self.folder / "spill"
        disk.mkdir(exist_ok=True)
        spill.mkdir(exist_ok=True)
        write_lines(self.input, [{**request, "id": i, "max_tokens": 40} for i, request in enumerate(REQUESTS * 8)])
        (self.folder / "said").write_text("")
        job = self.command("--disk-dir", spill, **{"--output": disk / "out.jsonl"})
        script = f"""mount -t tmpfs -o size=64k none {disk} && head -c {(16 - pages_left) * 4096} /dev/zero >{disk}/filler
            "$@" 2>{self.folder}/said & job=$!
            while kill -0 $job 2>/dev/null && ! grep -q 'no space' {self.folder}/said; do sleep 0.05; done
            {then}; wait $job; code=$?; cat {self.folder}/said >&2; cat {disk}/out.jsonl; exit $code"""
        command = ["unshare", "-rm", "sh", "-c", script, "sh", *WEFT.command(*job)]
        if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0:
            self.skipTest("no name spaces here")
        return subprocess.run(command, capture_output=True, timeout=HANGS)

    def test_a_full_disk(self):
        """At the first byte and in the middle: the run waits and goes on, or can be ended; earlier answers are whole."""
        for pages_left in 1, 4:
            done = self.full_disk(pages_left, then=f"rm {self.folder}/disk/filler")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(b"out.jsonl: no space for a result; trying again for ", done.stderr)
            self.assertEqual(len(done.stdout.splitlines()), 8 * len(REQUESTS))
        done = self.full_disk(4, then="kill -TERM $job")  # the shell has its jobs ignore SIGINT
        self.assertEqual(done.returncode, 130, done.stderr)
        self.assertTrue(0 < len(done.stdout.splitlines()) < 8 * len(REQUESTS) and done.stdout.endswith(b"\n"))
        done = self.full_disk(0, then=":")
        self.assertEqual(done.returncode, IO, done.stderr)
        self.assertIn(b"out.jsonl.run.json: cannot ", done.stderr)

    def test_deleted_while_it_is_written(self):
        write_lines(self.input, [{"id": i, "prompt_ids": [3, i % 60], "max_tokens": 40} for i in range(4000)])
        self.output.unlink()
        process = WEFT.start(*self.command())
        while process.poll() is None and not (self.output.exists() and self.output.stat().st_size > 9000):
            time.sleep(0.001)
        self.output.unlink()
        said = process.communicate(timeout=HANGS)[1].decode()
        self.assertEqual(process.returncode, IO, said)
        self.assertIn("was deleted while the run was writing it", said)
        recovered = self.folder / "out.jsonl.recovered"
        kept = read_lines(recovered)
        self.assertGreater(len(kept), 7)
        recovered.rename(self.output)
        self.run_job("--resume")
        self.assertEqual(len(read_lines(self.output)), 4000)

    def test_two_at_once(self):
        for path in self.output, self.record:
            path.unlink()
        both = [WEFT.start(*self.command()) for _ in range(2)]
        said = [process.communicate(timeout=HANGS)[1].decode() for process in both]
        codes = sorted(process.returncode for process in both)
        self.assertEqual(codes[0], 0, said)
        self.assertIn(codes[1], (USAGE, IO), said)
        self.assertEqual(sorted(self.output.read_bytes().splitlines(keepends=True)), sorted(self.whole))


if __name__ == "__main__":
    WEFT, SOURCE = Weft(os.path.abspath(sys.argv[1])), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
