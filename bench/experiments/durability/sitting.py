"""Runs one session that measures a matrix of prices or losses. The session makes only the
measurements that are still missing. At the end the session stores the result. If the session was
interrupted, the result is unfinished.

A matrix takes many minutes. The session writes each finished piece to the journal at once. So a
later session can continue an interrupted matrix. The session removes the journal when it has stored
the result.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from bench.measure.result import Document
from bench.run.experiment import Done, Experiment, ExperimentOrder, Header, left_text
from bench.run.journal import Journal, Plan, open_journal

Piece = TypeVar("Piece")
Stored_co = TypeVar("Stored_co", bound=Document, covariant=True)
Stored = TypeVar("Stored", bound=Document)
# When this share of all work is done, the speed of this machine is known.
KNOWN = 0.1


class Matrix(Protocol[Stored_co]):
    """A matrix of measurements, which a session makes piece by piece."""

    def measure(self, is_over: Callable[[], bool]) -> None:
        """Measure the pieces that are missing in the journal. Stop when `is_over` returns True.
        Raises BenchError."""

    def result(self, header: Header) -> Stored_co:
        """Judge all measured pieces that are in the journal, and return the result."""


class Pace:
    """An estimate of the remaining time. `planned_s` is the planned time of all pieces. The
    experiment measures `lanes` pieces in parallel."""

    def __init__(self, planned_s: float, lanes: int = 1) -> None:
        self._began_s = time.monotonic()
        self._planned_s = planned_s
        self._left_s = planned_s
        self._lanes = lanes

    def did(self, planned_s: float) -> None:
        """Record that a piece is finished. `planned_s` is the planned time of this piece."""
        self._left_s -= planned_s

    @property
    def left(self) -> str:
        """The remaining time as text. In the beginning, the estimate uses the planned times. Later
        the estimate uses the measured speed of this machine."""
        done_s = self._planned_s - self._left_s
        pace = 1 / self._lanes
        if done_s > KNOWN * self._planned_s:
            pace = (time.monotonic() - self._began_s) / done_s
        return f"about {left_text(self._left_s * pace)}"


def sit(
    experiment: Experiment,
    order: ExperimentOrder[Any],
    plan: Plan,
    piece: type[Piece],
    matrix_of: Callable[[Journal[Piece]], Matrix[Stored]],
    *,
    check: Callable[[Piece], object] = lambda _piece: None,
) -> Done[Stored]:
    """Measure all pieces of a matrix, except the pieces that are already in the journal of `order`.
    A session can continue a journal only if `plan` is equal to the plan in the journal. The
    function `check` raises an error if it gets a stored piece that cannot be used.

    Raises BenchError if nothing can be measured. Raises KeyboardInterrupt if the user presses
    Ctrl-C before the first piece is finished.
    """
    with open_journal(order.folder, plan, piece, check) as journal:
        matrix = matrix_of(journal)
        with experiment.cuttable():
            matrix.measure(lambda: experiment.is_over)
        experiment.require(journal.pieces)
        header = experiment.header(seed=order.plan.seed, interrupted=experiment.is_over)
        result = matrix.result(header)
        if result.interrupted:
            return experiment.unfinished(result)
        done = experiment.store(result)
        if done.path:
            with suppress(OSError):
                journal.path.unlink()
    return done
