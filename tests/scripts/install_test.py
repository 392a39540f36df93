#!/usr/bin/env python3
"""cmake --install: weft runs from where it was installed, its data and documents are there; and the README and the reference
pages of the package name only what the package holds.

Usage: install_test.py SOURCE_FOLDER BUILD_FOLDER
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = BUILD = None


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-install-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def run_it(self, *command, **options):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, **options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout


class Install(Case):
    def test_it_runs_where_it_is_installed(self):
        self.run_it("cmake", "--install", BUILD, "--prefix", self.folder / "usr")
        there = self.folder / "usr"
        self.assertRegex(self.run_it(there / "bin" / "weft", "--version", cwd="/"), "^weft ")
        shown = self.run_it(there / "bin" / "weft", "inspect", there / "share/weft/configs/models/opt-1.3b.json", cwd="/")
        self.assertIn("24 layers", shown)
        for name in "README.md", "LICENSE", "CHANGELOG.md", "docs/planning.md":
            self.assertTrue((there / "share/doc/weft" / name).is_file(), name)
        self.assertEqual(sorted(path.name for path in (there / "bin").iterdir()), ["weft"])
        if shutil.which("readelf"):
            self.assertIn("path: [$ORIGIN/../lib]", self.run_it("readelf", "-W", "-d", there / "bin" / "weft"))


class Package(Case):
    def test_its_pages_name_only_what_it_holds(self):
        package = self.folder / "package"
        script = (SOURCE / "scripts/package.sh").read_text().replace("\\\n", "")  # a command over several lines is one
        held = set()
        for sources in re.findall(r"(?m)^cp (?:-r )?(.*) \"\$package/scripts[^\"]*\"$", script):
            for source in sources.split():
                before, names, after = re.fullmatch(r"([^{]*)\{?([^}]*)\}?(.*)", source).groups()
                held |= {before + name + after for name in names.split(",")}
        self.assertIn("scripts/gpu_check.sh", held)
        for name in held:
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            if (SOURCE / name).is_dir():
                shutil.copytree(SOURCE / name, package / name)
            else:
                (package / name).symlink_to(SOURCE / name)
        for name in "configs", "models", "tests":
            (package / name).symlink_to(SOURCE / name)
        shutil.copytree(SOURCE / "docs", package / "docs")  # its pages are written anew
        write_pages = sys.executable, SOURCE / "scripts/dev/package_readme.py", package
        self.run_it(*write_pages)
        pages = ["README.md"] + [f"docs/{name}.md" for name in ("requests", "policies", "retention", "resume", "gpu", "cluster",
                                                                "evaluate")]
        for page in pages:
            text = (package / page).read_text()
            self.assertIn("bin/weft generate", text, page)
            self.assertNotIn("build/", text, page)
            for script in "quickstart.sh", "test.sh", "setup.sh", "package.sh", "accelerate.sh", "make_golden.py":
                self.assertNotIn(script, text, page)
            for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
                self.assertTrue(re.match(r"\w+:", target) or ((package / page).parent / target).exists(), (page, target))
        self.assertEqual((SOURCE / "docs/design.md").read_text(), (package / "docs/design.md").read_text())
        (package / "scripts/evaluate/lm_eval_weft.py").unlink()
        done = subprocess.run(list(map(str, write_pages)), capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("docs/evaluate.md names scripts/evaluate/lm_eval_weft.py", done.stderr)

    def test_pages_are_not_written_through_a_link(self):
        (self.folder / "docs").symlink_to(SOURCE / "docs")
        done = subprocess.run([sys.executable, str(SOURCE / "scripts/dev/package_readme.py"), str(self.folder)],
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("are a link", done.stderr)


if __name__ == "__main__":
    SOURCE, BUILD = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
