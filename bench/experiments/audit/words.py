"""Writes the texts of `lockbench audit`: *an audit result → the verdict, tables of schedules, and
each fault with its sequence of events*."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bench.experiments.audit.result import CONTROL, NO_FAULT, AuditResult
from bench.experiments.judge.result import CourseStep, JudgedRow
from bench.experiments.judge.words import STYLES
from bench.measure import verdict as words
from bench.measure.statistics import wilson
from bench.report.figures import counted, percent
from bench.report.html.plot import Figure, Measure, Panel, harm, panels
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import (
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

# The share of audits in which a rare fault may stay unseen.
UNSEEN = 0.05
_SIGNS: Mapping[str, str] = {"holds": "✓", "does not": "✗", "not applicable": "–", "not known": "?"}
_PLURALS = {"holds": "hold", "does not": "do not"}
_STYLES = STYLES | {_SIGNS[word]: style for word, style in STYLES.items()}


def sheet(result: AuditResult, place: str = "") -> Sheet:
    """Return the summary of `result`. `place` is the result's folder, or "" if the result is not
    stored."""
    server = result.fleet.server
    conditions = result.conditions
    held = counted(conditions.held, "time")
    repeats = counted(conditions.repeats, "time")
    about = (
        f"each schedule was played {held}; a schedule that broke the lock was played {repeats}",
        f"{server.name} {server.version}, servers started on loopback",
        *made(result),
    )
    return sheet_of(
        result,
        place,
        headline=_headline(result),
        conditions=about,
        parts=_parts(result),
        lines=_lines(result),
        tables_first=True,
        keys=_keys(result),
    )


def _keys(result: AuditResult) -> Iterator[KeyFigure]:
    broken = _broken(result)
    libraries = _libraries(result)
    own = [cell.verdict for cell in result.cells if not _is_control(cell)]
    unbroken = f"{len(libraries) - len(broken)} of {len(libraries)} locks"
    yield KeyFigure("not broken", unbroken, f"by {counted(len(result.schedules), 'schedule')}")
    judged = own.count("holds") + own.count("does not")
    yield KeyFigure("cells that hold", f"{own.count('holds')} of {judged}")
    if planted := _planted(result):
        red = planted.count("does not")
        yield KeyFigure("planted faults", f"{red} of {len(planted)} found", "each must be")


def _broken(result: AuditResult) -> dict[str, list[str]]:
    """Return the names of the locks that at least one schedule broke. The result maps the name of
    each lock to the names of the schedules that broke the lock."""
    broken: dict[str, list[str]] = {}
    for cell in result.cells:
        if cell.verdict == "does not" and not _is_control(cell):
            broken.setdefault(cell.library, []).append(cell.topic)
    return broken


def _planted(result: AuditResult) -> list[str]:
    """Return the verdicts of the locks with a planted fault."""
    return [
        cell.verdict
        for cell in result.cells
        if _is_control(cell) and cell.library != CONTROL + NO_FAULT
    ]


def _lines(result: AuditResult) -> Iterator[Sentence]:
    broken = _broken(result)
    for library, schedules in broken.items():
        yield to_do(f"{library}: guard against {', '.join(schedules)}", "avoid")
    if held := [name for name in _libraries(result) if name not in broken]:
        yield to_do(f"no tested schedule broke any of these locks: {', '.join(held)}", "choose")
    yield to_do("lockbench judge mine.py tests your own lock in the same way")
    often = percent(1 - UNSEEN ** (1 / result.conditions.held), 0)
    yield not_measured(
        f"rare faults: if a fault appears in less than {often} of the plays, the audit misses it "
        "with a chance of 5 % or more"
    )
    yield from (not_measured(f"{one.name}: {one.reason}") for one in result.absent)


def figures(result: AuditResult) -> list[Figure]:
    """Return a picture that shows, for each lock, the number of schedules that break it. The locks
    are sorted by this number, and the largest number is first."""
    counts = {name: Counter[str]() for name in _libraries(result)}
    for cell in result.cells:
        if cell.library in counts:
            counts[cell.library][cell.verdict] += 1
    if not counts:
        return []
    rows = sorted(counts.items(), key=lambda pair: -pair[1]["does not"])
    groups = [("lock", [(name, _measures(of_lock)) for name, of_lock in rows])]
    heads = [Panel("broken by", "schedules"), Panel("holds in", "schedules")]
    about = "Each schedule causes a real production fault. The table below lists all schedules"
    return [panels("audited", _headline(result), about, heads=heads, groups=groups)]


def _measures(of_lock: Counter[str]) -> list[Measure]:
    broken = of_lock["does not"]
    held = of_lock["holds"]
    return [
        harm(broken, str(broken or "none"), some="broken by", none="no schedule broke it"),
        Measure(held, str(held), "c1", "holds in"),
    ]


def _parts(result: AuditResult) -> Iterator[Part]:
    own = [cell for cell in result.cells if not _is_control(cell)]
    signs = {(cell.library, cell.topic): _SIGNS[cell.verdict] for cell in own}
    schedules = [one.name for one in result.schedules]
    rows = tuple(
        (name, *(signs.get((name, one), "–") for one in schedules)) for name in _libraries(result)
    )
    if rows:
        head = ("library", *(name.replace("-", "\u2010\n") for name in schedules))
        about = " · ".join(f"{sign} {word}" for word, sign in _SIGNS.items())
        yield Part("who holds", about, head, rows, frozenset(range(len(head))), styles=_STYLES)
    yield from _happened(
        "what went wrong", "", (cell for cell in own if cell.verdict == "does not")
    )
    yield from _happened("controls", "one planted fault each", filter(_is_control, result.cells))
    yield from _happened("not known", "", (cell for cell in own if cell.verdict == "not known"))
    courses = tuple(
        (one.name, f"{one.looks_for}: {one.about} ({one.source})") for one in result.schedules
    )
    yield Part(
        "schedules", "", ("schedule", "what it looks for"), courses, frozenset(range(2)), below=1
    )


def _happened(name: str, about: str, cells: Iterable[JudgedRow]) -> Iterator[Part]:
    head = ("library", "schedule", "result", "what happened")
    if rows := tuple((cell.library, cell.topic, _seen(cell), cell.happened) for cell in cells):
        yield Part(name, about, head, rows, frozenset(range(len(head))), below=3, styles=_STYLES)


def evidence(result: AuditResult) -> tuple[Part, ...]:
    """Return a table of steps for each cell of a library with a fault, and for each cell with an
    unknown result. A reader can repeat the play with these steps."""
    drivers: tuple[str, ...] = ()
    for place, word in enumerate(result.command):
        if word == "--drivers":
            drivers = result.command[place : place + 2]
        elif word.startswith("--drivers="):
            drivers = (word,)
    return tuple(
        _course(cell, drivers)
        for cell in result.cells
        if cell.course and (cell.verdict == "not known" or not _is_control(cell))
    )


def _course(cell: JudgedRow, drivers: Sequence[str]) -> Part:
    times = f": {_seen(cell)}" if cell.plays else ""
    promised = f"Promised: {cell.promise}. " if cell.promise else ""
    name = f"{cell.library}, {cell.topic}{times}"
    again = shlex.join(
        ("lockbench", "audit", *drivers, "--library", cell.library, "--schedule", cell.topic)
    )
    about = f"{cell.happened}. {promised}Again: {again}"
    return table_of(CourseStep, name, about, cell.course)


def _is_control(cell: JudgedRow) -> bool:
    return cell.library.startswith(CONTROL)


def _libraries(result: AuditResult) -> list[str]:
    return [peer.name for peer in result.libraries if not peer.name.startswith(CONTROL)]


def _seen(cell: JudgedRow) -> str:
    """Return a text with the number of plays in which the lock failed. If the lock failed in some
    plays but not in all plays, the text also has the 95 % interval of the failure rate. If the lock
    never failed, return the verdict on the cell."""
    if cell.verdict != "does not":
        return cell.verdict
    often = f"{cell.wrong} of {cell.plays}"
    if cell.wrong == cell.plays:
        return often
    rate = wilson(cell.wrong, cell.plays)
    return f"{often} (95 %: {percent(rate.low, 0)} to {percent(rate.high, 0)})"


def _headline(result: AuditResult) -> str:
    counts = Counter[str](cell.verdict for cell in result.cells if not _is_control(cell))
    planted = _planted(result)
    verdict_counts = " · ".join(
        f"{counts[word]} {_PLURALS.get(word, word)}" for word in _SIGNS if counts[word]
    )
    faults = (
        f"; the audit found {planted.count('does not')} of {len(planted)} planted faults"
        if planted
        else ""
    )
    cut = ", then interrupted" if result.interrupted else ""
    played = (
        f"{counted(len(_libraries(result)), 'lock')}, "
        f"{counted(len(result.schedules), 'schedule')}{cut}"
    )
    return f"{played}: {verdict_counts or 'no cell'}{faults}"


def suite(result: AuditResult) -> Suite:
    """Return one JUnit case for each cell of lockcore. The property `other cells` of the suite
    counts the cells that have no JUnit case."""
    statuses = {
        "holds": words.AS_EXPECTED.status,
        "does not": words.VIOLATED.status,
        "not known": words.NOT_KNOWN.status,
    }
    cases = [
        Case(f"{cell.library} {cell.topic}", statuses[cell.verdict], cell.happened)
        for cell in result.cells
        if cell.library.startswith("lockcore") and cell.verdict in statuses
    ]
    others = str(len(result.cells) - len(cases))
    return suite_of(result, cases, {"other cells": others})
