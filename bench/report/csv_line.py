"""A run as one line of a table: *its result → a line behind the others in a CSV file*.

Rules: the columns follow from the keys of a scenario and the usual figures, so that every line of a file has the same
ones; what is not known is empty. A file with other columns is refused before the run. Source: RFC 4180; csv.
"""

import csv
from pathlib import Path

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.gates.threshold import USUAL, find_metric
from bench.measure.run_result import RunResult
from bench.measure.section import builtins_of, leaves
from bench.scenario import load

FIRST = ("name", "id", "started_at", "status", "word", "exit_code", "server", "violations")


def columns() -> list[str]:
    """The names in the first line."""
    figures = [f"{name}_s" if find_metric(name).unit == "s" else name for name in USUAL]
    return [*FIRST, *figures, *dict(leaves(builtins_of(load(None, {}))))]


def require_columns(path: Path) -> None:
    """Raises UsageError when the file holds something else than runs, EnvironmentNotReadyError when nobody can write
    it."""
    try:
        with path.open("a+", encoding="utf-8", newline="") as file:
            file.seek(0)
            found = next(csv.reader(file), None)
            if found is None:
                csv.writer(file).writerow(columns())
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentNotReadyError(f"{path} cannot be written ({error}); name another file with --csv") from None
    if found not in (None, columns()):
        raise UsageError(f"option --csv: {path} begins with other columns than those of a run; name a new file")


def append_line(path: Path, run: RunResult) -> None:
    """Write `run` behind what the file holds. Raises EnvironmentNotReadyError."""
    server = ", ".join(sorted({f"{one.server} {one.version}" for one in run.fleet.instances if one.server}))
    said = (run.verdict.status, run.verdict.word, run.verdict.exit_code)
    first = (run.name, run.id, run.started_at, *said, server, run.safety.service_faults)
    figures = (find_metric(name).value(run) for name in USUAL)
    try:
        with path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow([*first, *figures, *dict(leaves(builtins_of(run.scenario.shown()))).values()])
    except OSError as error:
        raise EnvironmentNotReadyError(f"{path} cannot be written ({error.strerror}); its line is missing") from None
