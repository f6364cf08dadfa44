"""lockcore as machine code: *its pure modules and its hot path → extension modules beside them*, by mypyc.

Rules: this happens when a wheel is built, and takes along what the benchmark does for every lease. Where there is no
compiler, no mypyc or no Python.h, or with LOCKCORE_PURE=1, everything runs from the source, which stays installed. All
modules are compiled or none. An editable install is never compiled.
Source: the documentation of mypyc, and of `tool.setuptools.cmdclass`.
"""

import logging
import os
from pathlib import Path

from setuptools.command.build_ext import build_ext

MODULES = tuple(
    f"lockcore.{name}"
    for name in (
        "model", "arguments", "quorum", "claims", "awaited", "rounds", "owed", "flight", "pipeline", "deadlines",
        "watched", "turns", "handoff", "membership", "engine", "attempt", "observed", "counted",
        "shells.wire", "shells.shortcut", "shells.tasks",
    )
)  # fmt: skip
LOAD = ("bench.measure.recorder", "bench.workloads.operation", "bench.workloads.alarm", "bench.workloads.lent")


class CompileCore(build_ext):  # type: ignore[misc]
    """setuptools' `build_ext`, whose extension modules are made here. It raises nothing: what fails is said."""

    def run(self) -> None:
        """Compile all of them, or leave none."""
        if self.inplace or self.editable_mode:
            return
        try:
            if os.environ.get("LOCKCORE_PURE"):
                raise RuntimeError("LOCKCORE_PURE is set")
            self._compile()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a compiler can fail in any way, and mypyc exits
            logging.warning("lockcore stays pure Python, which is slower: %.200s", error or type(error).__name__)
            for module in Path(self.build_lib).glob("**/*.so"):  # of an earlier build, too
                module.unlink()

    def _compile(self) -> None:
        from mypyc.build import mypycify  # not everybody who builds has it

        paths = [f"{module.replace('.', '/')}.py" for module in (*MODULES, *LOAD)]
        # The rest of lockcore is judged by `make lint`, where what it imports is installed.
        options = ["--ignore-missing-imports", "--follow-imports=silent", "--no-warn-unused-ignores"]
        modules = mypycify([*options, *paths], target_dir="build/lockcore", group_name="lockcore")
        self.distribution.ext_modules = modules
        self.reinitialize_command(self)
        self.ensure_finalized()
        super().run()
