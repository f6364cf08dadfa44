"""The verdict over an audit: *a cell per library and schedule → one verdict*. Pure.

Rules: a schedule must catch each control, and lockcore must hold. The cells of other libraries
decide nothing. `earned` judges a stored audit again. A cell that does not hold must have gone wrong
at least once. A cell that holds must have been played, and must never have gone wrong.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from bench.experiments.audit.result import CONTROL, NO_FAULT, AuditResult
from bench.experiments.judge.judge import word_of_row
from bench.experiments.judge.result import JudgedRow
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED, conclude_rows
from bench.measure.verdict import Verdict


def judge_cells(cells: Sequence[JudgedRow], *, interrupted: bool = False) -> Verdict:
    """Return the verdict on the audit itself."""
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
    """Return `result` with the verdicts that follow from its cells."""
    cells = tuple(replace(cell, verdict=word_of_row(cell)) for cell in result.cells)
    return replace(result, cells=cells, verdict=judge_cells(cells, interrupted=result.interrupted))


def _row_word(cell: JudgedRow) -> str:
    """Return what a cell means for the audit itself. "told" means that the cell decides nothing."""
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
