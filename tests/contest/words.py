"""What `make peers` and `make bench` say: *their results → one screen*.

Rules: a table per section; the bars stand before the tables of peers, and behind that of the
ceiling; nothing is computed here; a contestant that is absent is named with its reason.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from statistics import median
from typing import TypeVar

from bench.measure.verdict import Verdict
from bench.report.figures import INFINITE, count, counted, decimals, percent, share
from bench.report.sheet import Part, Sentence, Sheet
from tests.contest.judge import HOT_LONGER, INSTANCES, WORDS, in_processes, side_of
from tests.contest.result import BUSY_RATIO, Bar, PeersResult, Row, SpeedResult, SpeedRow

Line = TypeVar("Line")
# The head of each column, and a function that returns the text for a row.
Columns = Sequence[tuple[str, Callable[[Line], str]]]


def peers_sheet(result: PeersResult, verdict: Verdict, place: str) -> Sheet:
    """Return the summary of `make peers`, whose JSON is at `place`."""
    sides = [side_of(bar) for bar in result.bars]
    unknown = sides.count("not known")
    headline = f"{sides.count('reached')} of {len(sides)} bars reached" + (
        f", {unknown} not known" if unknown else ""
    )
    return _sheet(
        verdict,
        headline,
        conditions(result),
        tuple(_parts(result.cycles, result.hot, result.stopped)),
        [*(("because", reason) for reason in verdict.reasons), *_lines(result), ("result", place)],
    )


def _sheet(
    verdict: Verdict,
    headline: str,
    about: str,
    parts: tuple[Part, ...],
    lines: Iterable[tuple[str, str]],
    *,
    tables_first: bool = False,
) -> Sheet:
    word = WORDS[str(verdict.word)]
    sentences = tuple(Sentence(*line) for line in lines)
    return Sheet(
        word.text, word.colour, headline, about, parts, sentences, tables_first=tables_first
    )


def conditions(result: PeersResult) -> str:
    """Under which conditions everything in `result` was measured."""
    about = result.conditions
    environment = about.environment
    facts = (
        about.date,
        f"{about.rounds} rounds of {about.seconds:g} s (hot key {HOT_LONGER} times as "
        "long), medians",
        f"{environment.cpu_model}, {about.cores} of {environment.cores} cores for "
        "clients and servers",
        f"{', '.join(about.servers.values())} in memory",
        environment.python,
        f"lockcore: {environment.lockcore}",
        "cut short" if result.interrupted else "",
    )
    return " · ".join(filter(None, facts))


def _lines(result: PeersResult) -> Iterator[tuple[str, str]]:
    yield from _bar_lines(result.bars)
    for one in result.absent:
        yield "not there", f"{one.name}: {one.reason}"
    yield from ((word, f"{text} (free resources)") for word, text in _pace(result.cycles))


def _bar_lines(bars: Sequence[Bar]) -> Iterator[tuple[str, str]]:
    """Figures below each other, names behind them, so that only names are wrapped."""
    for bar in bars:
        value, low, high = (
            INFINITE if one is None else f"{one:.2f}" for one in (bar.value, bar.low, bar.high)
        )
        if not bar.measurable:
            value = "not measurable here"
        limit = f"{'≥' if bar.at_least else '<'} {bar.bar:.2f}"
        yield side_of(bar), f"{f'{value} ({low} … {high})':<19}  bar {limit}  {bar.name}{_who(bar)}"


def _who(bar: Bar) -> str:
    """Whom it is about, and what nothing beside nothing came to."""
    if bar.null is not None:
        null = bar.null
        return f"; nothing beside nothing: {null.median:.2f} ({null.low:.2f} … {null.high:.2f})"
    if not bar.ours:
        return ""
    return f"; {bar.ours}" + (f" beside {bar.theirs}" if bar.theirs else "")


def _table(columns: Columns[Line], rows: Iterable[Line]) -> Part:
    """The table that shows `rows` in these columns."""
    head = tuple(name for name, _ in columns)
    return Part("", "", head, tuple(tuple(text(row) for _, text in columns) for row in rows))


def _parts(cycles: Sequence[Row], hot: Sequence[Row], stopped: Sequence[Row]) -> Iterator[Part]:
    """A table per load, the fastest first."""
    for name, rows in (("", cycles), ("hot, ", hot)):
        ranked = sorted(rows, key=lambda row: (*_load(row), -row.cycles_per_s))
        for (instances, callers, processes), some in groupby(ranked, _load):
            where = f"{name}N={instances}, {counted(callers, 'caller')}{in_processes(processes)}"
            yield _table(((where, lambda row: row.name), *_TURNS, *(_HOT if name else _CPU)), some)
    if stopped:
        yield _table(_STOPPED, sorted(stopped, key=lambda row: -row.cycles_per_s))


def _load(row: Row) -> tuple[int, int, int]:
    return row.instances, row.callers, row.processes


def _wait(row: Row, us: float | None) -> str:
    """A percentile of the waits; ∞ where so many acquires were never granted."""
    return INFINITE if us is None and row.failed else count(us)


_TURNS: Columns[Row] = (
    ("cycles\n/s", lambda row: decimals(row.cycles_per_s, 0)),
    ("p50\nµs", lambda row: _wait(row, row.p50_us)),
    ("p99\nµs", lambda row: _wait(row, row.p99_us)),
    ("errors", lambda row: count(sum(row.errors.values()))),
)
_CPU: Columns[Row] = (
    ("client\nµs", lambda row: count(row.client_us)),
    ("server\nµs", lambda row: count(row.server_us)),
)
_HOT: Columns[Row] = (
    ("Jain", lambda row: decimals(row.jain)),
    ("commands\nper lease", lambda row: decimals(row.commands_per_lease, 1)),
    ("gave up", lambda row: share(row.gave_up, row.gave_up + row.leases)),
)
_STOPPED: Columns[Row] = (
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
    servers = " · ".join(f"{kind}: {server}" for kind, server in about.servers.items())
    return _sheet(
        verdict,
        f"{about.rounds} rounds of {about.seconds:g} s, medians; 200 callers unless said",
        f"lockcore: {about.environment.lockcore} · {about.cores} cores shared with the "
        f"servers · no AOF · {servers}",
        (_table(_SPEED, result.rows),) if result.rows else (),
        (*_speed_lines(result), ("result", place)),
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
        one.elsewhere_ratio for row in rows for one in row.rounds if one.elsewhere_ratio is not None
    ]
    if shares:
        busy = sum(share >= BUSY_RATIO for share in shares)
        yield (
            "machine",
            f"something else took {percent(median(shares), 0)} of the cores, "
            f"{percent(max(shares), 0)} at most; "
            f"{count(busy)} of {count(len(shares))} measurements were disturbed "
            f"({percent(BUSY_RATIO, 0)} or more)"
            + (", and are left out of what is compared" if busy else ""),
        )
    yield from _pace(rows)


def _pace(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """How fast the cores were, where that was measured."""
    pieces = [one.piece_us for row in rows for one in row.rounds if one.piece_us is not None]
    if pieces:
        yield (
            "pace",
            f"a fixed piece of work took {count(median(pieces))} µs of the cores, "
            f"{count(min(pieces))} to "
            f"{count(max(pieces))} from one measurement to the next: they are compared "
            "as if it had taken as long in all",
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
