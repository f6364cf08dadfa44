"""One row of the safety matrix: *a case that can be looked at → what was expected, what was seen, the verdict*.

Rules: the words of `bench.measure.expectation`; beside them, what this machine cannot do is `skipped`, what another
command measures is `not measured here`, each with its reason. What went wrong on the way, or lacked a precondition, is
looked at again before it is `not known`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs
from redis.exceptions import RedisError

from bench.errors import BenchError
from bench.experiments.safety_matrix.result import Figures, Finding, MatrixPart, MatrixWord, SafetyRow
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, Preconditions, conclude_rows, row_verdict, unmet
from bench.measure.verdict import Verdict
from bench.topology.child import Child
from lockcore.errors import LockcoreError

SKIPPED: Final = "skipped"
ELSEWHERE: Final = "not measured here"
BROKEN_OFF = (BenchError, LockcoreError, RedisError, TimeoutError, AssertionError)  # what ends a look says nothing
TRIES = 3  # of a row that is not known: a machine that was busy for a moment need not be so the next time


@dataclass(frozen=True, slots=True)
class RowSetup:
    """How a case is looked at. `quick`: a glance; `seed` of every random choice; `server`: the program to start, None =
    look; `searcher`: a search process of `lockbench explore`; `is_over`: whether somebody wants it to end."""

    seed: int
    quick: bool
    server: str | None
    searcher: Child
    is_over: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One row to come: `part` of the matrix, the `recipe`, the `fault` it meets, what is `expected`, how to look.

    `look` is a finding where there is nothing to look at.
    """

    part: MatrixPart
    recipe: str
    fault: str
    expected: str
    about: str
    look: Callable[[RowSetup], Finding] | Finding


def cannot(verdict: MatrixWord, reason: str) -> Finding:
    """The finding of a case that was not looked at."""
    return Finding("–", verdict, reason=reason)


def confirmed(
    holds: bool, figures: Figures, needs: Preconditions, *, broken: bool = False, reason: str | None = None
) -> Finding:
    """The finding of a claim that `holds` or not, if what it `needs` came about; `broken`: exclusion was."""
    verdict = row_verdict(holds=holds, broken=broken, preconditions=needs)
    seen = NOT_KNOWN if verdict == NOT_KNOWN else "confirmed" if verdict == AS_EXPECTED else "refuted"
    if verdict == NOT_KNOWN:
        reason = "; ".join(filter(None, (reason, unmet(needs))))
    return Finding(seen, verdict, figures, reason, needs)


def look(case: PlannedRow, setup: RowSetup) -> SafetyRow:
    """Look at `case`, again while it is not known, at most TRIES times; what goes wrong on the way says nothing."""
    for _ in range(TRIES):
        try:
            finding = case.look if isinstance(case.look, Finding) else case.look(setup)
        except BROKEN_OFF as error:
            finding = Finding("it went wrong", NOT_KNOWN, reason=f"{type(error).__name__}: {error}")
        if finding.verdict != NOT_KNOWN or setup.is_over():
            break
    return SafetyRow(
        **structs.asdict(finding),
        part=case.part, recipe=case.recipe, fault=case.fault, expected=case.expected, about=case.about,
    )  # fmt: skip


def judge_rows(rows: Sequence[SafetyRow], wanted: int | None = None) -> Verdict:
    """The verdict over `rows`, of which `wanted` were to be looked at (None: these).

    Half of those that are measured here must have come out as expected: a matrix of skipped rows says little.
    """
    wanted = len(rows) if wanted is None else wanted
    here = sum(row.verdict != ELSEWHERE for row in rows)
    cut = f"interrupted after {len(rows)} of {wanted} rows" if len(rows) < wanted else ""
    told = [(row.verdict, _sentence(row)) for row in rows]
    return conclude_rows(told, least=max(1, here // 2), interrupted=cut)


def _sentence(row: SafetyRow) -> str:
    more = f" ({row.reason})" if row.reason else ""
    return f"{row.recipe}, {row.fault}: expected {row.expected}, seen {row.seen}{more}"
