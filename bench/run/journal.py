"""The journal of a long experiment: *a plan and finished pieces → a file, so that an interrupted
experiment can continue*.

Rules
- The first line holds the plan as JSON. Each further line holds one finished piece.
- If the process is killed, the last line may be incomplete. The reader drops an incomplete last
  line.
- An experiment with another plan cannot continue from the journal.
- Only one process at a time can use a journal. Source: flock(2).
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import MsgspecError

from bench.errors import EnvironmentNotReadyError, UsageError, writing
from bench.measure.result import RESULT_NAME
from bench.measure.section import builtins_of, decoded

JOURNAL_NAME = "progress.jsonl"
CURE = "free disk space, or name another --out"
# A message shows a difference with at most this many characters. If a difference is longer, the
# message shows only its name.
MOST_TOLD = 100
Piece = TypeVar("Piece")
# A plan in the form of JSON values.
Plan = dict[str, object]


# The file is opened in append mode. It is truncated only when this process has the lock. Mode "w"
# would look simpler, but it empties the file immediately. A second lockbench would then destroy the
# journal of the first one before it is refused. The lock belongs to the open file, so it is held
# until the file is closed.
@contextmanager
def open_journal(
    folder: Path,
    plan: Plan,
    kind: type[Piece],
    check: Callable[[Piece], object] = lambda _piece: None,
) -> Iterator[Journal[Piece]]:
    """Open a new journal in `folder`, or continue the existing journal in `folder`.

    If the journal has no pieces at the end, the journal is removed. `plan`: the plan, which must
    consist of JSON values. `check`: a function that raises an error if a piece cannot be used.
    Raises EnvironmentNotReadyError and UsageError.
    """
    path = folder / JOURNAL_NAME
    go_on = is_unfinished(folder)
    with writing(path, CURE):
        folder.mkdir(parents=True, exist_ok=True)
        # The file has no buffer. After an error, closing the file would write a buffer again.
        file = FileIO(path, "a")
    with file:
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


@dataclass(slots=True)
class Journal(Generic[Piece]):
    """An open journal.

    `pieces`: the finished pieces. The pieces of earlier processes come before the pieces of this
    process.
    """

    path: Path
    file: FileIO
    pieces: list[Piece] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Keep `piece`. Raises EnvironmentNotReadyError if `piece` cannot be written."""
        self.write(builtins_of(piece))
        self.pieces.append(piece)

    def write(self, line: object) -> None:
        """Write one line without delay.

        Raises EnvironmentNotReadyError if the line cannot be written.
        """
        left = json.dumps(line).encode() + b"\n"
        with writing(self.path, CURE):
            while left:
                left = left[self.file.write(left) :]


def _own(file: FileIO, folder: Path) -> None:
    """Lock the journal for this process. Raises EnvironmentNotReadyError."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise EnvironmentNotReadyError(
            f"another lockbench works in {folder}; wait until it ends, or use another --out"
        ) from None


def _require_same(begun: Plan, plan: Plan, folder: Path) -> None:
    """Raise UsageError if the plans `begun` and `plan` differ.

    `begun`: the plan in the journal of `folder`. The message names the differences.
    """
    requested = json.loads(json.dumps(plan))
    differing = sorted(key for key in {*begun, *requested} if begun.get(key) != requested.get(key))
    if "experiment" in differing:
        differing = ["experiment"]
    if differing:
        differences = [
            f"{key} {begun.get(key)} there, {requested.get(key)} here" for key in differing
        ]
        short = ", ".join(
            text if len(text) <= MOST_TOLD else key
            for key, text in zip(differing, differences, strict=True)
        )
        raise UsageError(
            f"the experiment in {folder} started with other options ({short}); use the same "
            "options, or start a new experiment with another --out"
        )


def is_unfinished(folder: Path) -> bool:
    """Return whether `folder` holds an interrupted experiment. The folder of an interrupted
    experiment has a journal and no result."""
    return (folder / JOURNAL_NAME).is_file() and not (folder / RESULT_NAME).exists()


def read_journal(folder: Path) -> tuple[Plan, Sequence[bytes], int]:
    """Return the plan, the lines of the complete pieces, and the size of all complete lines in
    bytes.

    Raises UsageError if the file is not a journal.
    """
    path = folder / JOURNAL_NAME
    try:
        text = path.read_bytes()
        whole_bytes = text.rfind(b"\n") + 1
        begun, *lines = text[:whole_bytes].splitlines()
        return decoded(begun, dict[str, Plan])["plan"], lines, whole_bytes
    except OSError as error:
        raise UsageError(
            f"{folder} has no experiment to continue, because {path.name} cannot be read: "
            f"{error.strerror}"
        ) from error
    except (ValueError, KeyError, MsgspecError):
        raise UsageError(
            f"{path} is not the journal of an experiment; start a new experiment with another --out"
        ) from None


def _sound(
    path: Path, lines: Sequence[bytes], kind: type[Piece], check: Callable[[Piece], object]
) -> Iterator[Piece]:
    for number, line in enumerate(lines, start=2):
        try:
            piece = decoded(line, kind)
            check(piece)
        except Exception as error:  # noqa: BLE001 - whatever it is, this line cannot be believed
            raise UsageError(
                f"line {number} of {path} is not a part of this experiment "
                f"({type(error).__name__}: {error}); remove the line to repeat this part, or "
                "start a new experiment with another --out"
            ) from None
        yield piece
