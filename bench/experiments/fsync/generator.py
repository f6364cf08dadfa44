"""The load process of `lockbench fsync`, seen from outside: *phases → figures; its end, however it comes, is told*.

Rules: a process of its own, in a session of its own, that ends with this one (die_with_parent); it is given a deadline
for every answer. A process that ends early takes the cell with it, by its own last words.
Source: bench.experiments.fsync.load_process.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from bench.errors import EnvironmentNotReadyError
from bench.experiments.fsync.load import WAITAOF, LoadOrder, Phase, PhaseFigures, figures_of
from bench.experiments.fsync.plan import FsyncCell

PATIENCE_S = 60.0  # for an answer, beyond what a phase itself takes
_END_S = 2.0


class Generator:
    """A connected load process. A context manager: at its end the process is gone."""

    def __init__(self, cell: FsyncCell, urls: Sequence[str], key_prefix: str, seed: int, log: Path) -> None:
        """Start it and wait until it is connected; `log` takes what it says. Raises EnvironmentNotReadyError."""
        waitaof = cell.policy == WAITAOF
        self.order = LoadOrder(urls, key_prefix, cell.clients, cell.pipeline, waitaof, seed, os.getpid())
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.experiments.fsync.load_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        try:
            self._tell(self.order)
            self._answer(PATIENCE_S)
        except BaseException:
            self.close()
            raise

    def begin(self, phase: Phase) -> None:
        """Let it load for a phase; `figures` is what comes of it. Raises EnvironmentNotReadyError."""
        self._tell(phase)
        self._phase = phase

    def figures(self) -> PhaseFigures:
        """Wait for the end of the phase. Raises EnvironmentNotReadyError."""
        return figures_of(self._answer(self._phase.warmup_s + self._phase.seconds + PATIENCE_S))

    def close(self) -> None:
        """End the process; more than once is fine."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._process.terminate()  # between two phases nothing is held
        self.close()

    def _tell(self, message: LoadOrder | Phase) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(message)).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure() from None

    def _answer(self, patience_s: float) -> Any:
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], patience_s)[0]:
            raise EnvironmentNotReadyError(f"the load process gave no answer for {patience_s:.0f} s; use fewer clients")
        try:
            return json.loads(stdout.readline())
        except ValueError:
            raise self._failure() from None

    def _failure(self) -> EnvironmentNotReadyError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        code = self._process.returncode
        said = f"it said: {lines[-1]}" if lines else f"signal {-code}" if code and code < 0 else f"exit code {code}"
        return EnvironmentNotReadyError(f"the load process ended early ({said}); what was measured before is kept")
