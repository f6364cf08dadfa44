"""What `lockbench audit` says: *its result → who holds where, and every fault with what happened*, verdict first.

Rules: nothing is computed here but counts of cells; colours are never the only sign.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping

from bench.experiments.audit.result import DOES_NOT, HOLDS, NOT_APPLICABLE, UNKNOWN, AuditResult, Cell
from bench.measure import verdict as words
from bench.measure.statistics import wilson
from bench.report.figures import counted, percent
from bench.report.sheet import BAD, DOUBTFUL, GOOD, Case, Part, Sheet, Suite, made, sheet_of

UNSEEN = 0.05  # of audits
_SIGNS: Mapping[str, str] = {HOLDS: "✓", DOES_NOT: "✗", NOT_APPLICABLE: "–", UNKNOWN: "?"}
_STYLES = {HOLDS: GOOD, DOES_NOT: f"bold {BAD}", UNKNOWN: f"bold {DOUBTFUL}"}
_STYLES |= {_SIGNS[word]: style for word, style in _STYLES.items()}


def sheet(result: AuditResult, place: str = "") -> Sheet:
    """Return what is said of `result`, stored at `place` ("" = nowhere)."""
    lines = [
        *(("absent", f"{one.name}: {one.reason}") for one in result.absent),
        *([("evidence", "each fault step by step, and what was promised: on the page")] if evidence(result) else []),
        ("holds", _bound(result.conditions.held)),
    ]
    server, conditions = result.fleet.server, result.conditions
    held, repeats = counted(conditions.held, "time"), counted(conditions.repeats, "time")
    about = (
        f"what holds played {held}, what went wrong {repeats}",
        f"{server.name} {server.version}, own servers on loopback",
        *made(result),
    )
    return sheet_of(
        result, place, kind="audit", headline=_headline(result), conditions=about, parts=_parts(result), lines=lines,
        tables_first=True,
    )  # fmt: skip


def _parts(result: AuditResult) -> Iterator[Part]:
    libraries = [peer for peer in result.libraries if not peer.name.startswith("control")]
    cells = {(cell.library, cell.schedule): cell for cell in result.cells}
    schedules = [one.name for one in result.schedules]
    none = Cell(library="", schedule="", verdict=NOT_APPLICABLE)
    rows = tuple(
        (peer.name, *(_SIGNS[cells.get((peer.name, name), none).verdict] for name in schedules)) for peer in libraries
    )
    if rows:
        head = ("library", *(name.replace("-", "\u2010\n") for name in schedules))
        about = " · ".join(f"{sign} {word}" for word, sign in _SIGNS.items())
        yield Part("who holds", about, head, rows, frozenset(range(len(head))), styles=_STYLES)
    wrong = tuple(
        (cell.library, cell.schedule, _times(cell), cell.happened)
        for cell in result.cells
        if cell.verdict == DOES_NOT and not _is_control(cell)
    )
    if wrong:
        head = ("library", "schedule", "seen", "what happened")
        yield Part("what went wrong", "", head, wrong, frozenset({0, 1, 3}), below=3)
    controls = tuple(
        (cell.library, cell.schedule, cell.verdict, cell.happened) for cell in result.cells if _is_control(cell)
    )
    if controls:
        head = ("control", "schedule", "verdict", "what happened")
        yield Part("controls", "one planted fault each", head, controls, frozenset(range(4)), below=3, styles=_STYLES)
    unknown = tuple((cell.library, cell.schedule, cell.happened) for cell in result.cells if cell.verdict == UNKNOWN)
    if unknown:
        yield Part("not known", "", ("library", "schedule", "why"), unknown, frozenset(range(3)), below=2)
    courses = tuple((one.name, f"{one.looks_for}: {one.about} ({one.source})") for one in result.schedules)
    yield Part("schedules", "", ("schedule", "what it looks for"), courses, frozenset(range(2)), below=1)


def evidence(result: AuditResult) -> tuple[Part, ...]:
    """Every fault of a library, and what is not known, step by step: how it is seen again."""
    return tuple(
        _course(cell) for cell in result.cells if cell.course and (cell.verdict == UNKNOWN or not _is_control(cell))
    )


def _course(cell: Cell) -> Part:
    times = f": {_times(cell)}" if cell.of else ""
    promised = f"Promised: {cell.promise}. " if cell.promise else ""
    again = shlex.join(("lockbench", "audit", "--library", cell.library, "--schedule", cell.schedule))
    rows = tuple((f"{step.after_ms:,.0f}", step.who, step.what) for step in cell.course)
    return Part(
        f"{cell.library}, {cell.schedule}{times}", f"{cell.happened}. {promised}Again: {again}",
        ("after ms", "client", "what"), rows, frozenset({1, 2}),
    )  # fmt: skip


def _is_control(cell: Cell) -> bool:
    return cell.library.startswith("control")


def _times(cell: Cell) -> str:
    """How often it went wrong; with the interval of its rate where that was not each time."""
    rate, often = wilson(cell.seen, cell.of), f"{cell.seen} of {cell.of}"
    return often if cell.seen == cell.of else f"{often} (95 %: {percent(rate.low, 0)} to {percent(rate.high, 0)})"


def _bound(held: int) -> str:
    """What a cell that holds says: the rate of a fault that `UNSEEN` audits would miss."""
    often = percent(1 - UNSEEN ** (1 / held), 0)
    return f"played {counted(held, 'time')}: a fault that comes in {often} of plays is missed with a chance of 5 %"


def _headline(result: AuditResult) -> str:
    counts = Counter[str](cell.verdict for cell in result.cells if not _is_control(cell))
    caught = [cell for cell in result.cells if _is_control(cell) and not cell.library.endswith("none")]
    told = " · ".join(f"{counts[word]} {word}" for word in _SIGNS if counts[word])
    libraries = sum(not peer.name.startswith("control") for peer in result.libraries)
    faults = f"{sum(cell.verdict == DOES_NOT for cell in caught)} of {len(caught)} planted faults found"
    cut = ", then interrupted" if result.interrupted else ""
    others = "library" if libraries == 1 else "libraries"
    played = f"{libraries} {others}, {counted(len(result.schedules), 'schedule')}{cut}"
    return f"{played}: {told or 'no cell'}" + (f"; {faults}" if caught else "")


def suite(result: AuditResult) -> Suite:
    """The cells that decide something, as JUnit cases; the others are counted in a property."""
    statuses = {HOLDS: words.AS_EXPECTED.status, DOES_NOT: words.VIOLATED.status, UNKNOWN: words.NOT_KNOWN.status}
    cases = [
        Case(f"{cell.library} {cell.schedule}", statuses[cell.verdict], cell.happened)
        for cell in result.cells
        if cell.library.startswith("lockcore") and cell.verdict in statuses
    ]
    properties = {"id": result.id, "cells told": str(len(result.cells) - len(cases))}
    return Suite("audit", result.started_at, result.duration_s, cases, properties)
