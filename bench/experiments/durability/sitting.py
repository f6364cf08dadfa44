"""One session that measures a matrix of prices or losses: *an order → the measurements that the
journal lacks → a result, stored or to be continued*.

A matrix takes many minutes. Each finished piece is written to the journal at once, so an
interrupted matrix can continue where it stopped. The journal is removed when its result is stored.
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
    """Measurements that are made piece by piece."""

    def measure(self, is_over: Callable[[], bool]) -> None:
        """Measure the pieces that the journal lacks, until `is_over`. Raises BenchError."""

    def result(self, header: Header) -> Stored_co:
        """Return the judged result of all pieces in the journal."""


class Pace:
    """An estimate of the time left. `planned_s` is the planned time of all pieces. `lanes` pieces
    are measured at once."""

    def __init__(self, planned_s: float, lanes: int = 1) -> None:
        self._began_s = time.monotonic()
        self._planned_s = planned_s
        self._left_s = planned_s
        self._lanes = lanes

    def did(self, planned_s: float) -> None:
        """Record that a piece is finished. Its planned time is `planned_s`."""
        self._left_s -= planned_s

    @property
    def left(self) -> str:
        """The time left, in words. The first estimates follow the plan, and later estimates follow
        the speed of this machine."""
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
    """Measure the pieces of a matrix that the journal of `order` lacks. `plan` holds the values
    that must be equal, so that a matrix can be continued. `check` raises an error for an unusable
    piece.

    Raises BenchError if nothing can be measured, and KeyboardInterrupt if Ctrl-C came before the
    first finished piece.
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
