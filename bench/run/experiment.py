"""The part that all experiments share: *an order → measurements → a typed result on disk*.

    with Experiment(order) as experiment:
        with experiment.cuttable():   # Ctrl-C ends this part; a later Ctrl-C is only counted
            measure(rows)
        experiment.require(rows)      # raises KeyboardInterrupt if nothing was measured
        header = experiment.header(seed=plan.seed, interrupted=experiment.cut)
        return experiment.store(CrashResult(**header, rows=rows, …))

Rules: if a signal asks an experiment to end, the experiment first judges and stores its
measurements. Some experiments can be continued (bench.run.journal). If a signal ends an experiment
that can be continued, the experiment stores no result and returns `unfinished`.
"""

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import structs

from bench.errors import EXIT_INTERRUPTED, EnvironmentNotReadyError
from bench.measure.environment import describe_environment, environment_warnings
from bench.measure.result import Document, write_result
from bench.measure.verdict import Verdict
from bench.run.interrupt import Interrupts

Show = Callable[[str], None]
# The first fields of a Document, for its constructor.
Header = dict[str, Any]
Plan_co = TypeVar("Plan_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ExperimentOrder(Generic[Plan_co]):
    """The order for one experiment.

    `command`: the command line as the user typed it, without secrets. `folder`: the folder for the
    result. This folder is new, or it contains the journal of an interrupted experiment.
    `server`: the server program to start (None: search for one).
    """

    plan: Plan_co
    run_id: str
    command: Sequence[str]
    folder: Path
    server: str | None = None


Stored = TypeVar("Stored", bound=Document)
Stored_co = TypeVar("Stored_co", bound=Document, covariant=True)


@dataclass(frozen=True, slots=True)
class Done(Generic[Stored_co]):
    """The outcome of an experiment. The README explains `exit_code`.

    If the result could not be stored, `path` is None and `unstored` gives the reason.
    """

    result: Stored_co
    path: Path | None
    exit_code: int
    unstored: str = ""


def store(result: Stored, folder: Path, code: int) -> Done[Stored]:
    """Write `result` into `folder`.

    If the result cannot be written, the function still returns the result, with the exit code of
    the error. The exit code of an interrupted experiment stays 130.
    """
    try:
        return Done(result, write_result(result, folder), code)
    except EnvironmentNotReadyError as error:
        return Done(result, None, code if code == EXIT_INTERRUPTED else error.exit_code, str(error))


def exit_code(verdict: Verdict, *, interrupted: bool) -> int:
    """Return the exit code of a run with this verdict."""
    return EXIT_INTERRUPTED if interrupted else int(verdict.exit_code or 0)


def now_text() -> str:
    """Return the time of day in UTC, to the second."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


class Experiment(Interrupts):
    """An experiment in progress. Inside its `with` block, the experiment handles the signals that
    ask the process to end.

    `cut`: True if Ctrl-C has ended a `cuttable` part.
    """

    def __init__(self, order: ExperimentOrder[object]) -> None:
        super().__init__()
        self.cut = False
        self._order = order
        self._began_s = time.monotonic()
        self._started_at = now_text()

    @property
    def is_over(self) -> bool:
        """True if a signal has asked the experiment to end."""
        return self.cut or self.count > 0

    @contextlib.contextmanager
    def cuttable(self) -> Iterator[None]:
        """Return a context for a `with` block that Ctrl-C can end.

        If Ctrl-C ends the block, `cut` becomes True. After the end of the block, a signal raises no
        exception, and the experiment only counts the signal.
        """
        try:
            yield
        except KeyboardInterrupt:
            self.cut = True
        finally:
            self.raising = False

    def require(self, measured: Sized) -> None:
        """Raise KeyboardInterrupt if a signal came before the experiment measured anything."""
        if self.is_over and not measured:
            raise KeyboardInterrupt

    def header(self, *, seed: int | None, interrupted: bool) -> Header:
        """Return the first fields of the result.

        The field `duration_s` is the time (s) from the start of the experiment to this call.
        """
        return {
            "id": self._order.run_id,
            "command": tuple(self._order.command),
            "seed": seed,
            "started_at": self._started_at,
            "duration_s": time.monotonic() - self._began_s,
            "interrupted": interrupted,
            "environment": describe_environment(),
        }

    def store(self, result: Stored) -> Done[Stored]:
        """Write `result` into the folder of the order. Return the result even if the writing
        fails."""
        result = structs.replace(result, warnings=(*result.warnings, *environment_warnings()))
        return store(
            result, self._order.folder, exit_code(result.verdict, interrupted=result.interrupted)
        )

    @staticmethod
    def unfinished(result: Stored) -> Done[Stored]:
        """Return the outcome of an experiment that a signal ended, and that can be continued. The
        method does not store the result."""
        return Done(result, None, EXIT_INTERRUPTED, "cut short")


def left_text(seconds: float) -> str:
    """Return the remaining time as text, for a line of progress."""
    return "{}:{:02} left".format(*divmod(round(seconds), 60))
