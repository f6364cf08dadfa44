"""One sitting over a matrix of prices or losses: *an order → what the journal lacks, measured → a
result, stored or to go on with*.

A matrix takes many minutes. Each finished piece goes to the journal at once, so a matrix that was
cut goes on where it stopped. The journal is removed once its result is stored.
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
# When this share of all work is done, the pace on this machine is known.
KNOWN = 0.1


class Matrix(Protocol[Stored_co]):
    """What is measured piece by piece."""

    def measure(self, is_over: Callable[[], bool]) -> None:
        """Measure what the journal lacks, until `is_over`. Raises BenchError."""

    def result(self, header: Header) -> Stored_co:
        """Return all that the journal holds, judged."""


class Pace:
    """How long the rest of a matrix takes. `planned_s`: all of it, by the plan; `lanes`: how many
    pieces are measured at once."""

    def __init__(self, planned_s: float, lanes: int = 1) -> None:
        self._began_s = time.monotonic()
        self._planned_s = planned_s
        self._left_s = planned_s
        self._lanes = lanes

    def did(self, planned_s: float) -> None:
        """A piece for which the plan has this time is finished."""
        self._left_s -= planned_s

    @property
    def left(self) -> str:
        """The time left, in words: by the plan at first, then as fast as this machine was."""
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
    """Measure what the journal of `order` lacks of a matrix. `plan`: what must be the same when it
    goes on; `check` raises for a piece that nothing can be made of.

    Raises BenchError where nothing can be measured, KeyboardInterrupt where it was cut before its
    first piece.
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
