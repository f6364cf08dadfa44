"""What `lockbench safety` says: *its result → one table per part, on a terminal or as Markdown,
verdict first*."""

from collections import Counter
from collections.abc import Iterator, Sequence

from bench.experiments.safety_matrix.result import Figures, SafetyResult, SafetyRow
from bench.measure.expectation import ROW_WORDS
from bench.report.figures import counted
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import Part, Sheet, made, sheet_of

_PARTS = {
    "schedule": "simulated schedules, until one breaks it",
    "load": "short loads, every operation judged",
    "claim": "what is claimed of Redlock and persistence",
}
HEAD = ("recipe", "fault", "expected", "seen", "figure", "verdict")
_STYLES = {name: f"bold {word.colour}" for name, word in ROW_WORDS.items()}


def sheet(result: SafetyResult, place: str = "") -> Sheet:
    """Return what is said of `result`, stored at `place` ("" = nowhere)."""
    lines = {row.fault: row.about for row in result.rows if row.fault != "none"}
    counts = Counter(row.verdict for row in result.rows)
    verdict_counts = " · ".join(f"{count} {verdict}" for verdict, count in counts.items())
    headline = (
        f"{counted(len(result.rows), 'row')}{', then interrupted' if result.interrupted else ''}: "
        f"{verdict_counts}"
    )
    server = result.fleet.server
    conditions = (
        "quick" if result.conditions.quick else "full",
        f"{server.name} {server.version}, own servers on loopback",
        *made(result),
    )
    return sheet_of(
        result,
        place,
        headline=headline,
        conditions=conditions,
        parts=_parts(result.rows),
        lines=lines.items(),
        tables_first=True,
    )


def _parts(rows: Sequence[SafetyRow]) -> Iterator[Part]:
    for name, about in _PARTS.items():
        shown = (row for row in rows if row.part == name)
        cells = tuple(
            (row.recipe, row.fault, row.expected, row.seen, _figure(row), row.verdict)
            for row in shown
        )
        if cells:
            yield Part(
                name, about, HEAD, cells, frozenset(range(len(HEAD))), below=4, styles=_STYLES
            )


def figures_text(figures: Figures) -> str:
    """Figures in words: `chain 5, foreign deletes 1`."""
    return ", ".join(
        f"{name.replace('_', ' ')} {_number(value)}" for name, value in figures.items()
    )


def _number(value: float | None) -> str:
    if value is None:
        return "never"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _figure(row: SafetyRow) -> str:
    """The figures; beside them the reason of a claim, elsewhere only where there is no figure."""
    reason = row.reason if row.part == "claim" or not row.figures else None
    return "; ".join(filter(None, (figures_text(row.figures), reason))) or "–"


def suite(result: SafetyResult) -> Suite:
    """The rows that were looked at, as JUnit cases; the others are counted in a property."""
    cases = [
        Case(
            " ".join((row.part, row.recipe, row.fault)),
            ROW_WORDS[row.verdict].status,
            f"expected {row.expected}, seen {row.seen}: {row.reason or figures_text(row.figures)}",
        )
        for row in result.rows
        if row.verdict in ROW_WORDS
    ]
    unseen = str(len(result.rows) - len(cases))
    return suite_of(result, cases, {"rows not looked at": unseen})
