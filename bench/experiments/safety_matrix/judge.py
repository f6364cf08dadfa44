"""Judges the rows of the safety matrix. The functions are pure.

A good verdict requires that at least half of the measured rows are as expected. A row is as
expected only if the observation equals the expectation and every precondition was met. The function
`earned` judges each row of a stored matrix again.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from bench.experiments.safety_matrix.result import MatrixWord, SafetyResult, SafetyRow
from bench.measure.expectation import (
    AS_EXPECTED,
    NOT_KNOWN,
    NOT_SHOWN,
    ROW_WORDS,
    VIOLATED,
    conclude_rows,
)
from bench.measure.verdict import TESTED_LEAST, Verdict

ELSEWHERE: Final = "not measured here"
# Words for what a recipe is expected to do, and for what it did.
HOLDS = "no flaw"
FLAW = "the flaw"


def judge_rows(rows: Sequence[SafetyRow], planned: int | None = None) -> Verdict:
    """Return the verdict on `rows`. `planned` is the number of requested rows. If `planned` is
    None, `rows` contains all requested rows.
    """
    planned = len(rows) if planned is None else planned
    here = sum(row.verdict != ELSEWHERE for row in rows)
    cut = f"interrupted after {len(rows)} of {planned} rows" if len(rows) < planned else ""
    judged = []
    for row in rows:
        more = f" ({row.reason})" if row.reason else ""
        judged.append(
            (
                row.verdict,
                f"{row.recipe}, {row.fault}: expected {row.expected}, but the result is "
                f"{row.seen}{more}",
            )
        )
    return conclude_rows(judged, least=max(1, here // 2), interrupted=cut)


def earned(result: SafetyResult) -> SafetyResult:
    """Return `result` with the verdict words and the verdict that follow from the evidence in its
    rows.
    """
    rows = tuple(replace(row, verdict=word_of_row(row)) for row in result.rows)
    return replace(result, rows=rows, verdict=judge_rows(rows, len(rows) + result.interrupted))


def word_of_row(row: SafetyRow) -> MatrixWord:
    """Return the verdict word that follows from the evidence in a stored row.

    If the row was not tested, the verdict word of the row does not change.
    """
    if row.verdict not in ROW_WORDS:
        return row.verdict
    if row.verdict == VIOLATED or row.figures.get("broken_rules"):
        return VIOLATED
    if row.seen not in (HOLDS, FLAW, "confirmed", "refuted") or not all(row.preconditions.values()):
        return NOT_KNOWN
    if row.part == "claim":
        return AS_EXPECTED if row.seen == "confirmed" else NOT_SHOWN
    if row.seen == FLAW and row.expected == HOLDS:
        return VIOLATED
    tested = row.figures.get("tested")
    if row.part == "schedule" and row.seen == HOLDS and (tested is None or tested < TESTED_LEAST):
        return NOT_KNOWN
    return AS_EXPECTED if row.seen == row.expected else NOT_SHOWN
