"""The verdict over a judged lock: *a word per row → one word*. Pure.

Rules: a row of safety that does not hold makes the lock VIOLATED, and any other row makes it FAIL.
Two kinds of rows decide nothing: those that only inform, and those that do not apply to this lock.
With fewer than 100 tested leases under contention the verdict is never good. `earned` derives each
row's word from the row's own counts.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from bench.experiments.judge.result import JudgedRow, JudgedWord, JudgeResult
from bench.measure import verdict as words
from bench.measure.verdict import Evidence, Verdict, conclude

CONTENTION = "contention"


def judge_rows(
    rows: Sequence[JudgedRow], planned: int | None = None, *, interrupted: bool = False
) -> Verdict:
    """Return the word for the whole lock. `planned`: the required number of rows (None: exactly
    these rows)."""
    there = len({row.topic for row in rows})
    parts = []
    if planned is not None and there != planned:
        parts.append(f"{there} of {planned} rows are here; judge the lock again")
    broken = [row for row in rows if row.verdict == "does not"]
    reasons = {
        words.VIOLATED: [_sentence(row) for row in broken if row.is_safety],
        words.FAIL: [_sentence(row) for row in broken if not row.is_safety],
        words.NOT_KNOWN: [
            *(_sentence(row) for row in rows if row.verdict == "not known"),
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


def _sentence(row: JudgedRow) -> str:
    return f"{row.topic}: {row.happened}"


def earned(result: JudgeResult) -> JudgeResult:
    """Return `result` with the words and the verdict that its rows earn."""
    rows = tuple(replace(row, verdict=word_of_row(row)) for row in result.rows)
    verdict = judge_rows(rows, result.planned, interrupted=result.interrupted)
    return replace(result, rows=rows, verdict=verdict)


def word_of_row(row: JudgedRow) -> JudgedWord:
    """Return the word that the counts of a stored row earn."""
    if row.wrong:
        return "does not"
    if row.verdict in ("not known", "not applicable"):
        # Plays before the last one may have held.
        return row.verdict
    if row.plays:
        return "told" if row.verdict == "told" else "holds"
    return "not known"
