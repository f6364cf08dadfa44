"""What lockcore is to reach beside the peers, and beside the ceiling: *rows of rounds → bars → the
verdict*. Pure.

Rules: ratios are taken inside a round, as at one pace of the cores where that was measured, and
their median is the bar's value. A round in which something else used our cores is left out, and
where that is every one nothing is known. Who never got a lease waited for ever; what we did not get
done in time counts against us, what they did not is no bar. On the hot key only those count that
never give up. A bar is certain when all rounds are on one side of it, with six and more when the
median's interval of 95 % is (Wilcoxon's signed ranks), and what was seen, without the pace, is not
on the other; else it is not known.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import cycle
from operator import truediv
from statistics import median
from typing import Literal

from bench.measure.statistics import Spread, paired_shift
from bench.measure.verdict import (
    INTERRUPTED,
    NOT_KNOWN,
    Evidence,
    Kind,
    Verdict,
    Word,
    conclude,
)
from tests.contest.result import (
    BUSY_RATIO,
    Bar,
    RoundFigures,
    Row,
)

BARS_REACHED = Word(
    "BARS REACHED",
    Kind.GOOD,
    "pass",
    0,
    "bars, each reached for certain: in every round, or 95 % sure",
    "at least as good",
)
BARS_MISSED = Word(
    "BARS MISSED",
    Kind.BAD,
    "fail",
    1,
    "a bar missed for certain: in every round, or 95 % sure",
    "worse than it is to be",
)
WORDS = {word.text: word for word in (BARS_REACHED, BARS_MISSED, NOT_KNOWN, INTERRUPTED)}
PYTHON_BAR = 20.0
STOPPED_BAR = 0.9
# by N: the rate to reach, in multiples of the fastest peer's in any language
RATE_BARS = {1: 1.1, 3: 2.0, 5: 2.5}
# by N: the client CPU to stay below, in multiples of the lowest peer's
CLIENT_BARS = {1: 1.0, 3: 1.0, 5: 1 / 3}
MANY = 64  # callers
INSTANCES = 5
# (N, processes) of each load on one hot key
HOT = ((1, 1), (5, 1), (5, 4))
# A load on a hot key lasts so many times longer than one on free resources.
HOT_LONGER = 2.5

Figure = Literal[
    "cycles_per_s", "cycles_per_cpu_s", "client_us", "p50_us", "p99_us", "beside_ratio"
]
_OF_HOT: tuple[tuple[str, Figure], ...] = (
    ("leases/s ÷ the most", "cycles_per_s"),
    ("p99 wait ÷ the lowest", "p99_us"),
)


def bars(cycles: Sequence[Row], hot: Sequence[Row], stopped: Sequence[Row]) -> tuple[Bar, ...]:
    """What lockcore is to reach beside the peers; a bar whose peers are absent is left out."""
    many, single = (
        {
            n: [row for row in cycles if (row.instances, row.callers) == (n, callers)]
            for n in RATE_BARS
        }
        for callers in (MANY, 1)
    )
    python = [row for row in many[INSTANCES] if row.kind in ("lockcore", "python")]
    comparisons: list[tuple[str, Sequence[Row], Figure, float]] = [
        (
            "N=5, 64 callers: cycles/s ÷ the fastest Python peer's",
            python,
            "cycles_per_s",
            PYTHON_BAR,
        )
    ]
    for n, bar in RATE_BARS.items():
        comparisons += [
            (f"N={n}, 64 callers: cycles/s ÷ the fastest peer's", many[n], "cycles_per_s", bar),
            (
                f"N={n}, 64 callers: client CPU ÷ the lowest of the peers",
                many[n],
                "client_us",
                CLIENT_BARS[n],
            ),
            (f"N={n}, 1 caller: acquire p50 ÷ the lowest of the peers", single[n], "p50_us", 1.0),
        ]
    for instances, processes in HOT:
        same = [row for row in hot if (row.instances, row.processes) == (instances, processes)]
        fair = [row for row in same if _is_ours(row) or not row.gave_up]
        where = f"hot key, N={instances}{in_processes(processes)}"
        comparisons += [
            (f"{where}: {of} of those that never give up", fair, figure, 1.0)
            for of, figure in _OF_HOT
        ]
    usual_us = usual_pace(row.rounds for row in cycles)
    judged_bars = [_beside_peers(*each, usual_us) for each in comparisons]
    return tuple(bar for bar in (*judged_bars, _stopped(stopped)) if bar is not None)


def in_processes(count: int) -> str:
    """What a name says of a load in several processes."""
    return f" in {count} processes" if count > 1 else ""


def judge_bars(judged: Sequence[Bar], *, interrupted: bool = False, absent: str = "") -> Verdict:
    """Return the verdict over the bars. `absent`: why there are none."""
    unknown = {
        True: "something else used the cores in every round",
        False: "on both sides of the bar",
    }
    doubts = [f"{unknown[bar.busy]}: {bar.name}" for bar in judged if side_of(bar) == "not known"]
    if absent:
        doubts = [absent, *doubts]
    reasons = {
        BARS_MISSED: [f"missed: {bar.name}" for bar in judged if side_of(bar) == "missed"],
        NOT_KNOWN: doubts,
        INTERRUPTED: ["interrupted: what was not measured is missing"] if interrupted else [],
    }
    return conclude(BARS_REACHED, [Evidence("bars measured", len(judged))], reasons)


def side_of(bar: Bar) -> Literal["reached", "missed", "not known"]:
    """On which side of a bar its rounds are, as both ends of their spread tell."""
    is_low_good = _is_good(bar.low, bar)
    is_high_good = _is_good(bar.high, bar)
    if is_low_good != is_high_good or bar.busy:
        return "not known"
    return "reached" if is_low_good else "missed"


def _is_good(end: float | None, bar: Bar) -> bool:
    """Whether an end of a bar's range is on the good side of it. None is a time without an end."""
    value = math.inf if end is None else end
    return value >= bar.bar if bar.at_least else value < bar.bar


def usual_pace(rows: Iterable[Sequence[RoundFigures]]) -> float | None:
    """What the piece of work took in the median round."""
    took_us = [figures.piece_us for row in rows for figures in row if figures.piece_us is not None]
    return median(took_us) if took_us else None


def spread_of_rounds(values: Iterable[float]) -> Spread:
    """Median and interval of 95 %; of fewer than six values lowest and highest, as there is no
    such interval."""
    numbers = [float(value) for value in values]
    whole = Spread.of(numbers)
    sure = paired_shift(numbers, 0.95)
    low = max(whole.low, sure.low)
    high = min(whole.high, sure.high)
    return Spread(median=whole.median, low=min(whole.median, low), high=max(whole.median, high))


def stretched(spread: Spread, other: Spread) -> Spread:
    """`spread`, as far as the near end of what `other` spans: what is between two that do not meet
    is not known."""
    return Spread(
        median=spread.median, low=min(spread.low, other.high), high=max(spread.high, other.low)
    )


def compared(
    ours: Sequence[RoundFigures],
    theirs: Sequence[RoundFigures | None],
    figure: Figure,
    usual_us: float | None,
    how: Callable[[float, float], float] = truediv,
) -> tuple[Spread | None, bool]:
    """A figure beside that of another (None: by itself) over the rounds, as at one pace, and
    whether our cores were ours in none. A round that is made once stands beside all of the other's.
    Where they show nothing, there is no bar (None). Where the pace and what was seen do not meet,
    all between them is possible: the pace may be misled, too."""
    pairs = list(zip(cycle(ours) if len(ours) == 1 else ours, theirs, strict=False))
    quiet = [
        pair
        for pair in pairs
        if max(figures.elsewhere_ratio or 0.0 for figures in pair if figures) < BUSY_RATIO
    ]
    spreads = []
    for pace_us in (usual_us, None):
        values = [
            [_value(figures and figures.at_pace(pace_us), figure) for figures in pair]
            for pair in quiet or pairs
        ]
        results = [how(our, their) for our, their in values if 0 < their < math.inf]
        if not results:
            return None, not quiet
        spreads.append(spread_of_rounds(results))
    return stretched(*spreads), not quiet


def _value(figures: RoundFigures | None, figure: Figure) -> float:
    """A figure; what is None took for ever."""
    value: float | None = getattr(figures, figure) if figures else 1.0
    return math.inf if value is None else value


def bar_of(
    name: str,
    spread: Spread,
    bar: float,
    *,
    at_least: bool = False,
    busy: bool = False,
    ours: str = "",
    theirs: str | None = None,
    null: Spread | None = None,
) -> Bar:
    """A bar beside what was found; what took for ever is None. `null`: see Bar. A figure
    that is not measurable beside it may be anything that nothing beside nothing was."""
    value, low, high = (
        None if one == math.inf else one for one in (spread.median, spread.low, spread.high)
    )
    contest_bar = Bar(
        name=name,
        ours=ours,
        theirs=theirs,
        value=value,
        low=low,
        high=high,
        bar=bar,
        at_least=at_least,
        busy=busy,
        null=null,
    )
    if null is None or contest_bar.measurable:
        return contest_bar
    return replace(
        contest_bar,
        low=min(spread.low, null.low),
        high=None if high is None else max(high, null.high),
    )


def _is_ours(row: Row) -> bool:
    return row.kind == "lockcore"


def _beside_peers(
    name: str, rows: Sequence[Row], figure: Figure, bar: float, usual_us: float | None
) -> Bar | None:
    """Our best contestant's figure ÷ the best of the peers'."""
    us, them = (
        _champion([row for row in rows if _is_ours(row) is ours], figure) for ours in (True, False)
    )
    if us is None or them is None:
        return None
    spread, busy = compared(us.rounds, them.rounds, figure, usual_us)
    if spread is None:
        return None
    return bar_of(
        name,
        spread,
        bar,
        at_least=figure == "cycles_per_s",
        busy=busy,
        ours=us.name,
        theirs=them.name,
    )


def _champion(rows: Sequence[Row], figure: Figure) -> Row | None:
    """The best by its median; a peer whose waits have none is not among them."""
    able = [row for row in rows if _is_ours(row) or _value(row, figure) < math.inf]
    best = max if figure == "cycles_per_s" else min
    return best(able, key=lambda row: _value(row, figure), default=None)


def _stopped(rows: Sequence[Row]) -> Bar | None:
    """The share of the rate that ours keep while an instance stands still: the median of all their
    rounds."""
    ratios = [
        one.kept_ratio
        for row in rows
        if _is_ours(row)
        for one in row.rounds
        if one.kept_ratio is not None
    ]
    name = "one of three stopped: rate ÷ the mean of before and after, median of ours"
    return (
        bar_of(name, Spread.of(ratios), STOPPED_BAR, at_least=True, ours="lockcore")
        if ratios
        else None
    )
