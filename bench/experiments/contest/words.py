"""What `make peers` and `make bench` say: *their results → one sheet, the table that stands in
README; one screen*.

Rules: bars first, then a table per section; nothing is computed here; a contestant that is absent
is named with its reason.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import median

from bench.experiments.contest.judge import HOT_LONGER, INSTANCES, in_processes, side_of
from bench.experiments.contest.result import (
    BUSY_RATIO,
    ContestBar,
    PeersResult,
    SpeedResult,
    SpeedRow,
    TurnRow,
)
from bench.measure.verdict import Verdict, word_of
from bench.report.figures import INFINITE, count, counted, decimals, percent, share
from bench.report.junit import Case, Suite
from bench.report.sheet import Columns, Part, Sentence, Sheet, part_markdown, sheet_of, table

# JUnit statuses, by the side of a bar
_STATUSES = {"reached": "pass", "missed": "fail", "not known": "unknown"}


def sheet(result: PeersResult, place: str = "") -> Sheet:
    """Return the summary of `result`, stored at `place`."""
    sides = [side_of(bar) for bar in result.bars]
    unknown = sides.count("not known")
    headline = f"{sides.count('reached')} of {len(sides)} bars reached" + (
        f", {unknown} not known" if unknown else ""
    )
    return sheet_of(
        result,
        place,
        kind="peers",
        headline=headline,
        conditions=[conditions(result)],
        parts=_parts(result.cycles, result.hot, result.stopped),
        lines=_lines(result),
    )


def suite(result: PeersResult) -> Suite:
    """One JUnit case per bar; one whose rounds lie on both sides is an error, as it passes and
    fails by chance."""
    cases = [Case(bar.name, _STATUSES[side_of(bar)], _bar(bar)) for bar in result.bars]
    return Suite("peers", result.started_at, result.duration_s, cases, {"id": result.id})


def conditions(result: PeersResult) -> str:
    """Under which conditions everything in `result` was measured."""
    about = result.conditions
    environment = result.environment
    facts = (
        result.started_at[:10],
        f"{about.rounds} rounds of {about.seconds:g} s (hot key {HOT_LONGER} times as "
        "long), medians",
        f"{environment.cpu_model}, {about.cores} of {environment.cores} cores for "
        "clients and servers",
        f"{about.server.name} {about.server.version} in memory",
        environment.python,
        f"lockcore: {environment.lockcore}",
        "cut short" if result.interrupted else "",
    )
    return " · ".join(filter(None, facts))


def readme_section(result: PeersResult) -> str:
    """The tables for five instances (the others stand in the result) and the bars, as Markdown."""
    cycles, hot = (
        [row for row in rows if row.instances == INSTANCES] for rows in (result.cycles, result.hot)
    )
    tables = [part_markdown(part) for part in _parts(cycles, hot, result.stopped)]
    bars = "\n".join(f"- {side_of(bar)}: {_bar(bar)}" for bar in result.bars).replace(
        "- missed:", "- **missed**:"
    )
    absent = "".join(f"\nNot there: {one.name} ({one.reason})." for one in result.absent)
    versions = ", ".join(
        sorted({package for one in result.contestants for package in one.packages})
    )
    about = "p50 and p99 are those of acquire, client and server µs CPU per cycle"
    measured = f"Measured {conditions(result)}. {about}; {versions}.{absent}"
    return "\n\n".join((*tables, bars, measured))


def _lines(result: PeersResult) -> Iterator[tuple[str, str]]:
    yield from _bar_lines(result.bars)
    for one in result.absent:
        yield "not there", f"{one.name}: {one.reason}"
    yield from ((word, f"{text} (free resources)") for word, text in _pace(result.cycles))


def _bar(bar: ContestBar) -> str:
    value, ends, limit = _figures(bar)
    return f"{bar.name}: {value} ({ends}), wanted {limit}{_who(bar)}"


def _bar_lines(bars: Sequence[ContestBar]) -> Iterator[tuple[str, str]]:
    """Figures below each other, names behind them, so that only names are wrapped."""
    for bar in bars:
        value, ends, limit = _figures(bar)
        yield side_of(bar), f"{f'{value} ({ends})':<19}  bar {limit}  {bar.name}{_who(bar)}"


def _figures(bar: ContestBar) -> tuple[str, str, str]:
    """Its value, both ends of its range, and what is wanted."""
    value, low, high = (
        INFINITE if one is None else f"{one:.2f}" for one in (bar.value, bar.low, bar.high)
    )
    if not bar.measurable:
        value = "not measurable here"
    return value, f"{low} … {high}", f"{'≥' if bar.at_least else '<'} {bar.bar:.2f}"


def _who(bar: ContestBar) -> str:
    """Whom it is about, and what nothing beside nothing came to."""
    if bar.null is not None:
        null = bar.null
        return f"; nothing beside nothing: {null.median:.2f} ({null.low:.2f} … {null.high:.2f})"
    if not bar.ours:
        return ""
    return f"; {bar.ours}" + (f" beside {bar.theirs}" if bar.theirs else "")


def _parts(
    cycles: Sequence[TurnRow], hot: Sequence[TurnRow], stopped: Sequence[TurnRow]
) -> Iterator[Part]:
    """A table per load, the fastest first."""
    for name, rows in (("", cycles), ("hot, ", hot)):
        ranked = sorted(rows, key=lambda row: (*_load(row), -row.cycles_per_s))
        for (instances, callers, processes), some in groupby(ranked, _load):
            where = f"{name}N={instances}, {counted(callers, 'caller')}{in_processes(processes)}"
            yield table(
                "", "", ((where, lambda row: row.name), *_TURNS, *(_HOT if name else _CPU)), some
            )
    if stopped:
        yield table("", "", _STOPPED, sorted(stopped, key=lambda row: -row.cycles_per_s))


def _load(row: TurnRow) -> tuple[int, int, int]:
    return row.instances, row.callers, row.processes


def _wait(row: TurnRow, us: float | None) -> str:
    """A percentile of the waits; ∞ where so many acquires were never granted."""
    return INFINITE if us is None and row.failed else count(us)


_TURNS: Columns[TurnRow] = (
    ("cycles\n/s", lambda row: decimals(row.cycles_per_s, 0)),
    ("p50\nµs", lambda row: _wait(row, row.p50_us)),
    ("p99\nµs", lambda row: _wait(row, row.p99_us)),
    ("errors", lambda row: count(sum(row.errors.values()))),
)
_CPU: Columns[TurnRow] = (
    ("client\nµs", lambda row: count(row.client_us)),
    ("server\nµs", lambda row: count(row.server_us)),
)
_HOT: Columns[TurnRow] = (
    ("Jain", lambda row: decimals(row.jain)),
    ("commands\nper lease", lambda row: decimals(row.commands_per_lease, 1)),
    ("gave up", lambda row: share(row.gave_up, row.gave_up + row.leases)),
)
_STOPPED: Columns[TurnRow] = (
    ("one of 3 stopped", lambda row: row.name),
    ("before\n/s", lambda row: decimals(row.before_per_s, 0)),
    ("stopped\n/s", lambda row: decimals(row.stopped_per_s, 0)),
    ("after\n/s", lambda row: decimals(row.after_per_s, 0)),
    ("kept", lambda row: percent(row.kept_ratio, 0)),
    ("keys\nleft", lambda row: count(row.keys_left)),
    ("errors", lambda row: count(sum(row.errors.values()))),
)


# -- make bench ------------------------------------------------------------------------------------


def speed_sheet(result: SpeedResult, verdict: Verdict, place: str) -> Sheet:
    """Return the summary of `make bench`, whose JSON is at `place`."""
    about = result.conditions
    word = word_of("bench", verdict)
    servers = " · ".join(f"{kind}: {server}" for kind, server in about.servers.items())
    return Sheet(
        word.text,
        word.colour,
        f"{about.rounds} rounds of {about.seconds:g} s, medians; 200 callers unless said",
        f"lockcore: {result.environment.lockcore} · {about.cores} cores shared with the "
        f"servers · no AOF · {servers}",
        (table("", "", _SPEED, result.rows),) if result.rows else (),
        tuple(Sentence(*line) for line in (*_speed_lines(result), ("result", place))),
        tables_first=True,
    )


def _speed_lines(result: SpeedResult) -> Iterator[tuple[str, str]]:
    """Bars, what the figures of rows are, and how far the cores were ours."""
    rows = result.rows
    if result.conditions.absent:
        yield "because", result.conditions.absent
    yield from _bar_lines(result.bars)
    yield from (("no figures", reason) for row in rows for reason in row.errors)
    for top in rows[:1]:
        yield "client", "CPU per cycle, as of the servers; p50 is that of acquire"
        of = (
            f"client + server of {top.name} ÷ those of the row; wall: cycles/s ÷ those of "
            f"{top.name}"
        )
        yield "CPU ratio", of
        yield "range", "of the rounds; of six and more where their median is, with 95 % confidence"
    shares = [
        turn.elsewhere_ratio
        for row in rows
        for turn in row.rounds
        if turn.elsewhere_ratio is not None
    ]
    if shares:
        busy = sum(share >= BUSY_RATIO for share in shares)
        yield (
            "machine",
            f"something else took {percent(median(shares), 0)} of the cores, "
            f"{percent(max(shares), 0)} at most; "
            f"{count(busy)} of {count(len(shares))} turns were disturbed "
            f"({percent(BUSY_RATIO, 0)} or more)"
            + (", and are left out of what is compared" if busy else ""),
        )
    yield from _pace(rows)


def _pace(rows: Sequence[TurnRow]) -> Iterator[tuple[str, str]]:
    """How fast the cores were, where that was measured."""
    pieces = [turn.piece_us for row in rows for turn in row.rounds if turn.piece_us is not None]
    if pieces:
        yield (
            "pace",
            f"a fixed piece of work took {count(median(pieces))} µs of the cores, "
            f"{count(min(pieces))} to "
            f"{count(max(pieces))} from turn to turn: turns are compared as if it had "
            "taken as long in all",
        )


_SPEED: Columns[SpeedRow] = (
    (f"N={INSTANCES}, acquire + release", lambda row: row.name),
    ("cycles\n/s", lambda row: decimals(row.cycles_per_s, 0)),
    ("client\nµs", lambda row: decimals(row.client_us)),
    ("server\nµs", lambda row: decimals(row.server_us)),
    ("p50\nµs", lambda row: decimals(row.p50_us, 0)),
    ("CPU\nratio", lambda row: f"{row.ratio.median:.3f}"),
    ("range", lambda row: f"{row.ratio.low:.2f}–{row.ratio.high:.2f}"),
    ("wall", lambda row: f"{row.wall_ratio.median:.2f}"),
    ("cores\nused", lambda row: decimals(row.cores_used, 1)),
)
