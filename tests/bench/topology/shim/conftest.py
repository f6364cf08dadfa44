"""A process of our own under the shim: the same hooks as in a server, with nothing else going on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.topology.shim.build import shim_library
from bench.topology.shim.control import Control


class Preloaded:
    """Runs Python code with the shim in it; `control` is the other end."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.control = Control(folder / "control.map")
        self.folder = folder
        shim = {"LD_PRELOAD": str(library), "LOCKBENCH_SHIM": str(self.control.path)}
        self._environment = {**os.environ, **shim}

    def start(self, code: str) -> "subprocess.Popen[str]":
        """Run `code` in the folder, with pipes."""
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"import os, time\n{code}"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str) -> str:
        """Run `code` to its end; what it printed."""
        with self.start(code) as process:
            said, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        return said.strip()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shim_library(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def preloaded(tmp_path: Path, library: Path) -> Iterator[Preloaded]:
    process = Preloaded(tmp_path, library)
    yield process
    process.control.close()
