"""Turns a result of `lockbench split-votes` into tables and sentences, at most 80 columns wide."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from bench.experiments.split_votes.result import (
    CalibrationRow,
    ContentionRow,
    RetryRow,
    SplitVotesResult,
)
from bench.report.figures import count, counted, interval, latency, percent
from bench.report.html.plot import Figure, Line, data_of, plot
from bench.report.html.scale import exact
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

_ORDER_STYLES = ("c1", "c2", "c4")
_TERMS = {
    "rounds": "number of rounds in which attempts overlapped on a resource without a valid holder",
    "closed form": "1 − K·P(Bin(N,1/K) ≥ q): all SETs in one uniformly random order",
}
_RETRY_TERMS = {
    "all lost": "trials in which no contender's first attempt won",
    "dead": "time from the first start to the first grant, over the trials in which every first "
    "attempt failed",
}


def sheet(result: SplitVotesResult, place: str = "") -> Sheet:
    """Return the sheet that shows `result`. `place` is the path of the stored result, or ""."""
    server = result.fleet.server
    conditions = (
        f"N={result.conditions.instances}",
        f"{server.name} {server.version}, in memory",
        *made(result, " shared by contenders and servers"),
    )
    return sheet_of(
        result,
        place,
        headline=_headline(result),
        conditions=conditions,
        parts=_parts(result),
        lines=_lines(result),
        tables_first=True,
        keys=_keys(result),
    )


def _headline(result: SplitVotesResult) -> str:
    rows = _fullest(result)
    if not rows:
        return "calibration only, then interrupted"
    cut = "interrupted · " if result.interrupted else ""
    shown = " · ".join(f"{percent(row.nobody_won_rate.rate, 0)} {row.order}" for row in rows)
    return f"{cut}{rows[0].contenders} callers at once; split votes: {shown}"


def _fullest(result: SplitVotesResult) -> list[ContentionRow]:
    """Return the contention rows with the largest number of contenders and the smallest spread. The
    result has one row per order. An order says in which sequence contenders ask the instances.
    """
    most = max((row.contenders for row in result.contention), default=0)
    rows = [row for row in result.contention if row.contenders == most]
    return [row for row in rows if row.spread_s == rows[0].spread_s]


def _keys(result: SplitVotesResult) -> Iterator[KeyFigure]:
    """Yield one key figure per order. An order says in which sequence contenders ask the instances.
    The key figure holds the measured rate of split votes, and the rate that pure chance would give.
    Both rates apply to the largest number of contenders.
    """
    for row in _fullest(result):
        rate = row.nobody_won_rate
        ends = f"95 % sure: {percent(rate.low, 0)} to {percent(rate.high, 0)}"
        bound = f"{ends}; by chance {percent(row.closed_form, 0)}"
        yield KeyFigure(row.order, f"nobody wins in {percent(rate.rate, 0)}", bound)


def figures(result: SplitVotesResult) -> list[Figure]:
    """Return a picture that shows how often votes split, for each order and number of contenders.
    The picture also shows the rate that pure chance would give.
    """
    rows = [row for row in result.contention if row.spread_s == result.contention[0].spread_s]
    if not rows:
        return []
    most = max(row.contenders for row in rows)
    x = exact(0, most * 1.05, "callers that request the lock at the same time", "{:g}".format)
    marks = []
    by_order = sorted(rows, key=lambda row: (row.order, row.contenders))
    for (order, of_order), style in zip(
        groupby(by_order, lambda row: row.order), _ORDER_STYLES, strict=False
    ):
        points = {row.contenders: row.nobody_won_rate.rate for row in of_order}
        marks.append(Line([*points], [*points.values()], style, f"asked {order}"))
    chance = {row.contenders: row.closed_form for row in by_order}
    marks.append(Line([*chance], [*chance.values()], "faint", "by pure chance"))
    y = exact(0, 1, "share of rounds that nobody wins", "{:.0%}".format)
    columns, data = data_of(ContentionRow, rows)
    about = (
        "All callers start together, and each makes one attempt. The colour shows "
        "the order in which an attempt asks the instances"
    )
    return [
        plot(
            "nobody-wins",
            _headline(result),
            about,
            x=x,
            y=y,
            marks=marks,
            columns=columns,
            rows=data,
            xs=[row.contenders for row in rows],
        )
    ]


def _parts(result: SplitVotesResult) -> Iterator[Part]:
    about = "one driver sends each round's K·N SETs in one shuffled order"
    yield table_of(CalibrationRow, "calibration", about, result.calibration)
    if result.contention:
        trials = max(row.trials for row in result.contention)
        about = f"in each of {count(trials)} trials, K processes start together and try once"
        yield table_of(ContentionRow, "contention", about, result.contention, terms=_TERMS)
    if result.retries:
        about = "K processes start together and make attempts until one of them wins"
        yield table_of(RetryRow, "retries", about, result.retries, terms=_RETRY_TERMS)


def _lines(result: SplitVotesResult) -> Iterator[Sentence]:
    advice = list(_advice(result.retries))
    yield from advice
    if result.retries and not advice:
        yield to_do(
            "for every order of the commands, no retry policy was clearly faster; more --repeats "
            "may show a difference",
            "measure again",
        )
    yield not_measured(
        "networks that are slower than loopback, where more time passes between the votes of one "
        "attempt"
    )
    sizes = counted(result.conditions.instances, "instance")
    yield not_measured(f"fleets with another size than {sizes}")
    if result.conditions.instances % 2:
        yield Sentence(
            "outcomes",
            "if N is odd and all instances answer, a quorum refuses every losing "
            "caller (CONTENDED)",
        )


def _advice(rows: Sequence[RetryRow]) -> Iterator[Sentence]:
    """Yield advice on the best retry policy. There is separate advice for each sequence in which
    contenders ask the instances. The advice applies to the largest number of contenders.

    The comparison includes only policies with a grant in every trial. The function gives advice
    only if the p90 of the best policy is below the p50 of every other policy.
    """
    most = max((row.contenders for row in rows), default=0)
    for order in dict.fromkeys(row.order for row in rows):
        tried = [
            (row.first_grant_s.p50, row.first_grant_s.p90, row.retry)
            for row in rows
            if row.order == order and row.contenders == most and row.granted == row.trials
        ]
        for _, slow_s, retry in tried:
            others_s = [half_s for half_s, _, other in tried if other != retry]
            least_s = min((half_s or 0.0 for half_s in others_s), default=0.0)
            if slow_s is not None and slow_s < least_s:
                yield to_do(
                    f"for {order} requests, use the retry policy {retry.policy} with a window of "
                    f"{retry.window_ms:g} ms. With {most} callers, 90 % of its first grants came "
                    f"within {latency(slow_s)}. With every other tested policy, half of the "
                    f"first grants took {latency(least_s)} or longer",
                    "retry",
                )


def suite(result: SplitVotesResult) -> Suite:
    """Return one JUnit case for each calibration row, and one JUnit case for the whole verdict."""
    cases = [
        Case(
            f"calibration K={row.contenders}",
            "inconclusive" if row.misses else "pass",
            f"share of rounds without a winner: {interval(row.split_rate)}; closed form: "
            f"{row.closed_form:.3f}",
        )
        for row in result.calibration
    ]
    verdict = result.verdict
    whole = Case("split votes", verdict.status, "; ".join(verdict.reasons) or _headline(result))
    return suite_of(result, [*cases, whole])
