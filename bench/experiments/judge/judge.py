"""Combines the verdicts on all rows into one verdict on the lock. The functions are pure.

If the lock fails a row about safety, the verdict is VIOLATED. If the lock fails a row but no row
about safety, the verdict is FAIL. The only purpose of some rows is to inform the user. Such a row
affects the verdict only if the row shows a fault. A row that does not apply to this lock never
affects the verdict. If fewer than 100 leases were tested under contention, the verdict is never
good. The function `earned` judges each stored row again from the evidence in this row.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from bench.experiments.judge.holders import crowds, is_too_many
from bench.experiments.judge.needs import (
    CONTENTION,
    INFORMATIVE,
    SAFETY,
    Need,
    lacks_of,
    needs_of,
    optional_of,
    rows_of,
)
from bench.experiments.judge.result import JudgedRow, JudgedWord, JudgeResult
from bench.measure import verdict as words
from bench.measure.verdict import Evidence, Verdict, conclude

# The figures of contention: the most clients that held the lock together, and all leases.
AT_ONCE = "at once"
LEASES = "leases"


_GOOD = ("holds", "told")


def judge_rows(
    rows: Sequence[JudgedRow], required: Sequence[str] | None = None, *, interrupted: bool = False
) -> Verdict:
    """Return the verdict on the whole lock. `required` holds the names of the rows that must be in
    `rows`. If `required` is None, no row counts as missing.
    """
    there = {row.topic for row in rows}
    parts = []
    if required is not None and there != {*required}:
        differing = ", ".join(sorted(there ^ {*required}))
        parts.append(
            f"rows that are missing or do not belong here: {differing}; judge the lock again"
        )
    if len(there) != len(rows):
        parts.append("a row appears twice; judge the lock again")
    broken = [row for row in rows if row.verdict == "does not"]
    reasons = {
        words.VIOLATED: [reason_of(row) for row in broken if row.is_safety],
        words.FAIL: [reason_of(row) for row in broken if not row.is_safety],
        words.NOT_KNOWN: [
            *(reason_of(row) for row in rows if row.verdict == "not known"),
            *parts,
        ],
        words.INTERRUPTED: [f"interrupted after {len(rows)} rows"] if interrupted else [],
    }
    tested = sum(row.tested for row in rows if row.topic == CONTENTION and row.verdict == "holds")
    evidence = [
        Evidence("rows that hold", sum(row.verdict == "holds" for row in rows)),
        Evidence("leases tested under contention", tested, words.TESTED_LEAST),
    ]
    return conclude(words.HOLDS, evidence, reasons)


def reason_of(row: JudgedRow) -> str:
    """Return the reason why the verdict word of a row is "does not" or "not known"."""
    return f"{row.topic}: {row.happened}"


def earned(result: JudgeResult) -> JudgeResult:
    """Return `result` with the verdicts that follow from the evidence in its rows."""
    lacks = lacks_of(
        instances=result.instances,
        capacity=result.capacity,
        shared=result.shared,
        keys=result.keys,
        ttl_ms=result.ttl_ms,
        observed=result.lacks,
    )
    rows = tuple(
        replace(
            row,
            is_safety=row.topic in SAFETY,
            verdict=_earned_word(row, result, needs_of(row.topic) & lacks),
        )
        for row in result.rows
    )
    required = rows_of(result.chosen, capacity=result.capacity, shared=result.shared)
    verdict = judge_rows(rows, required, interrupted=result.interrupted)
    return replace(result, planned=len(required), rows=rows, verdict=verdict)


def _earned_word(row: JudgedRow, result: JudgeResult, missing: frozenset[Need]) -> JudgedWord:
    """Return the verdict on a row. `missing` holds the needs of this row that the lock does not
    meet. If the lock meets all needs, the function changes the verdict word "not applicable" to
    "not known". If the lock does not meet a need that is not optional, the function changes a good
    verdict word to "not known".
    """
    word = word_of_row(row, result.capacity, shared=result.shared)
    is_skipped = word == "not applicable" and not missing
    is_impossible = word in _GOOD and missing - optional_of(row.topic)
    return "not known" if is_skipped or is_impossible else word


def word_of_row(row: JudgedRow, capacity: int = 1, *, shared: bool = False) -> JudgedWord:
    """Return the verdict that follows from the evidence of a stored row. `capacity` is the number
    of clients that may hold the lock together. If `shared` is true, readers may hold the lock
    together, and a writer may only hold it alone.
    """
    together = [one.value for one in row.figures if one.name == AT_ONCE]
    too_many = not shared and any(value > capacity for value in together)
    crowded = any(is_too_many(held, capacity, shared=shared) for held in crowds(row.holders))
    if too_many or crowded:
        return "does not"
    leases = sum(one.value for one in row.figures if one.name == LEASES)
    if row.wrong > row.plays or row.tested > leases:
        return "not known"
    if row.wrong:
        return "does not"
    if row.verdict in ("not known", "not applicable"):
        # Plays before the last play may have held.
        return row.verdict
    is_misplaced = row.verdict == "told" and row.topic not in INFORMATIVE
    is_bare = row.topic == CONTENTION and not row.holders
    # A course of events is stored only for a row that does not hold or is not known.
    if not row.plays or row.course or is_misplaced or is_bare or row.verdict == "does not":
        return "not known"
    return "told" if row.verdict == "told" else "holds"
