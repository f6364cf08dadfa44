"""What `lockbench split-votes` says: *its result → tables and sentences, on a terminal or as Markdown*.

Rules: verdict first; nothing is computed here; exact and probable figures are named as such wherever they stand. Fits
80 columns.
"""

from collections.abc import Iterable, Iterator, Sequence

from bench.experiments.split_votes.result import CalibrationRow, ContentionRow, RetryRow, SplitVotesResult
from bench.measure.statistics import Interval
from bench.report.figures import MISSING, count, decimals, milliseconds
from bench.report.sheet import Case, Part, Sheet, Suite, made, sheet_of
from bench.scenario.quantity import duration_text

_CALIBRATION = ("K", "rounds", "split votes,\nexact, 95 %", "closed\nform", "", "prob-\nable")
_CONTENTION = (
    *("K", "order", "spread\nms", "apart\np50 ms", "rounds", "nobody won,\n95 %", "split votes,\nexact, 95 %"),
    *("prob-\nable", "closed\nform", "took\np50 ms"),
)
_RETRIES = (
    *("K", "order", "retry", "first\np50 ms", "grant\np99", "\nmax", "all lost,\nof trials", "dead\np50 ms"),
    "attempts\nper grant",
)
_LEFT = {"order", "retry", ""}


def sheet(result: SplitVotesResult, place: str = "") -> Sheet:
    """Return what is said of `result`, stored at `place` ("" = nowhere)."""
    return sheet_of(
        result, place, kind="split-votes", headline=_headline(result), conditions=_conditions(result),
        parts=_parts(result), lines=_lines(result), tables_first=True,
    )  # fmt: skip


def _headline(result: SplitVotesResult) -> str:
    if not result.contention:
        return "calibration only, then interrupted"
    most = max(row.contenders for row in result.contention)
    rows = [row for row in result.contention if row.contenders == most]
    first = [row for row in rows if row.spread_s == rows[0].spread_s]
    shown = " · ".join(f"{row.order} {_rate(row.nobody_won_rate)}" for row in first)
    cut = "interrupted · " if result.interrupted else ""
    return f"{cut}nobody wins, K={most}: {shown} · by chance {first[0].closed_form:.2f}"


def _conditions(result: SplitVotesResult) -> Sequence[str]:
    conditions, server = result.conditions, result.fleet.server
    return (
        f"N={conditions.instances}",
        f"{server.name} {server.version}, in memory",
        f"{result.environment.usable_cores} cores shared by contenders and servers",
        *made(result),
    )


def _parts(result: SplitVotesResult) -> Iterator[Part]:
    calibration = map(_calibration, result.calibration)
    about = "one driver sends each round's K·N SETs in one shuffled order"
    yield _part("calibration", about, _CALIBRATION, calibration)
    if result.contention:
        trials = max(row.trials for row in result.contention)
        about = f"K processes released together, one attempt each, {count(trials)} trials per row"
        yield _part("contention", about, _CONTENTION, map(_contention, result.contention))
    if result.retries:
        about = "the same, again and again until somebody wins"
        yield _part("retries", about, _RETRIES, map(_retry, result.retries))


def _part(name: str, about: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Part:
    return Part(name, about, head, tuple(rows), frozenset(n for n, cell in enumerate(head) if cell in _LEFT))


def _calibration(row: CalibrationRow) -> tuple[str, ...]:
    return (
        str(row.contenders),
        count(row.rounds),
        _interval(row.split_rate, digits=3),
        f"{row.closed_form:.3f}",
        "as expected" if row.as_expected else "NOT AS EXPECTED",
        _rate(row.probable_by_outcome, 3),
    )


def _contention(row: ContentionRow) -> tuple[str, ...]:
    return (
        str(row.contenders),
        row.order,
        f"{row.spread_s * 1000:g}",
        milliseconds(row.start_skew_s.p50),
        count(row.contention_rounds),
        _interval(row.nobody_won_rate),
        _interval(row.split_rate),
        _rate(row.probable_by_outcome),
        f"{row.closed_form:.2f}",
        milliseconds(row.attempt_s.p50),
    )


def _retry(row: RetryRow) -> tuple[str, ...]:
    first, retry = row.first_grant_s, row.retry
    return (
        str(row.contenders),
        row.order,
        f"{retry.policy} {duration_text(retry.window_ms)}",
        *map(milliseconds, (first.p50, first.p99, first.max)),
        f"{row.first_attempts_lost}/{row.trials}",
        milliseconds(row.dead_time_s.p50),
        decimals(row.attempts_per_grant, 1),
    )


def _lines(result: SplitVotesResult) -> Iterator[tuple[str, str]]:
    yield "rounds", "contention rounds: overlapping attempts on a resource without a valid holder"
    yield "spread", "starts are spread over so much; apart: from the first start to the last; took: an attempt"
    yield (
        "exact",
        (
            "split votes proven by all contenders' records: a moment when nobody had won and nobody still could; "
            "at least so many, at most those that nobody won"
        ),
    )
    yield "probable", _probable(result)
    yield (
        "closed form",
        "1 − K·P(Bin(N,1/K) ≥ q), all SETs in one uniformly random order; beside contention no tolerance",
    )
    if result.retries:
        yield "all lost", "trials in which nobody's first attempt won; dead: of those, first start → first grant"
        yield "attempts", "of all contenders, until somebody was granted"


def _probable(result: SplitVotesResult) -> str:
    text = "an attempt alone ended as SPLIT_VOTE"
    if result.conditions.instances % 2:
        text += "; at odd N, all answering, a quorum refuses every loser: CONTENDED"
    return text


def _rate(interval: Interval, digits: int = 2) -> str:
    return decimals(interval.rate, digits)


def _interval(interval: Interval, digits: int = 2) -> str:
    if interval.rate is None:
        return MISSING
    low, high = (f"{end:.{digits}f}".removeprefix("0") for end in (interval.low, interval.high))
    return f"{interval.rate:.{digits}f} {low}–{high}"


def suite(result: SplitVotesResult) -> Suite:
    """The calibration of each K and the verdict as a whole, as JUnit cases."""
    cases = [
        Case(
            f"calibration K={row.contenders}",
            "pass" if row.as_expected else "inconclusive",
            f"split-vote rate {_rate(row.split_rate, 3)}, closed form {row.closed_form:.3f}",
        )
        for row in result.calibration
    ]
    verdict = result.verdict
    whole = Case("split votes", verdict.status, "; ".join(verdict.reasons) or _headline(result))
    return Suite("split-votes", result.started_at, result.duration_s, [*cases, whole], {"id": result.id})
