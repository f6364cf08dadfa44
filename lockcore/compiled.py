"""This module compiles lockcore to machine code: *pure modules and hot paths → extension modules
beside the sources*.

mypyc compiles the modules. This file itself is not compiled. The file docs/lockcore/compiled.md
contains the rules for compiled files.

Rules: the build of a wheel compiles these modules. The build also compiles the benchmark code that
runs for every lease. Without a compiler, mypyc or Python.h, or with LOCKCORE_PURE=1, everything
runs from the source. The source stays installed. Either all modules are compiled, or no module is
compiled. An editable install is never compiled. Source: the documentation of mypyc, and of
`tool.setuptools.cmdclass`.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CalledProcessError
from tempfile import TemporaryFile

from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent

# The build compiles all files of these three folders, and every file with the name fast.py.
FOLDERS = ("facts", "rounds", "engine")


def _compiled_files() -> list[Path]:
    files = [file for folder in FOLDERS for file in (HERE / folder).glob("*.py")]
    files += HERE.rglob("fast.py")
    return sorted(file for file in files if file.name != "__init__.py")


def _name_of(file: Path) -> str:
    return ".".join(file.relative_to(HERE.parent).with_suffix("").parts)


MODULES = tuple(_name_of(file) for file in _compiled_files())
# The code that a load process runs for each operation, beside the lock itself.
BENCH = HERE.parent / "bench"
LOAD = tuple(
    _name_of(BENCH / file)
    for file in ("measure/recorder.py", "workloads/operation.py", "workloads/alarm.py")
)

# Modules of one group call each other as C functions and read each other's fields at fixed offsets.
# A gate runs this load on another revision of lockcore, which comes as source. So the load is a
# separate group. The load reaches lockcore by Python's imports and attribute names, as a user's
# program does. If both were one group, a gate could not import the load (NameError: value for final
# name "RELEASED" was not set).
GROUPS = {"lockcore": MODULES, "lockbench_load": LOAD}

# The longest reason in the build's log, because people read this log line by line.
MOST_REASON = 300  # characters


@contextmanager
def read_along(lines: list[str]) -> Iterator[None]:
    """Collect the output of this process and its children in `lines`. At the end, print the output.

    mypyc prints its errors in this process and then exits. A C compiler runs as a separate process.
    Both processes write to stdout and stderr, so this function redirects the file descriptors of
    stdout and stderr.
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
    with TemporaryFile() as printed:
        for stream in streams:
            stream.flush()
        copies = {number: os.dup(number) for number in (1, 2)}
        try:
            for number in copies:
                os.dup2(printed.fileno(), number)
            yield
        finally:
            for stream in streams:
                stream.flush()
            for number, copy in copies.items():
                os.dup2(copy, number)
                os.close(copy)
            printed.seek(0)
            text = printed.read().decode(errors="replace")
            lines += text.splitlines()
            sys.stderr.write(text)


def reason_of(error: BaseException, lines: list[str]) -> str:
    """Return the reason for a failed build as one line. The line contains `error` and the last
    printed error line.

    If the build printed no error line, the reason contains the last printed line instead.
    """
    if isinstance(error, ImportError):
        return f"mypyc cannot be imported ({error}); install mypy and build again"
    if isinstance(error, FileNotFoundError):
        return (
            f"the C compiler {error.filename} was not found; install gcc or clang, or name a "
            "compiler in CC, and build again"
        )
    why = str(error) or type(error).__name__
    if isinstance(error, SystemExit):
        why = f"mypyc ended with exit status {error.code}"
    elif isinstance(error, CalledProcessError):
        why = f"{error.cmd[0]} ended with exit status {error.returncode}"
    printed = [line.strip() for line in lines if line.strip()]
    # mypy and compilers mark an error like this.
    about = [line for line in printed if "error: " in line] or printed
    if about:
        why += f": {about[-1]}"
    return " ".join(why.split())[:MOST_REASON]


class CompileCore(build_ext):  # type: ignore[misc]
    """The build step of setuptools (`build_ext`) that makes the extension modules.

    If the build step fails, it logs the failure and raises no exception.
    """

    def run(self) -> None:
        """Compile all modules. If a module cannot be compiled, remove all compiled modules."""
        if self.inplace or self.editable_mode:
            return
        lines: list[str] = []
        try:
            if os.environ.get("LOCKCORE_PURE"):
                raise RuntimeError("LOCKCORE_PURE is set")
            with read_along(lines):
                self._compile()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a compiler can fail in any way
            logging.warning(
                "lockcore stays pure Python, which is slower: %s", reason_of(error, lines)
            )
            # The removed modules may also be those of an earlier build.
            for module in Path(self.build_lib).glob("**/*.so"):
                module.unlink()

    def _compile(self) -> None:
        # mypyc may not be installed, so it is imported late.
        from mypyc.build import mypycify

        # `make lint` checks the rest of lockcore, because it has all imported packages installed.
        options = [
            "--ignore-missing-imports",
            "--follow-imports=silent",
            "--no-warn-unused-ignores",
        ]
        modules = []
        for name, group in GROUPS.items():
            paths = [f"{module.replace('.', '/')}.py" for module in group]
            modules += mypycify([*options, *paths], target_dir=f"build/{name}", group_name=name)
        self.distribution.ext_modules = modules
        self.reinitialize_command(self)
        self.ensure_finalized()
        super().run()
