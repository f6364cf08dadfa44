"""What lockcore is to reach beside the peers, and beside the ceiling: *rows of turns → bars → the verdict*. Pure.

Rules: ratios are taken inside a round, as at one pace of the cores where that was measured, and their median is the
bar's value. Who never got a lease waited for ever; what we did not get done in time counts against us, what they did
not is no bar. On the hot key only those count that never give up. A bar is certain when all rounds are on one side of
it, with six and more of `make bench` when the median's interval of 95 % is (Wilcoxon's signed ranks), and what was
seen, without the pace, is not on the other; else it is not known.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

from bench.experiments.contest.result import PeerBar, SpeedBar, SpeedResult, StopRow, TurnFigures, TurnRow
from bench.measure.statistics import Spread
from bench.measure.verdict import BARS_MISSED, BARS_REACHED, INTERRUPTED, NOT_KNOWN, Evidence, Verdict, conclude

PYTHON_BAR, STOPPED_BAR = 20.0, 0.9
RATE_BARS = {1: 1.1, 3: 2.0, 5: 2.5}  # by N: of the fastest peer's rate, in any language
CLIENT_BARS = {1: 1.0, 3: 1.0, 5: 1 / 3}  # by N: of the lowest client CPU
MANY = 64  # callers
INSTANCES = 5
HOT = ((1, 1), (5, 1), (5, 4))  # N, processes

Figure = Literal["cycles_per_s", "client_us", "p50_us", "p99_us"]
_OF_HOT: tuple[tuple[str, Figure], ...] = (("leases/s ÷ the most", "cycles_per_s"), ("p99 wait ÷ the lowest", "p99_us"))


def bars(cycles: Sequence[TurnRow], hot: Sequence[TurnRow], stopped: Sequence[StopRow]) -> tuple[PeerBar, ...]:
    """What lockcore is to reach, and whether it does; a bar whose peers are absent is left out."""
    many, single = (
        {n: [row for row in cycles if (row.instances, row.callers) == (n, callers)] for n in RATE_BARS}
        for callers in (MANY, 1)
    )
    python = [row for row in many[INSTANCES] if row.kind in ("lockcore", "python")]
    found = [_ratio("N=5, 64 callers: cycles/s ÷ the fastest Python peer's", python, "cycles_per_s", PYTHON_BAR)]
    for n, bar in RATE_BARS.items():
        found += [
            _ratio(f"N={n}, 64 callers: cycles/s ÷ the fastest peer's", many[n], "cycles_per_s", bar),
            _ratio(f"N={n}, 64 callers: client CPU ÷ the lowest of the peers", many[n], "client_us", CLIENT_BARS[n]),
            _ratio(f"N={n}, 1 caller: acquire p50 ÷ the lowest of the peers", single[n], "p50_us", 1.0),
        ]
    for instances, processes in HOT:
        same = [row for row in hot if (row.instances, row.processes) == (instances, processes)]
        fair = [row for row in same if _is_ours(row) or not row.gave_up]
        where = f"hot key, N={instances}{in_processes(processes)}"
        found += [_ratio(f"{where}: {of} of those that never give up", fair, figure, 1.0) for of, figure in _OF_HOT]
    found.append(_stopped(stopped))
    return tuple(bar for bar in found if bar is not None)


def in_processes(count: int) -> str:
    """What a name says of a load in several processes."""
    return f" in {count} processes" if count > 1 else ""


def judge_speed(result: SpeedResult) -> Verdict:
    """Return the verdict of `make bench`."""
    return judge_bars([*(bar for row in result.rows if (bar := row.own_bar) is not None), *result.bars])


def judge_bars(judged: Sequence[PeerBar | SpeedBar], *, interrupted: bool = False) -> Verdict:
    """Return the verdict over the bars."""
    unknown = {True: "something else used the cores in every round", False: "on both sides of the bar"}
    found = {
        BARS_MISSED: [f"missed: {bar.name}" for bar in judged if side_of(bar) == "missed"],
        NOT_KNOWN: [f"{unknown[_is_busy(bar)]}: {bar.name}" for bar in judged if side_of(bar) == "not known"],
        INTERRUPTED: ["interrupted: what was not measured is missing"] if interrupted else [],
    }
    return conclude(BARS_REACHED, [Evidence("bars measured", len(judged))], found)


def side_of(bar: PeerBar | SpeedBar) -> Literal["reached", "missed", "not known"]:
    """On which side of a bar its rounds are, as both ends of their spread tell."""
    low, high = (_reaches(end, bar.bar, at_least=bar.at_least) for end in (bar.low, bar.high))
    return "not known" if low != high or _is_busy(bar) else "reached" if low else "missed"


def _is_busy(bar: PeerBar | SpeedBar) -> bool:
    return isinstance(bar, SpeedBar) and bar.busy


def _reaches(value: float | None, bar: float, *, at_least: bool) -> bool:
    value = math.inf if value is None else value
    return value >= bar if at_least else value < bar


def _is_ours(row: TurnRow | StopRow) -> bool:
    return row.kind == "lockcore"


def _ratio(name: str, rows: Sequence[TurnRow], figure: Figure, bar: float) -> PeerBar | None:
    """Our best contestant's figure ÷ the best of the peers', round by round; its median against the bar."""
    us, them = (_champion([row for row in rows if _is_ours(row) is ours], figure) for ours in (True, False))
    if us is None or them is None:
        return None
    spreads = []
    for pace_us in (us.piece_us, None):  # as at one pace, and as it was seen
        values = ([_value(turn.at_pace(pace_us), figure) for turn in row.rounds] for row in (us, them))
        ratios = [our / their for our, their in zip(*values, strict=False) if our and 0 < their < math.inf]
        if not ratios:
            return None
        spreads.append(Spread.of(ratios))
    spread, at_least = spreads[0].stretched_to(spreads[1]), figure == "cycles_per_s"
    return _bar(name, us.name, them.name, spread, bar, at_least=at_least)


def _bar(name: str, ours: str, theirs: str | None, spread: Spread, bar: float, *, at_least: bool) -> PeerBar:
    value, low, high = (None if math.isinf(one) else one for one in (spread.median, spread.low, spread.high))
    return PeerBar(
        name=name, ours=ours, theirs=theirs, value=value, low=low, high=high, bar=bar, at_least=at_least,
        reached=_reaches(spread.median, bar, at_least=at_least),
    )  # fmt: skip


def _value(figures: TurnFigures, figure: Figure) -> float:
    """A figure; a wait that is None took for ever."""
    value: float | None = getattr(figures, figure)
    return math.inf if value is None else value


def _champion(rows: Sequence[TurnRow], figure: Figure) -> TurnRow | None:
    """The best by its median; a peer whose waits have none is not among them."""
    values = [[value for one in row.rounds if (value := _value(one, figure))] for row in rows]
    medians = [(median(known), index) for index, known in enumerate(values) if known]
    able = [(middle, index) for middle, index in medians if _is_ours(rows[index]) or middle < math.inf]
    return rows[(max if figure == "cycles_per_s" else min)(able)[1]] if able else None


def _stopped(rows: Sequence[StopRow]) -> PeerBar | None:
    """The share of the rate that ours keep while an instance stands still: the median of all their rounds."""
    kept = [one.kept_ratio for row in rows if _is_ours(row) for one in row.rounds if one.kept_ratio is not None]
    name = "one of three stopped: rate ÷ the mean of before and after, median of ours"
    return _bar(name, "lockcore", None, Spread.of(kept), STOPPED_BAR, at_least=True) if kept else None
