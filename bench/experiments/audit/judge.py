"""Judges an audit: *a cell for each library and schedule → one verdict*. All functions are pure.

Each planted fault has one schedule, and this schedule must find the fault. lockcore must stay safe
in all schedules. The cells of the other libraries do not affect the verdict. `earned` judges a
stored audit again. A cell can have the verdict "does not" only if at least one play went wrong. A
cell can have the verdict "holds" only if there was at least one play and all plays went well.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from bench.experiments.audit.result import CONTROL, NO_FAULT, AuditResult
from bench.experiments.judge.judge import word_of_row
from bench.experiments.judge.result import JudgedRow
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED, conclude_rows
from bench.measure.verdict import Verdict


def judge_cells(cells: Sequence[JudgedRow], *, interrupted: bool = False) -> Verdict:
    """Return the verdict on the audit as a whole."""
    rows = [
        (
            _row_word(cell),
            ": ".join(filter(None, (f"{cell.library}, {cell.topic}", cell.verdict, cell.happened))),
        )
        for cell in cells
    ]
    if not any(
        cell.verdict in ("holds", "does not") and not cell.library.startswith(CONTROL)
        for cell in cells
    ):
        rows.append(
            (
                NOT_KNOWN,
                "no library finished a schedule; the table gives the reason for each absent "
                "library and each unknown cell",
            )
        )
    cut = f"interrupted after {len(cells)} cells" if interrupted else ""
    return conclude_rows(rows, tested="cells as expected", interrupted=cut)


def earned(result: AuditResult) -> AuditResult:
    """Return a stored `result` with new verdicts, which the function computes from the cells."""
    cells = tuple(replace(cell, verdict=word_of_row(cell)) for cell in result.cells)
    return replace(result, cells=cells, verdict=judge_cells(cells, interrupted=result.interrupted))


def _row_word(cell: JudgedRow) -> str:
    """Return the effect of a cell on the verdict. The result is "told" if the cell does not affect
    the verdict."""
    if cell.library.startswith(CONTROL):
        must = "holds" if cell.library == CONTROL + NO_FAULT else "does not"
        if cell.verdict == must:
            return AS_EXPECTED
        return NOT_KNOWN if cell.verdict == "not known" else NOT_SHOWN
    if cell.library.startswith("lockcore"):
        return {"holds": AS_EXPECTED, "does not": VIOLATED, "not known": NOT_KNOWN}.get(
            cell.verdict, "told"
        )
    return "told"
