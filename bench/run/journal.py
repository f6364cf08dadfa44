"""What of a long experiment is done already: *plan, finished pieces → a file that a cut run goes on from*.

Rules: one JSON line per finished piece, behind a first line that holds the plan; a line cut short by a kill is
dropped, never believed. Going on with another plan is refused. One process at a time works on a journal. Source:
flock(2).
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

from bench.errors import EnvironmentNotReadyError, UsageError, writing
from bench.measure.result import RESULT_NAME
from bench.measure.section import builtins_of, converted

JOURNAL_NAME = "progress.jsonl"
CURE = "free the disk or name another --out"
Piece = TypeVar("Piece")
Plan = Mapping[str, object]
Line = dict[str, Any]  # as JSON has it


@contextmanager
def open_journal(
    folder: Path, plan: Plan, kind: type[Piece], check: Callable[[Piece], object] = lambda _piece: None
) -> Iterator[Journal[Piece]]:
    """The journal in `folder`, begun or gone on with; one that holds nothing is not left behind. `plan`: JSON
    values; `check` raises for a piece that nothing can be made of. Raises EnvironmentNotReadyError and UsageError."""
    path, go_on = folder / JOURNAL_NAME, is_unfinished(folder)
    with writing(path, CURE):
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8")
    with _closed(file):
        _own(file, folder)
        journal = Journal[Piece](path, file)
        if go_on:
            begun, lines, whole_bytes = read_journal(folder)
            _require_same(begun, plan, folder)
            journal.pieces += _sound(path, lines, kind, check)
            file.truncate(whole_bytes)
        else:
            file.truncate(0)
            journal.write({"plan": plan})
        try:
            yield journal
        finally:
            if not journal.pieces:
                path.unlink(missing_ok=True)


@contextmanager
def _closed(file: TextIO) -> Iterator[None]:
    """Close it in the end; that a line could not be written has been said by then."""
    try:
        yield
    finally:
        with suppress(OSError):
            file.close()


@dataclass(slots=True)
class Journal(Generic[Piece]):
    """A journal that stands open. `pieces`: those found there, then those added now."""

    path: Path
    file: TextIO
    pieces: list[Piece] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Keep `piece`. Raises EnvironmentNotReadyError when the disk refuses."""
        self.write(builtins_of(piece))
        self.pieces.append(piece)

    def write(self, line: object) -> None:
        """Write one line at once. Raises EnvironmentNotReadyError when the disk refuses."""
        with writing(self.path, CURE):
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


def _own(file: TextIO, folder: Path) -> None:
    """One process at a time. Raises EnvironmentNotReadyError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise EnvironmentNotReadyError(
            f"another lockbench is at work in {folder}; wait for its end, or begin elsewhere"
        ) from None


def _require_same(begun: Plan, plan: Plan, folder: Path) -> None:
    """Raise UsageError, naming what differs, unless the journal in `folder`, which `begun` opens, is of this plan."""
    wanted = json.loads(json.dumps(plan))
    differing = sorted(key for key in {*begun, *wanted} if begun.get(key) != wanted.get(key))
    if differing:
        told = ", ".join(f"{key} {begun.get(key)} there, {wanted.get(key)} here" for key in differing)
        raise UsageError(f"{folder} was begun differently ({told}); give the same options, or begin anew")


def is_unfinished(folder: Path) -> bool:
    """Whether an experiment was cut in `folder`: it has a journal and no result."""
    return (folder / JOURNAL_NAME).is_file() and not (folder / RESULT_NAME).exists()


def read_journal(folder: Path) -> tuple[Line, list[Line], int]:
    """The plan, the whole pieces, and how many bytes those take. Raises UsageError when there is no journal, or a line
    within it is none."""
    path = folder / JOURNAL_NAME
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"{folder} holds nothing to go on from: {path.name}: {error.strerror}") from error
    found = list[Line]()
    while len(found) < len(lines) and (value := _whole(lines[len(found)])):
        found.append(value)
    if not found or not isinstance(found[0].get("plan"), dict):
        raise UsageError(f"{path} is not the journal of an experiment; begin anew without --resume")
    if len(found) + 1 < len(lines):  # it was no kill that cut this one short
        raise _no_piece(path, len(found) + 1, "no JSON object")
    return found[0]["plan"], found[1:], sum(map(len, lines[: len(found)]))


def _whole(line: bytes) -> Line | None:
    """What a line holds; None of one that was cut short."""
    with suppress(ValueError):
        value = json.loads(line)
        if line.endswith(b"\n") and isinstance(value, dict):
            return value
    return None


def _no_piece(path: Path, number: int, why: str) -> UsageError:
    return UsageError(
        f"line {number} of {path} is no piece of this experiment ({why}); take it out to have that piece made again, "
        "or begin anew"
    )


def _sound(path: Path, lines: list[Line], kind: type[Piece], check: Callable[[Piece], object]) -> Iterator[Piece]:
    for number, line in enumerate(lines, start=2):
        try:
            piece = converted(line, kind)
            check(piece)
        except Exception as error:  # noqa: BLE001 - whatever it is, this line cannot be believed
            raise _no_piece(path, number, f"{type(error).__name__}: {error}") from None
        yield piece
