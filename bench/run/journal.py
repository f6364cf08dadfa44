"""What of a long experiment is done already: *plan, finished pieces → a file that a cut run goes on from*.

Rules: one JSON line per finished piece, written at once, behind a first line that holds the plan; a line cut short by a
kill is dropped, never believed. Going on with another plan is refused, naming what differs: pieces of different
conditions must not be put into one table. One process at a time works on a journal: two would measure the same pieces.
Source: README, "resumable"; flock(2).
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.measure.reading import converted
from bench.measure.result import RESULT_NAME
from bench.measure.section import builtins_of

JOURNAL_NAME = "progress.jsonl"
Piece = TypeVar("Piece")
Plan = Mapping[str, Any]


@contextmanager
def open_journal(
    folder: Path, plan: Plan, kind: type[Piece], check: Callable[[Piece], object] = lambda _piece: None
) -> Iterator[Journal[Piece]]:
    """The journal in `folder`, begun or gone on with; one that holds nothing is not left behind.

    `plan`: JSON values; `kind`: of its pieces; `check` raises for a piece that nothing can be made of. Raises
    EnvironmentNotReadyError, and UsageError for a journal that is of another plan, or not whole.
    """
    go_on = is_unfinished(folder)
    with Journal.go_on(folder, plan, kind, check) if go_on else Journal[Piece].begin(folder, plan) as journal:
        try:
            yield journal
        finally:
            if not journal.pieces:
                journal.path.unlink(missing_ok=True)


class Journal(Generic[Piece]):
    """A journal that stands open. `pieces`: those found there, then those added now. A context manager."""

    def __init__(self, path: Path, pieces: list[Piece]) -> None:
        """Use `open_journal`."""
        self.path, self.pieces = path, pieces
        self._file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise EnvironmentNotReadyError(
                f"another lockbench is at work in {path.parent}; wait for its end, or begin elsewhere"
            ) from None
        except OSError:  # a file system without locks
            return

    @classmethod
    def begin(cls, folder: Path, plan: Plan) -> Self:
        """Make a new journal in `folder`. Raises EnvironmentNotReadyError when it cannot be written."""
        path = folder / JOURNAL_NAME
        try:
            path.write_text(json.dumps({"plan": plan}) + "\n", "utf-8")
            return cls(path, [])
        except OSError as error:
            raise _not_writable(path, error) from error

    @classmethod
    def go_on(cls, folder: Path, plan: Plan, kind: type[Piece], check: Callable[[Piece], object]) -> Self:
        """Open the journal in `folder`. Raises UsageError unless it is of this `plan` and whole,
        EnvironmentNotReadyError."""
        path = folder / JOURNAL_NAME
        begun, pieces, _ = read_journal(folder)
        _sound(path, pieces, kind, check)
        wanted = json.loads(json.dumps(plan))
        differing = sorted(key for key in {*begun, *wanted} if begun.get(key) != wanted.get(key))
        if differing:
            told = ", ".join(
                f"{key} {_short(begun.get(key))} there, {_short(wanted.get(key))} here" for key in differing
            )
            raise UsageError(f"{folder} was begun differently ({told}); give the same options, or begin anew")
        try:
            journal = cls(path, [])
            _, pieces, whole_bytes = read_journal(folder)  # nobody adds to it from now on
            journal.pieces += _sound(path, pieces, kind, check)
            journal._file.truncate(whole_bytes)
            return journal
        except OSError as error:
            raise _not_writable(path, error) from error

    def add(self, piece: Piece) -> None:
        """Keep `piece`. Raises EnvironmentNotReadyError when the disk refuses."""
        try:
            self._file.write(json.dumps(builtins_of(piece)) + "\n")
            self._file.flush()
        except OSError as error:
            raise _not_writable(self.path, error) from error
        self.pieces.append(piece)

    def close(self) -> None:
        """Close the file; more than once is fine."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def is_unfinished(folder: Path) -> bool:
    """Whether an experiment was cut in `folder`: it has a journal and no result."""
    return (folder / JOURNAL_NAME).is_file() and not (folder / RESULT_NAME).exists()


def read_journal(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """The plan, the whole pieces, and how many bytes those take. Raises UsageError when there is no journal."""
    path = folder / JOURNAL_NAME
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{folder} holds nothing to go on from: {path.name}: {error.strerror}") from error
    found: list[Any] = []
    whole_bytes = 0
    for line in content.splitlines(keepends=True):
        try:
            value = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(value, dict):
            break
        found.append(value)
        whole_bytes += len(line)
    if not found or not isinstance(found[0].get("plan"), dict):
        raise UsageError(f"{path} is not the journal of an experiment; begin anew without --resume")
    return found[0]["plan"], found[1:], whole_bytes


def _sound(
    path: Path, pieces: list[dict[str, Any]], kind: type[Piece], check: Callable[[Piece], object]
) -> list[Piece]:
    found = []
    for number, piece in enumerate(pieces, start=2):
        try:
            found.append(converted(piece, kind))
            check(found[-1])
        except Exception as error:  # noqa: BLE001 - whatever it is, this line cannot be believed
            raise UsageError(
                f"line {number} of {path} is no piece of this experiment ({type(error).__name__}: {error}); take it "
                "out to have that piece made again, or begin anew"
            ) from None
    return found


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _not_writable(path: Path, error: OSError) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(f"{path} cannot be written ({error.strerror}); free the disk or name another --out")
