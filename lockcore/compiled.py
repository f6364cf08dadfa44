"""lockcore as machine code: *its pure modules → extension modules beside them*, when a wheel is built (mypyc).

Rules: the source stays the same and stays installed; where there is no compiler, no mypyc or no Python.h, or with
LOCKCORE_PURE=1, everything runs from it. All modules are compiled or none. An editable install is never compiled: there
the source is what runs. Source: the documentation of mypyc, and of `tool.setuptools.cmdclass`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

MODULES = (
    "model", "quorum", "claims", "awaited", "rounds", "owed", "flight", "pipeline", "deadlines", "watched", "turns",
    "membership", "engine", "attempt",
)  # fmt: skip


class CompileCore(build_ext):  # type: ignore[misc]
    """setuptools' `build_ext`, whose extension modules are made here. It raises nothing: what fails is said."""

    def finalize_options(self) -> None:
        """Have mypyc write the modules in C."""
        self.distribution.ext_modules = self._modules()
        super().finalize_options()

    def run(self) -> None:
        """Compile all of them, or leave none."""
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - a compiler can fail in any way
            self.extensions = self._stay_pure(error)
        if not self.extensions:
            for module in Path(self.build_lib).glob("**/*.so"):  # of an earlier build, too
                module.unlink()

    def _modules(self) -> list[Extension]:
        if self.inplace or self.editable_mode or os.environ.get("LOCKCORE_PURE"):
            return []
        try:
            from mypyc.build import mypycify

            paths = [f"lockcore/{module}.py" for module in MODULES]
            return mypycify(["--ignore-missing-imports", *paths], target_dir="build/lockcore", group_name="lockcore")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - mypyc exits when it refuses
            return self._stay_pure(error)

    def _stay_pure(self, why: BaseException) -> list[Extension]:
        logging.warning("lockcore stays pure Python, which is slower: %s: %s", type(why).__name__, why)
        return []
