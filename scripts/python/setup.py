"""The tag of a wheel that has the program in it; scripts/wheel.sh says which one in WEFT_WHEEL_PLATFORM."""

import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

PLATFORM = os.environ.get("WEFT_WHEEL_PLATFORM")


class Wheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not PLATFORM

    def get_tag(self):
        return ("py3", "none", PLATFORM) if PLATFORM else super().get_tag()


class WithProgram(Distribution):
    def has_ext_modules(self):  # a wheel with machine code, whose files belong into platlib
        return bool(PLATFORM)


setup(cmdclass={"bdist_wheel": Wheel}, distclass=WithProgram)
