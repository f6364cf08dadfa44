"""What `make peers` and `make bench` say: *their results → one sheet, the table that stands in README; one screen*.

Rules: bars first, then a table per section; nothing is computed here; a contestant that is absent is named with its
reason.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from msgspec.structs import replace

from bench.experiments.contest.judge import in_processes, sides_of
from bench.experiments.contest.result import BUSY_RATIO, PeerBar, PeersResult, SpeedResult, SpeedRow, StopRow, TurnRow
from bench.measure.statistics import Spread
from bench.measure.verdict import Verdict, word_of
from bench.report.figures import MISSING, count, decimals, milliseconds, percent, share
from bench.report.generated import put_between_marks
from bench.report.sheet import Case, Columns, Part, Sentence, Sheet, Suite, part_markdown, sheet_of, table

Key = TypeVar("Key", int, str)
IN_README = 5  # instances; the other tables stand in the result
_REACHED, _MISSED, _UNCERTAIN = "reached", "missed", "not known"  # on which side of a bar the rounds are
_STATUSES = {_REACHED: "pass", _MISSED: "fail"}
_CYCLES = (
    *("N={}", "1 caller\ncycles/s", "p50\nµs", "p99\nµs", "64 callers\ncycles/s", "p50\nms", "p99\nms"),
    *("client\nµs", "server\nµs", "errors"),
)


def sheet(result: PeersResult, place: str = "") -> Sheet:
    """Return the summary of `result`, stored at `place`."""
    sides = [_side_of(bar) for bar in result.bars]
    unknown = sides.count(_UNCERTAIN)
    headline = f"{sides.count(_REACHED)} of {len(sides)} bars reached" + (f", {unknown} not known" if unknown else "")
    return sheet_of(
        result, place, kind="peers", headline=headline,
        conditions=[conditions(result)], parts=_parts(result), lines=_lines(result),
    )  # fmt: skip


def suite(result: PeersResult) -> Suite:
    """One JUnit case per bar; one whose rounds lie on both sides is an error, as it passes and fails by chance."""
    cases = [Case(bar.name, _STATUSES.get(_side_of(bar), "unknown"), _bar(bar)) for bar in result.bars]
    return Suite("peers", result.started_at, result.duration_s, cases, {"id": result.id})


def conditions(result: PeersResult) -> str:
    """Under which conditions everything in `result` was measured."""
    about, environment = result.conditions, result.environment
    server = about.server
    return " · ".join(
        (
            result.started_at[:10],
            f"{about.rounds} rounds of {about.seconds:g} s (hot key {about.hot_seconds:g} s), medians",
            f"{environment.cpu_model}, {about.cores} of {environment.cores} cores for clients and servers",
            f"{server.name} {server.version} in memory",
            environment.python,
            f"lockcore: {environment.lockcore}",
            *(["cut short"] if result.interrupted else []),
        )
    )


def readme_section(result: PeersResult) -> str:
    """The tables for five instances and the bars, as Markdown."""
    five = replace(result, cycles=_of_five(result.cycles), hot=_of_five(result.hot))
    tables = [part_markdown(part) for part in _parts(five)]
    bars = "\n".join(f"- {_emphasized(_side_of(bar))}: {_bar(bar)}" for bar in result.bars)
    absent = "".join(f"\nNot there: {one.name} ({one.reason})." for one in result.absent)
    versions = sorted({package for one in result.contestants for package in one.packages})
    return "\n\n".join(
        (
            *tables,
            bars,
            f"Measured {conditions(result)}. µs are CPU per cycle at 64 callers; {', '.join(versions)}.{absent}",
        )
    )


def _of_five(rows: Sequence[TurnRow]) -> tuple[TurnRow, ...]:
    return tuple(row for row in rows if row.instances == IN_README)


def write_readme(path: Path, result: PeersResult) -> None:
    """Replace what stands between the marks in `path`. Raises EnvironmentNotReadyError when they are not there."""
    put_between_marks(path, "peers", readme_section(result))


def _lines(result: PeersResult) -> Iterator[tuple[str, str]]:
    for bar in result.bars:
        yield _side_of(bar), _bar(bar)
    for one in result.absent:
        yield "not there", f"{one.name}: {one.reason}"
    yield from ((word, f"{said} (free resources)") for word, said in _pace(result.cycles))


def _side_of(bar: PeerBar) -> str:
    return _side(bar, bar.bar, at_least=bar.at_least)


def _emphasized(side: str) -> str:
    return f"**{side}**" if side == _MISSED else side


def _bar(bar: PeerBar) -> str:
    wanted = f"{'≥' if bar.at_least else '<'} {bar.bar:.3g}"
    who = f"{bar.ours}" + (f" beside {bar.theirs}" if bar.theirs else "")
    value, low, high = ("∞" if one is None else f"{one:.2f}" for one in (bar.value, bar.low, bar.high))
    return f"{bar.name}: {value} ({low}–{high}), wanted {wanted}; {who}"


def _parts(result: PeersResult) -> Iterator[Part]:
    """A table per section and N, the fastest first."""
    by_n = _by(result.cycles, lambda row: row.instances)
    for instances in sorted(by_n):
        both = _by(by_n[instances], lambda row: row.name)
        fastest = sorted(both.values(), key=lambda rows: -max(row.cycles_per_s for row in rows))
        head = tuple(cell.format(instances) for cell in _CYCLES)
        yield Part("", "", head, tuple(map(_cycles, fastest)))
    hot = sorted(result.hot, key=lambda row: (row.instances, row.processes, -row.cycles_per_s))
    for where, rows in _by(hot, lambda row: f"{row.instances}{in_processes(row.processes)}").items():
        yield table("", "", _hot(where), rows)
    if result.stopped:
        yield table("", "", _STOPPED, sorted(result.stopped, key=lambda row: -row.before_per_s))


def _by(rows: Iterable[TurnRow], key: Callable[[TurnRow], Key]) -> dict[Key, list[TurnRow]]:
    found: dict[Key, list[TurnRow]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _cycles(rows: Sequence[TurnRow]) -> tuple[str, ...]:
    """One contestant, by 1 and by 64 callers."""
    one, many = (next((row for row in rows if row.callers == callers), None) for callers in (1, 64))
    return (
        rows[0].name, *_waits(one, count), *_waits(many, _ms),
        *((count(many.client_us), count(many.server_us)) if many else (MISSING, MISSING)),
        count(sum(number for row in rows for number in row.errors.values())),
    )  # fmt: skip


def _waits(row: TurnRow | None, shown: Callable[[float | None], str]) -> tuple[str, str, str]:
    """Cycles/s and the percentiles of the waits."""
    if row is None:
        return MISSING, MISSING, MISSING
    return decimals(row.cycles_per_s, 0), _wait(row, row.p50_us, shown), _wait(row, row.p99_us, shown)


def _hot(where: str) -> Columns[TurnRow]:
    return (
        (f"hot key, N={where}", lambda row: row.name),
        ("leases\n/s", lambda row: decimals(row.cycles_per_s, 0)),
        ("wait p50\nms", lambda row: _wait(row, row.p50_us, _ms)),
        ("p99\nms", lambda row: _wait(row, row.p99_us, _ms)),
        ("Jain", lambda row: decimals(row.jain)),
        ("commands\nper lease", lambda row: decimals(row.commands_per_lease, 1)),
        ("gave up", lambda row: share(row.gave_up, row.gave_up + row.leases)),
        ("errors", lambda row: count(sum(row.errors.values()))),
    )


_STOPPED: Columns[StopRow] = (
    ("one of 3 stopped", lambda row: row.name),
    ("before\n/s", lambda row: decimals(row.before_per_s, 0)),
    ("stopped\n/s", lambda row: decimals(row.stopped_per_s, 0)),
    ("after\n/s", lambda row: decimals(row.after_per_s, 0)),
    ("kept", lambda row: percent(row.kept_ratio, 0)),
    ("keys\nleft", lambda row: count(row.keys_left)),
    ("errors", lambda row: count(sum(row.errors.values()))),
)


def _ms(us: float | None) -> str:
    return milliseconds(None if us is None else us / 1e6)


def _wait(row: TurnRow, us: float | None, shown: Callable[[float | None], str]) -> str:
    """A percentile of the waits; ∞ where so many acquires were never granted."""
    return "∞" if us is None and row.failed else shown(us)


# -- make bench ------------------------------------------------------------------------------------------------------


def speed_sheet(result: SpeedResult, verdict: Verdict, place: str) -> Sheet:
    """Return the summary of `make bench`, whose JSON is at `place`."""
    about, word = result.conditions, word_of("bench", verdict)
    servers = " · ".join(f"{kind}: {server}" for kind, server in about.servers.items())
    lines = [
        *(
            Sentence(
                _side(bar, bar.bar, at_least=bar.at_least, busy=bar.busy),
                f"{bar.name}: {bar.median:.2f} ({bar.low:.2f} … {bar.high:.2f}), "
                f"wanted {'at least' if bar.at_least else 'at most'} {bar.bar:g}",
            )
            for bar in result.bars
        ),
        *(Sentence("no figures", reason) for row in result.rows for reason in row.errors),
        *_of_rows(result.rows),
        Sentence("result", place),
    ]
    return Sheet(
        word.text, word.colour, f"{about.rounds} rounds of {about.seconds:g} s, medians; 200 callers unless said",
        f"lockcore: {result.environment.lockcore} · {about.cores} cores shared with the servers · no AOF · {servers}",
        (table("", "", _speed(about.instances), result.rows),) if result.rows else (), tuple(lines),
        tables_first=True,
    )  # fmt: skip


def _of_rows(rows: Sequence[SpeedRow]) -> Iterator[Sentence]:
    """What their figures are, and how far the cores were ours."""
    for top in rows[:1]:
        yield Sentence("client", "CPU per cycle, as of the servers; p50 is that of acquire")
        of = f"client + server of {top.name} ÷ those of the row; wall: cycles/s ÷ those of {top.name}"
        yield Sentence("CPU ratio", of)
        yield Sentence("range", "of the rounds; of six and more where their median is, with 95 % confidence")
    shares = [turn.elsewhere_ratio for row in rows for turn in row.rounds if turn.elsewhere_ratio is not None]
    if shares:
        busy = sum(share >= BUSY_RATIO for share in shares)
        yield Sentence(
            "machine",
            f"something else took {percent(median(shares), 0)} of the cores, {percent(max(shares), 0)} at most; "
            f"{count(busy)} of {count(len(shares))} turns were disturbed ({percent(BUSY_RATIO, 0)} or more)"
            + (", and are left out of what is compared" if busy else ""),
        )
    yield from (Sentence(label, text) for label, text in _pace(rows))


def _pace(rows: Sequence[TurnRow]) -> Iterator[tuple[str, str]]:
    """How fast the cores were, where that was measured."""
    pieces = [turn.piece_us for row in rows for turn in row.rounds if turn.piece_us is not None]
    if pieces:
        yield (
            "pace",
            f"a fixed piece of work took {count(median(pieces))} µs of the cores, {count(min(pieces))} to "
            f"{count(max(pieces))} from turn to turn: turns are compared as if it had taken as long in all",
        )


def _speed(instances: int) -> Columns[SpeedRow]:
    return (
        (f"N={instances}, acquire + release", lambda row: row.name),
        ("cycles/s", lambda row: decimals(row.cycles_per_s, 0)),
        ("client\nµs", lambda row: decimals(row.client_us)),
        ("server\nµs", lambda row: decimals(row.server_us)),
        ("p50\nµs", lambda row: decimals(row.p50_us, 0)),
        ("CPU\nratio", lambda row: f"{row.ratio.median:.3f}"),
        ("range", lambda row: f"{row.ratio.low:.2f}–{row.ratio.high:.2f}"),
        ("bar", lambda row: "" if row.bar is None else f"{row.bar:.2f} {_side(row.ratio, row.bar, busy=row.busy)}"),
        ("wall\nratio", lambda row: f"{row.wall_ratio.median:.2f}"),
        ("cores\nused", lambda row: decimals(row.cores_used, 1)),
    )


def _side(rounds: Spread | PeerBar, bar: float, *, at_least: bool = True, busy: bool = False) -> str:
    sides = sides_of(rounds, bar, at_least=at_least, busy=busy)
    return _UNCERTAIN if len(sides) != 1 else _REACHED if True in sides else _MISSED
