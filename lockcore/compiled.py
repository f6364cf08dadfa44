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
        "model", "arguments", "quorum", "claims", "awaited", "rounds", "owed", "flight", "framing", "pipeline",
        "deadlines", "watched", "turns", "handoff", "membership", "engine", "attempt", "observed", "counted",
        "shells.wire", "shells.shortcut", "shells.tasks",
    )
)  # fmt: skip
LOAD = ("bench.measure.recorder", "bench.workloads.operation", "bench.workloads.alarm", "bench.workloads.lent")

# Modules of one group call each other as C functions and read each other's fields at fixed offsets. A gate runs this
# load on the lockcore of another revision, which comes as source. So the load is a group of its own. It reaches
# lockcore by Python's import and by attribute names, as a user's program does. In one group with lockcore the load
# could not even be imported there (NameError: value for final name "RELEASED" was not set).
GROUPS = {"lockcore": MODULES, "lockbench_load": LOAD}


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

        # The rest of lockcore is judged by `make lint`, where what it imports is installed.
        options = ["--ignore-missing-imports", "--follow-imports=silent", "--no-warn-unused-ignores"]
        modules = []
        for name, group in GROUPS.items():
            paths = [f"{module.replace('.', '/')}.py" for module in group]
            modules += mypycify([*options, *paths], target_dir=f"build/{name}", group_name=name)
        self.distribution.ext_modules = modules
        self.reinitialize_command(self)
        self.ensure_finalized()
        super().run()
