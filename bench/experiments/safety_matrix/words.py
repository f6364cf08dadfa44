"""Turns a result of `lockbench safety` into the verdict and one table per part, for a terminal or
as Markdown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.experiments.safety_matrix.result import Figures, SafetyResult, SafetyRow
from bench.measure.expectation import AS_EXPECTED, ROW_WORDS, VIOLATED
from bench.report.figures import counted
from bench.report.html.plot import Figure, Measure, Panel, harm, panels
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import (
    Columns,
    KeyFigure,
    Part,
    Sentence,
    Sheet,
    made,
    not_measured,
    sheet_of,
    table_of,
    to_do,
)

_PARTS = {
    "schedule": "simulated schedules; the search stops when a schedule breaks the recipe",
    "load": "short loads, every operation judged",
    "claim": "claims about Redlock and persistence",
}
FLAW = "the flaw"
_STYLES = {name: f"bold {word.colour}" for name, word in ROW_WORDS.items()}


def sheet(result: SafetyResult, place: str = "") -> Sheet:
    """Return the sheet that shows `result`. `place` is the path of the stored result, or ""."""
    cut = ", then interrupted" if result.interrupted else ""
    server = result.fleet.server
    conditions = (
        "quick" if result.conditions.quick else "full",
        f"{server.name} {server.version}, started on loopback",
        *made(result),
    )
    return sheet_of(
        result,
        place,
        headline=f"{_answer(result.rows)}{cut}",
        conditions=conditions,
        parts=_parts(result.rows),
        lines=_lines(result),
        tables_first=True,
        keys=_keys(result.rows),
    )


def _keys(rows: Sequence[SafetyRow]) -> Iterator[KeyFigure]:
    for name, is_flawed, what in (
        ("must hold", False, "rows that must hold held"),
        ("known flaws", True, "known flaws showed"),
    ):
        of_kind = [row for row in rows if _is_flawed(row) is is_flawed and row.verdict in ROW_WORDS]
        met = sum(row.verdict == AS_EXPECTED for row in of_kind)
        if of_kind:
            yield KeyFigure(name, f"{met} of {len(of_kind)}", what)
    unlooked = sum(row.verdict not in ROW_WORDS for row in rows)
    if unlooked:
        yield KeyFigure("not measured", str(unlooked), "rows not measured here")


def _answer(rows: Sequence[SafetyRow]) -> str:
    """Return one sentence that says how many rows have the expected result."""
    return "; ".join(f"{key.value} {key.bound}" for key in _keys(rows)) or "nothing finished"


def _is_flawed(row: SafetyRow) -> bool:
    return row.expected == FLAW


def _lines(result: SafetyResult) -> Iterator[Sentence]:
    if flawed := [row.recipe for row in result.rows if row.seen == FLAW]:
        names = ", ".join(dict.fromkeys(flawed))
        yield to_do(
            f"if two holders at the same time cause harm, do not use these recipes: {names}",
            "avoid",
        )
        yield to_do("lockbench explore --recipe … shows the schedule that breaks a recipe", "look")
    yield to_do("lockbench judge mine.py tests your own lock with these faults")
    unlooked: dict[str, list[str]] = {}
    for row in result.rows:
        if row.verdict not in ROW_WORDS:
            name = row.recipe if row.fault == "none" else row.fault
            unlooked.setdefault(row.reason or row.verdict, []).append(name)
    for reason, rows in unlooked.items():
        yield not_measured(f"{', '.join(rows)}: {reason}")
    if result.conditions.quick:
        yield not_measured("longer TTLs and more schedules; run lockbench safety without --quick")


def _figure(row: SafetyRow) -> str:
    """Return the figures of a row as text.

    For a claim, the text also states the reason for the result. For any other row, the text states
    the reason only if the row has no figures.
    """
    reason = row.reason if row.part == "claim" or not row.figures else None
    return "; ".join(filter(None, (figures_text(row.figures), reason))) or "–"


_COLUMNS: Columns[SafetyRow] = (
    "recipe",
    "fault",
    "expected",
    "seen",
    ("figure", _figure),
    "verdict",
)


def _parts(rows: Sequence[SafetyRow]) -> Iterator[Part]:
    for name, about in _PARTS.items():
        shown = [row for row in rows if row.part == name]
        terms = {row.fault: row.about for row in shown if row.about}
        if shown:
            table = table_of(SafetyRow, name, about, shown, _COLUMNS, words=["figure"], terms=terms)
            yield replace(table, below=4, styles=_STYLES)


def figures(result: SafetyResult) -> list[Figure]:
    """Return a picture of the recipes and the claims. For a broken recipe, the picture shows the
    number of steps in the smallest schedule that breaks the recipe. A violated claim counts as one
    step.

    All recipes that must be safe and were not broken share one row. All confirmed claims share one
    row, too.
    """
    looked_at = [row for row in result.rows if row.verdict in ROW_WORDS]
    if not looked_at:
        return []
    groups = []
    for part, noun in (("schedule", "recipe"), ("load", "load"), ("claim", "claim")):
        of_part = [row for row in looked_at if row.part == part]
        held = [row for row in of_part if not _is_flawed(row) and row.verdict == AS_EXPECTED]
        drawn = [row for row in of_part if row not in held]
        measures = [(_name(row), [_measure(row)]) for row in drawn]
        if held:
            tick = harm(0, "held", some="broken", none="held")
            measures.insert(0, (counted(len(held), noun), [tick]))
        if measures:
            groups.append((_PARTS[part], measures))
    about = (
        "Each bar shows the number of steps of the smallest schedule that breaks the recipe. "
        "The bar of a violated claim is always one step long"
    )
    heads = [Panel("broken in", "steps")]
    return [panels("matrix", _answer(result.rows), about, heads=heads, groups=groups)]


def _name(row: SafetyRow) -> str:
    return row.recipe if row.part == "schedule" else row.fault


def _measure(row: SafetyRow) -> Measure:
    steps = row.figures.get("steps") if row.seen == FLAW else None
    text = f"{steps:.0f}" if steps else f"{row.seen}: {row.verdict}"
    if row.verdict == VIOLATED:
        steps = steps or 1
    return harm(steps, text, some="broken", none="held")


def figures_text(figures: Figures) -> str:
    """Return figures as text, such as `chain 5, foreign deletes 1`."""
    return ", ".join(
        f"{name.replace('_', ' ')} {_number(value)}" for name, value in figures.items()
    )


def _number(value: float | None) -> str:
    if value is None:
        return "never"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def suite(result: SafetyResult) -> Suite:
    """Return the tested rows as JUnit cases. The suite also says how many rows were not tested."""
    cases = [
        Case(
            " ".join((row.part, row.recipe, row.fault)),
            ROW_WORDS[row.verdict].status,
            f"expected: {row.expected}, observed: {row.seen} "
            f"({row.reason or figures_text(row.figures)})",
        )
        for row in result.rows
        if row.verdict in ROW_WORDS
    ]
    unseen = str(len(result.rows) - len(cases))
    return suite_of(result, cases, {"rows not looked at": unseen})
