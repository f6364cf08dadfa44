"""Judges the rows of an exploration. The functions are pure.

A recipe gets a good verdict only if, in enough schedules, a client requested a lock that another
client held. The function `earned` judges a stored exploration again. If a schedule broke a rule,
the broken rule decides the verdict on the recipe. Otherwise the verdict depends on how many
schedules tested the recipe. If the field `reason` of a row is not empty, the verdict on the row is
"not known".
"""

from collections.abc import Sequence

from msgspec.structs import replace

from bench.experiments.explore.result import ExploredRow, ExploreResult
from bench.measure.expectation import RowWord, conclude_rows, row_verdict
from bench.measure.verdict import TESTED_LEAST, Evidence, Verdict


def judge_explored(rows: Sequence[ExploredRow], planned: int, *, is_cut: bool = False) -> Verdict:
    """Return the verdict on `rows`. `planned` is the number of requested rows.

    If the user interrupted the exploration of the last row, `is_cut` is true.
    """
    cut = f"interrupted in recipe {len(rows)} of {planned}" if is_cut else ""
    judged = [(row.verdict, f"{row.recipe}: {_sentence(row)}") for row in rows]
    held = sum(row.schedules for row in rows if row.safe)
    also = [Evidence("schedules that must not break their recipe", held)] if held else []
    return conclude_rows(judged, tested="recipes as expected", also=also, interrupted=cut)


def earned(result: ExploreResult) -> ExploreResult:
    """Judge the rows of `result` again from their evidence. Return `result` with the new verdict
    words and the new verdict.
    """
    rows = tuple(replace(row, verdict=word_of_row(row)) for row in result.rows)
    verdict = judge_explored(rows, len(result.conditions.recipes), is_cut=result.interrupted)
    return replace(result, rows=rows, verdict=verdict)


def word_of_row(row: ExploredRow) -> RowWord:
    """Return the verdict word that follows from the evidence in a stored row.

    If the verdict word is "not known", the row itself states the reason.
    """
    least = 1 if row.whole else TESTED_LEAST
    broken = row.broken is not None
    # If a search ended before every schedule was played, a known flaw may not have shown. The flaw
    # may still exist.
    searched = row.tested >= least and (row.safe or row.whole)
    is_known = row.reason is None and (broken or searched) and row.tested <= row.schedules
    return row_verdict(
        holds=broken != row.safe,
        broken=row.safe and broken,
        preconditions={"it is known": is_known},
    )


def _sentence(row: ExploredRow) -> str:
    if row.reason:
        return row.reason
    return row.broken.rule if row.broken else f"no violation in {row.schedules:,} schedules"
