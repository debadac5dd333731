"""The compiled loops; all else is in pyproject.toml. Without a compiler numpy does their work.

``CONSILIENCE_PURE=1`` leaves them out: a wheel for every platform.
"""

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PASSES = "src/consilience/passes"


class Build(build_ext):
    """Ask for fast loops, in the words of the compiler that is there."""

    def build_extension(self, extension: Extension) -> None:
        """Compile one extension."""
        if self.compiler.compiler_type != "msvc":
            extension.extra_compile_args = ["-O3", "-fno-math-errno"]
        super().build_extension(extension)


setup(
    cmdclass={"build_ext": Build},
    ext_modules=[]
    if os.environ.get("CONSILIENCE_PURE")
    else [
        Extension(
            "consilience.passes._loops",
            [f"{PASSES}/_loops.c"],
            depends=[f"{PASSES}/_kernels.h", f"{PASSES}/_levels.h"],
            optional=True,
        )
    ],
)
