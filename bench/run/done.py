"""How a run or an experiment ends: *its result → stored, or shown and complained of; one exit code*.

Rules: what was measured is never lost because a disk is full or a folder has gone: the result is handed back, and
beside it why it could not be stored. 130 outlives everything. Source: README's exit codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.measure.result import Result, write_result
from bench.run.verdict import INTERRUPTED, exit_code


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it; `exit_code` as in README. `path` None = it could not be stored, `unstored` says why."""

    result: Result
    path: Path | None
    exit_code: int
    unstored: str = ""


def store(result: Result, folder: Path) -> Done:
    """Write `result`, which has the sections `verdict` and `interrupted`, to `folder`."""
    code = exit_code(result["verdict"], interrupted=result["interrupted"])
    try:
        return Done(result, write_result(result, folder), code)
    except EnvironmentNotReadyError as error:
        return Done(result, None, code if code == INTERRUPTED else error.exit_code, str(error))
