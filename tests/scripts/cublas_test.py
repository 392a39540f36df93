#!/usr/bin/env python3
"""Where weft finds cuBLAS: a stand-in for libweft_cuda.so wants a stand-in for cuBLAS, of a version that nobody has, and says
which file it got.

Usage: cublas_test.py WEFT SOURCE_FOLDER [unittest arguments]   (skipped without a C++ compiler)
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from weft_process import Weft  # noqa: E402

WEFT = SOURCE = None
USAGE, DEVICE, REACHED = 2, 5, 77
VERSION = 99
BACKEND = """
#include <dlfcn.h>
#include <unistd.h>
#include <cstdio>
extern "C" void light_stand_in();
extern "C" void* weft_make_cuda_backend(const void*) {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&light_stand_in), &info);
  std::printf("%s\\n", info.dli_fname);
  std::fflush(stdout);
  _exit(77);
}
"""


class CuBLAS(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if Weft(WEFT).sanitized():
            raise unittest.SkipTest("a sanitizer's dlopen does not search where the program says")
        cls.made = pathlib.Path(tempfile.mkdtemp(prefix="weft-cublas-made-"))
        cls.addClassCleanup(shutil.rmtree, cls.made)

        def library(file, source, *flags):
            subprocess.run(["c++", "-shared", "-fPIC", "-x", "c++", "-", "-x", "none", *flags, "-o", cls.made / file],
                           input=source, text=True, check=True)

        light = f"libcublasLt.so.{VERSION}"
        library(light, 'extern "C" void light_stand_in() {}', f"-Wl,-soname,{light}")
        library("libweft_cuda.so", BACKEND, cls.made / light, f"-Wl,-rpath-link,{cls.made}")
        shutil.copy(WEFT, cls.made / "weft")

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-cublas-")).resolve()
        self.addCleanup(shutil.rmtree, self.folder)

    def put_into(self, name):
        folder = self.folder / name
        folder.mkdir(parents=True)
        return pathlib.Path(shutil.copy(self.made / f"libcublasLt.so.{VERSION}", folder))

    def run_weft(self, backend="cuda", **environment):
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder / "home")} | environment
        return subprocess.run([self.made / "weft", "bench", "--model", SOURCE / "models/demo", "--prompt-len", "2",
                               "--gen-len", "2", "--backend", backend], capture_output=True, text=True, env=environment,
                              cwd=self.folder)

    def assert_found(self, file, **environment):
        done = self.run_weft(**environment)
        self.assertEqual((done.returncode, done.stdout.strip()), (REACHED, str(file)), done.stderr)

    def test_chosen(self):
        file = self.put_into("somewhere")
        self.put_into("home/.local/lib/python3.12/site-packages/nvidia/cu99/lib")  # would be found too
        (file.parent / f"libcublasLt.so.{VERSION}.1.2").write_text("of a longer name")
        self.assert_found(file, WEFT_CUBLAS=str(file.parent))
        self.assert_found(file, WEFT_CUBLAS=str(file))

    def test_in_python_environments(self):
        packages = "lib/python3.11/site-packages/nvidia"
        file = self.put_into(f"venv [1]/{packages}/cublas/lib")  # of CUDA 12's packages
        (self.folder / "venv [1]/bin").mkdir()
        (self.folder / "venv [1]/bin/python3").touch()
        self.assert_found(file, VIRTUAL_ENV=str(self.folder / "venv [1]"))
        self.assert_found(file, PATH=f"/usr/bin:{self.folder}/venv [1]/bin")
        self.assert_found(self.put_into("conda/lib"), CONDA_PREFIX=str(self.folder / "conda"))
        self.assert_found(self.put_into("home/.local/lib/python3.12/site-packages/nvidia/cu99/lib"))

    def test_in_a_toolkit(self):
        self.assert_found(self.put_into("toolkit/lib64"), CUDA_PATH=str(self.folder / "toolkit"))
        self.assert_found(self.folder / "toolkit/lib64" / f"libcublasLt.so.{VERSION}", CUDA_HOME=str(self.folder / "toolkit"))

    def test_where_the_loader_finds_it(self):
        file = self.put_into("loader")
        self.assert_found(file, LD_LIBRARY_PATH=str(file.parent))

    def test_nowhere(self):
        done = self.run_weft()
        self.assertEqual(done.returncode, DEVICE, done.stderr)
        for words in f"libcublasLt.so.{VERSION}", "WEFT_CUBLAS", "use --backend cpu":
            self.assertIn(words, done.stderr)
        done = self.run_weft(WEFT_CUBLAS=str(self.folder))
        self.assertEqual(done.returncode, USAGE, done.stderr)
        self.assertIn(f"WEFT_CUBLAS={self.folder}: wanted the folder of a libcublasLt.so", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        broken = self.put_into("broken")
        broken.write_text("not a library")
        done = self.run_weft(WEFT_CUBLAS=str(broken))
        self.assertEqual(done.returncode, USAGE, done.stderr)
        self.assertIn("libcublasLt.so", done.stderr)


if __name__ == "__main__":
    if not shutil.which("c++"):
        print("skipped: there is no C++ compiler")
        sys.exit(77)
    WEFT, SOURCE = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
