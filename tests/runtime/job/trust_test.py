#!/usr/bin/env python3
"""What a job may rely on and what it must not do to others: the process, the weights, broken rows, files next to an output.

Usage: trust_test.py WEFT_BINARY SOURCE_FOLDER [unittest arguments]
"""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from weft_process import HANGS, Weft, crowding, read_lines, wait_until_it_listens, write_lines, write_tiny_model  # noqa: E402

WEFT = None
SOURCE = None
USAGE, DATA, IO, STOPPED = 2, 3, 6, 130
ON_DEVICE = "--gpu-batch-size", 4, "--num-gpu-batches", 1, "--percent", 100, 0, 100, 0, 100, 0
FROM_DISK = "--gpu-batch-size", 4, "--num-gpu-batches", 1, "--percent", 0, 0, 100, 0, 100, 0
VICTIM, ATTACKER = 65534, 12345  # users of the tests in shared folders, which root alone can run


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-trust-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = self.folder / "tiny"
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"
        self.record = self.folder / "out.jsonl.run.json"

    def make(self, requests=12, tokens=6, **changes):
        write_tiny_model(self.model, **changes)
        write_lines(self.input, [{"id": i, "prompt_ids": [3, i % 50 + 1], "max_tokens": tokens} for i in range(requests)])

    def command(self, *flags, command="generate", layout=ON_DEVICE):
        return WEFT.command(command, "--model", self.model, "--input", self.input, "--output", self.output, "--backend", "cpu",
                            "--quiet", "--threads", 1, *layout, *flags)

    def run_job(self, *flags, code=0, **options):
        layout = options.pop("layout", ON_DEVICE)
        done = subprocess.run(self.command(*flags, layout=layout), capture_output=True, timeout=HANGS, **options)
        said = done.stderr.decode(errors="replace")
        self.assertEqual(done.returncode, code, said)
        return said

    def answers(self):
        return {line["id"]: line for line in read_lines(self.output)}

    def keep(self, count):
        """As if the run had been killed after so many answers."""
        self.output.write_bytes(b"".join(self.output.read_bytes().splitlines(keepends=True)[:count]))


class Process(Case):
    def test_closed_descriptors(self):
        """What is printed never lands in the answers."""
        self.make()
        self.run_job()
        whole = self.answers()
        for closing in ("<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"):
            with self.subTest(closing):
                self.keep(5)
                with self.output.open("ab") as file:
                    file.write(b'{"id":')  # a torn line, which --resume says it cuts
                words = " ".join(map(str, self.command("--resume"))).replace("--quiet ", "")
                done = subprocess.run(["sh", "-c", f"exec {words} {closing}"], stderr=subprocess.DEVNULL, timeout=HANGS)
                self.assertEqual(done.returncode, 0)
                self.assertEqual(self.answers(), whole)

    def test_signals_that_are_ignored_stay_so(self):
        """As nohup and background jobs of a shell have it; SIGTERM still stops."""
        self.make(requests=60, tokens=40)

        def ignore():
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)

        process = subprocess.Popen(self.command(layout=FROM_DISK), stderr=subprocess.PIPE, preexec_fn=ignore)
        while not self.output.exists() and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(HANGS), 0, process.stderr.read())
        process.stderr.close()
        self.assertEqual(len(self.answers()), 60)

    def stopped(self, arguments, wait, left):
        """Ends within two seconds of a SIGTERM, if the machine has nothing else to do, and leaves nothing."""
        before = sorted(self.folder.iterdir())
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wait_until_it_listens(process)
        time.sleep(wait)
        self.assertIsNone(process.poll(), "it ended before it could be stopped")
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=HANGS)
        self.assertLess(time.monotonic() - begin, 2 * crowding())
        self.assertEqual(process.returncode, STOPPED, said)
        self.assertEqual(sorted(self.folder.iterdir()), before + left)

    def test_long_loops_stop(self):
        demo = SOURCE / "models" / "demo"
        write_tiny_model(self.model)
        with self.input.open("w") as file:
            for i in range(600_000):
                file.write(f'{{"id":{i},"prompt_ids":[3,{i % 50 + 1}]}}\n')
        self.stopped(self.command(), 0.4, [])  # the requests are checked
        texts = self.folder / "texts.jsonl"
        with texts.open("w") as file:
            for i in range(100_000):
                file.write(json.dumps({"id": i, "text": "It was a long day. " * 20}) + "\n")
        self.stopped(WEFT.command("tokenize", "--model", demo, "--input", texts, "--output", self.folder / "ids"), 0.4, [])
        self.stopped(WEFT.command("bench", "--lanes", "--disk-dir", self.folder), 0.4, [])

    def test_a_full_standard_output(self):
        """What a command prints is its result."""
        demo = SOURCE / "models" / "demo"
        for arguments in (["inspect", demo], ["--version"], ["--help"], ["plan", "--help"],
                          ["plan", "--model", demo, "--machine", SOURCE / "configs/machines/cpu.json", "--prompt-len", 32,
                           "--gen-len", 8, "--gpu-batch-size", 4, "--num-gpu-batches", 1]):
            with self.subTest(arguments[0]), open("/dev/full", "wb") as full:
                done = subprocess.run(WEFT.command(*arguments), stdout=full, stderr=subprocess.PIPE, timeout=HANGS)
                self.assertEqual(done.returncode, IO, done.stderr)
                self.assertIn(b"standard output cannot be written", done.stderr)

    def test_no_core(self):
        """It would hold prompts."""
        self.make(requests=60, tokens=40)
        allow = lambda: resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)  # noqa: E731
        process = subprocess.Popen(self.command(layout=FROM_DISK), stderr=subprocess.DEVNULL, preexec_fn=allow)
        while not self.output.exists() and process.poll() is None:
            time.sleep(0.005)
        limits = pathlib.Path(f"/proc/{process.pid}/limits").read_text()
        process.kill()
        process.wait()
        self.assertRegex(limits, r"Max core file size +0 ")


class Weights(Case):
    """Files larger than what a record samples of them: 64 KiB in three places."""
    LARGE = {"hidden_size": 128, "ffn_dim": 512, "word_embed_proj_dim": 128}

    def flip(self, restore_times=False):
        """Changes numbers that no sample covers, in place."""
        file = self.model / "model.safetensors"
        before = file.stat()
        with file.open("r+b") as data:
            data.seek(before.st_size // 4)
            numbers = data.read(20_000)
            data.seek(before.st_size // 4)
            data.write(bytes(byte ^ 0x11 for byte in numbers))
        if restore_times:
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    def begun(self):
        self.make(**self.LARGE)
        self.run_job()
        whole = self.answers()
        self.keep(5)
        return whole

    def test_changed_between_a_run_and_its_resume(self):
        for restore_times in (False, True):
            with self.subTest(restore_times=restore_times):
                shutil.rmtree(self.model, ignore_errors=True)
                self.output.unlink(missing_ok=True)
                self.begun()
                kept = self.output.read_bytes()
                self.flip(restore_times)
                said = self.run_job("--resume", code=USAGE)
                self.assertIn("model.safetensors: its contents have changed", said)
                self.assertEqual(self.output.read_bytes(), kept)
        self.assertIn("going on anyway", self.run_job("--resume=force"))

    def test_changed_before_its_checksum_was_known(self):
        self.begun()
        record = json.loads(self.record.read_text())
        del record["weights"]["model.safetensors"]["crc32c"]
        self.record.write_text(json.dumps(record))
        self.flip()
        self.assertIn("the run ended before its checksum was known", self.run_job("--resume", code=USAGE))

    def test_touched_moved_and_copied_weights_are_the_same(self):
        whole = self.begun()
        file = self.model / "model.safetensors"
        os.utime(file)
        self.run_job("--resume")
        self.assertEqual(self.answers(), whole)
        self.keep(5)
        shutil.copytree(self.model, self.folder / "copy")
        shutil.rmtree(self.model)
        (self.folder / "copy").rename(self.model)
        self.run_job("--resume")
        self.assertEqual(self.answers(), whole)

    def test_changed_while_they_are_streamed(self):
        """The job ends; what it has written is of the old weights."""
        self.make(requests=400, tokens=20, **self.LARGE)
        self.run_job(layout=FROM_DISK)
        whole = self.answers()
        self.output.unlink()
        process = subprocess.Popen(self.command(layout=FROM_DISK), stderr=subprocess.PIPE)
        while process.poll() is None and not (self.output.exists() and self.output.stat().st_size > 0):
            time.sleep(0.002)
        self.flip()
        _, said = process.communicate(timeout=HANGS)
        self.assertEqual(process.returncode, DATA, said)
        self.assertIn(b"model.safetensors: has changed since its header was read", said)
        written = self.answers()
        self.assertLess(len(written), 400)
        self.assertEqual(written, {key: whole[key] for key in written})

    def test_merge_compares_the_records(self):
        self.make()
        parts = []
        for shard, dtype in ((1, "float16"), (2, "float32")):
            self.output = self.folder / f"part{shard}.jsonl"
            self.run_job("--shard", f"{shard}/2", "--dtype", dtype)
            parts.append(self.output)
        done = WEFT.run("merge", "--input", self.input, "--output", self.folder / "all.jsonl", *parts)
        self.assertEqual(done.returncode, USAGE)
        self.assertIn(b"part2.jsonl: belongs to another job than", done.stderr)
        self.assertIn(b"'dtype' was 'float16' and is now 'float32'", done.stderr)


class Spill(Case):
    """What others do to the nameless file under --disk-dir costs only time."""
    LAYOUT = "--gpu-batch-size", 4, "--num-gpu-batches", 2, "--percent", 0, 0, 0, 0, 0, 0, "--disk-engine", "threads"

    def disturbed(self, *flags, times):
        """The file is cut to nothing, so many times; if more than once, only when something has been saved since."""
        disk = self.folder / "disk"  # its own folder: a checkpoint is nameless too while it is written
        disk.mkdir(exist_ok=True)
        process = subprocess.Popen(self.command("--dtype", "float32", "--disk-dir", disk, *flags, layout=self.LAYOUT),
                                   stderr=subprocess.PIPE)
        said, saved, again = b"", None, times > 1
        snapshot = pathlib.Path(f"{self.output}.inflight")
        while times > 0 and process.poll() is None:
            for fd in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
                try:
                    name = os.readlink(fd)
                    spilled = name.startswith(f"{disk}/") and name.endswith(" (deleted)") and fd.stat().st_size > 0
                    if spilled and len(self.output.read_bytes()) > 0:
                        latest = snapshot.stat().st_mtime_ns if again else None
                        if again and latest == saved:
                            continue
                        os.truncate(fd, 0)
                        times, saved = times - 1, latest
                except OSError:  # one that is closed by now
                    pass
            time.sleep(0.002)
        said = process.communicate(timeout=HANGS)[1].decode()
        return process.returncode, said

    def test_a_file_cut_short(self):
        self.make(requests=300, tokens=30)
        self.run_job("--dtype", "float32", layout=self.LAYOUT)
        whole = self.answers()
        self.output.unlink()
        code, said = self.disturbed(times=1)
        self.assertEqual(code, 0, said)
        self.assertIn("what was computed with it is computed again", said)
        self.assertEqual(self.answers(), whole)
        for _ in range(5):  # now and then all that was saved has ended before the run does
            if self.lost_too_often(whole) > 0:
                return
        self.fail("no sequence was taken up where it had been saved")

    def lost_too_often(self, whole):
        """A run ends with its fourth loss, and a resume gives the same answers. Returns the sequences taken up by it."""
        self.output.unlink()
        code, said = self.disturbed("--checkpoint-every", "0.01s", times=1000)
        self.assertEqual(code, IO, said)
        self.assertIn("that is too often in one run: check the disk or name another --disk-dir, and run the same command with "
                      f"--resume, which goes on from what {self.output}.inflight holds of those in flight", said)
        self.assertEqual(said.count("is computed again"), 3, said)
        self.assertLess(len(self.answers()), len(whole))
        report = self.folder / "report.json"
        self.run_job("--dtype", "float32", "--resume", "--report", report)
        self.assertEqual(self.answers(), whole)
        return json.loads(report.read_text())["checkpoints"]["resumed_sequences"]


class Rows(Case):
    """A token whose embedding is infinite: one request's trouble, not the job's."""
    BROKEN = 7

    def break_row(self):
        file = self.model / "model.safetensors"
        data = bytearray(file.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        begin = json.loads(data[8:8 + size])["model.decoder.embed_tokens.weight"]["data_offsets"][0] + 8 + size
        data[begin + 2 * 16 * self.BROKEN:begin + 2 * 16 * (self.BROKEN + 1)] = struct.pack("<e", float("inf")) * 16
        file.write_bytes(data)

    def test_a_row_without_a_finite_number(self):
        self.make(tie_word_embeddings=False)
        self.run_job()
        whole = self.answers()
        self.break_row()
        self.output.unlink()
        said = self.run_job(code=1)
        self.assertIn("have no answer; each has a line that says why", said)
        broken = {key for key, line in self.answers().items() if "error" in line}
        self.assertIn(self.BROKEN - 1, broken)  # request i has the token i + 1
        self.assertLess(len(broken), len(whole))
        for line in (line for line in self.answers().values() if "error" in line):
            self.assertEqual(line["error"]["code"], "non_finite_logits")
        before = self.output.read_bytes()
        self.run_job("--resume", code=1)  # nothing is left to run
        self.assertEqual(self.output.read_bytes(), before)


class SideFiles(Case):
    def test_nothing_of_others_is_replaced(self):
        self.make()
        mine = self.folder / "mine"
        mine.write_text("mine\n")
        for flag, target in (("--report", self.model / "config.json"), ("--report", mine), ("--trace", mine)):
            with self.subTest(flag=flag, target=target.name):
                before = target.read_bytes()
                self.assertIn("is another file than this would write", self.run_job(flag, target, code=USAGE))
                self.assertEqual(target.read_bytes(), before)
                self.assertFalse(self.output.exists())
        for name in ("out.jsonl.tmp", "out.jsonl.run.json.tmp", "out.jsonl.recovered"):
            (self.folder / name).write_text("mine\n")
        report = self.folder / "report.json"
        self.run_job("--report", report, "--trace", self.folder / "trace.json")
        self.keep(3)
        self.run_job("--resume", "--report", report, "--trace", self.folder / "trace.json")  # its own are replaced
        for name in ("out.jsonl.tmp", "out.jsonl.run.json.tmp", "out.jsonl.recovered"):
            self.assertEqual((self.folder / name).read_text(), "mine\n")
        for name in ("out.jsonl", "out.jsonl.run.json", "out.jsonl.sums", "report.json", "trace.json"):
            self.assertEqual(stat.S_IMODE((self.folder / name).stat().st_mode), 0o600, name)

    def test_a_record_that_is_a_link(self):
        self.make()
        mine = self.folder / "mine"
        mine.write_text("mine\n")
        self.record.symlink_to(mine)
        self.assertIn("is a symbolic link and will not be followed", self.run_job(code=USAGE))
        self.assertEqual(mine.read_text(), "mine\n")
        self.assertFalse(self.output.exists())
        self.record.unlink()
        self.run_job()  # the failed start has left nothing in the way

    def test_names_too_long_leave_nothing(self):
        self.make()
        self.output = self.folder / ("x" * 245)
        before = sorted(self.folder.iterdir())
        self.run_job(code=IO)
        self.assertEqual(sorted(self.folder.iterdir()), before)

    @unittest.skipUnless(os.geteuid() == 0, "only root can act as two users")
    def test_a_folder_that_others_write_to(self):
        """/tmp as another user has prepared it: nothing of theirs is followed, filled or trusted."""
        self.make()
        os.chmod(self.folder, 0o755)
        for path in (self.model, *self.model.iterdir(), self.input):
            os.chmod(path, 0o755)
        shared = self.folder / "shared"
        shared.mkdir()
        os.chmod(shared, 0o1777)
        private = self.folder / "private"
        private.write_text("the victim's\n")
        os.chown(private, VICTIM, VICTIM)
        self.output = shared / "out.jsonl"
        be_victim = lambda: (os.setgid(VICTIM), os.setuid(VICTIM))  # noqa: E731
        binary = WEFT.binary  # must be readable for the victim
        if subprocess.run([binary, "--version"], preexec_fn=be_victim, capture_output=True).returncode != 0:
            self.skipTest("another user may not start the program from here")

        def planted(name, make):
            path = shared / name
            make(path)
            os.lchown(path, ATTACKER, ATTACKER)
            return path

        def run(*flags):
            return subprocess.run(self.command(*flags), capture_output=True, timeout=HANGS, preexec_fn=be_victim, cwd=shared)

        def link(path):
            path.symlink_to(private)

        def file(path):
            path.write_text("theirs\n")
            os.chmod(path, 0o666)

        for name, flags in (("out.jsonl.run.json", []), ("out.jsonl.sums", []), ("report.json", ["--report", shared / "report.json"]),
                            ("trace.json", ["--trace", shared / "trace.json"]),
                            ("out.sorted.jsonl", ["--ordered"])):
            for make in (link, file):
                with self.subTest(name=name, planted=make.__name__):
                    path = planted(name, make)
                    done = run(*flags)
                    self.assertNotEqual(done.returncode, 0)
                    self.assertEqual(private.read_text(), "the victim's\n")
                    if make is file:
                        self.assertEqual(path.read_text(), "theirs\n")
                    for left in shared.iterdir():
                        os.remove(left)
        done = run()
        self.assertEqual(done.returncode, 0, done.stderr)
        text = self.output.read_bytes()
        self.output.write_bytes(text + b"notes\n")
        for make in (link, file):
            path = planted("out.jsonl.bad", make)
            self.assertNotEqual(run("--resume=repair").returncode, 0)
            self.assertEqual(private.read_text(), "the victim's\n")
            if make is file:
                self.assertEqual(path.read_text(), "theirs\n")
            os.remove(path)
        self.assertEqual(run("--resume=repair").returncode, 0)
        self.assertEqual(self.output.read_bytes(), text)


class Durable(Case):
    def test_a_conversion(self):
        """After a power cut it is there whole, or not at all: contents are on the disk before they have a name, and names too."""
        write_tiny_model(self.model)
        log = self.folder / "log"
        strace = ["strace", "-f", "-y", "-qq", "-o", log, "-e", "trace=fsync,fdatasync,linkat,rename,renameat,renameat2"]
        if not shutil.which("strace") or subprocess.run([*strace, "true"], capture_output=True).returncode != 0:
            self.skipTest("strace is not there or may not trace here")
        for flags in ([], ["--weight-dtype", "int4"]):
            with self.subTest(flags=flags):
                to = self.folder / f"packed{len(flags)}"
                done = subprocess.run([*strace, *WEFT.command("convert", "--model", self.model, "--output", to, *flags)],
                                      capture_output=True, timeout=HANGS,
                                      env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})  # which cannot be traced
                self.assertEqual(done.returncode, 0, done.stderr)
                synced, waiting, named = set(), set(), []
                for line in log.read_text().splitlines():
                    if match := re.search(r"f(?:data)?sync\((\d+)<(.*?)>(?:\(deleted\))?\) += 0", line):
                        synced.add(match[1])
                        waiting.discard(match[2])
                    elif match := re.search(r"linkat\(.*/proc/self/fd/(\d+)", line):
                        self.assertIn(match[1], synced, line)
                        synced.discard(match[1])
                    elif match := re.search(r'rename(?:at2?)?\(.*"([^"]*)"[^"]*\) += 0', line):
                        named.append(match[1])
                        waiting.add(os.path.dirname(match[1]))
                self.assertEqual(waiting, set(), "folders whose new names are not on the disk")
                self.assertEqual(named[-1], str(to))
                self.assertEqual({os.path.basename(name) for name in named[:-1]} - {".weft-convert"}, {"model.safetensors", "config.json"})


class Text(Case):
    """Foreign text reaches a terminal on one line and without control characters."""

    def test_configs_and_policies(self):
        evil = "x\n\x1b]0;title\x07\x9bweft: error: forged\u202e"
        self.make()
        config = json.loads((self.model / "config.json").read_text())
        cases = [("model_type", {**config, "model_type": evil}), ("activation", {**config, "activation_function": evil})]
        for what, changed in cases:
            with self.subTest(what):
                (self.model / "config.json").write_text(json.dumps(changed))
                self.check(self.run_job(code=DATA))
        (self.model / "config.json").write_text(json.dumps(config))
        policy = self.folder / "policy.json"
        for what, value in (("key", {evil: 1}), ("schedule", {"schedule": evil}), ("rule", {"retention": {"rule": evil}})):
            with self.subTest(what):
                policy.write_text(json.dumps(value))
                self.check(self.run_job("--policy", policy, code=USAGE))
        self.run_job()
        record = json.loads(self.record.read_text())
        record["run"]["dtype"] = evil
        self.record.write_text(json.dumps(record))
        self.check(self.run_job("--resume", code=USAGE))

    def check(self, said):
        self.assertEqual(said.count("\n"), 1, said)
        self.assertIsNone(re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", said), repr(said))
        self.assertLess(len(said), 2000)

    def test_files_are_not_shown(self):
        """merges.txt may be a link to something private."""
        self.make()
        shutil.copy(SOURCE / "models/demo/vocab.json", self.model)
        (self.model / "merges.txt").write_text("secret words of mine\n")
        self.assertNotIn("secret", self.run_job(code=DATA))


class Program(Case):
    def test_it_is_hardened(self):
        """A stack guard, checked calls, tables that are read-only, and no folder that others write to in its search path."""
        if not shutil.which("readelf") or WEFT.sanitized():
            self.skipTest("no readelf, or a build with sanitizers")
        dynamic = subprocess.run(["readelf", "-W", "-d", WEFT.binary], capture_output=True, check=True).stdout.decode()
        headers = subprocess.run(["readelf", "-W", "-l", WEFT.binary], capture_output=True, check=True).stdout.decode()
        symbols = subprocess.run(["readelf", "-W", "--dyn-syms", WEFT.binary], capture_output=True, check=True).stdout.decode()
        self.assertRegex(dynamic, "BIND_NOW|NOW")
        self.assertRegex(dynamic, r"FLAGS_1.*PIE")
        self.assertIn("GNU_RELRO", headers)
        self.assertRegex(headers, r"GNU_STACK.* RW ")
        self.assertIn("__stack_chk_fail", symbols)
        self.assertRegex(symbols, "__(snprintf|memcpy|read|fprintf|pread64)_chk")
        for path in re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", dynamic):
            self.assertNotIn("", path.split(":"), path)  # the folder in which it is started
            self.assertNotIn("$ORIGIN/..:", path.replace("$ORIGIN/../lib", "") + ":")


if __name__ == "__main__":
    WEFT, SOURCE = Weft(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
