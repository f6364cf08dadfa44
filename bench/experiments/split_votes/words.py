"""What `lockbench split-votes` says: *its result → tables and sentences*, at most 80 columns
wide."""

from collections.abc import Iterator

from bench.experiments.split_votes.result import (
    CalibrationRow,
    ContentionRow,
    RetryRow,
    SplitVotesResult,
)
from bench.measure.statistics import Interval
from bench.report.figures import MISSING, count, decimals, milliseconds
from bench.report.junit import Case, Suite
from bench.report.sheet import Columns, Part, Sheet, made, sheet_of, table
from bench.scenario.quantity import duration_text

_CALIBRATION: Columns[CalibrationRow] = (
    ("K", lambda row: str(row.contenders)),
    ("rounds", lambda row: count(row.rounds)),
    ("nobody won,\n95 %", lambda row: _interval(row.split_rate, digits=3)),
    ("closed\nform", lambda row: f"{row.closed_form:.3f}"),
    ("", lambda row: "NOT AS EXPECTED" if row.misses else "as expected"),
)
_CONTENTION: Columns[ContentionRow] = (
    ("K", lambda row: str(row.contenders)),
    ("order", lambda row: row.order),
    ("spread\nms", lambda row: f"{row.spread_s * 1000:g}"),
    ("rounds", lambda row: count(row.contention_rounds)),
    ("nobody won,\n95 %", lambda row: _interval(row.nobody_won_rate)),
    ("closed\nform", lambda row: f"{row.closed_form:.2f}"),
    ("took\np50 ms", lambda row: milliseconds(row.attempt_s.p50)),
)
_RETRIES: Columns[RetryRow] = (
    ("K", lambda row: str(row.contenders)),
    ("order", lambda row: row.order),
    ("retry", lambda row: f"{row.retry.policy} {duration_text(row.retry.window_ms)}"),
    ("first\np50 ms", lambda row: milliseconds(row.first_grant_s.p50)),
    ("grant\np99", lambda row: milliseconds(row.first_grant_s.p99)),
    ("\nmax", lambda row: milliseconds(row.first_grant_s.max)),
    ("all lost,\nof trials", lambda row: f"{row.first_attempts_lost}/{row.trials}"),
    ("dead\np50 ms", lambda row: milliseconds(row.dead_time_s.p50)),
    ("attempts\nper grant", lambda row: decimals(row.attempts_per_grant, 1)),
)


def sheet(result: SplitVotesResult, place: str = "") -> Sheet:
    """Return what is said of `result`, stored at `place` ("" = nowhere)."""
    server = result.fleet.server
    conditions = (
        f"N={result.conditions.instances}",
        f"{server.name} {server.version}, in memory",
        *made(result, " shared by contenders and servers"),
    )
    return sheet_of(
        result,
        place,
        kind="split-votes",
        headline=_headline(result),
        conditions=conditions,
        parts=_parts(result),
        lines=_lines(result),
        tables_first=True,
    )


def _headline(result: SplitVotesResult) -> str:
    if not result.contention:
        return "calibration only, then interrupted"
    most = max(row.contenders for row in result.contention)
    rows = [row for row in result.contention if row.contenders == most]
    first = [row for row in rows if row.spread_s == rows[0].spread_s]
    shown = " · ".join(f"{row.order} {_rate(row.nobody_won_rate)}" for row in first)
    cut = "interrupted · " if result.interrupted else ""
    return f"{cut}nobody wins, K={most}: {shown} · by chance {first[0].closed_form:.2f}"


def _parts(result: SplitVotesResult) -> Iterator[Part]:
    about = "one driver sends each round's K·N SETs in one shuffled order"
    yield table("calibration", about, _CALIBRATION, result.calibration, (4,))
    if result.contention:
        trials = max(row.trials for row in result.contention)
        about = f"K processes released together, one attempt each, {count(trials)} trials per row"
        yield table("contention", about, _CONTENTION, result.contention, (1,))
    if result.retries:
        yield table(
            "retries",
            "the same, again and again until somebody wins",
            _RETRIES,
            result.retries,
            (1, 2),
        )


def _lines(result: SplitVotesResult) -> Iterator[tuple[str, str]]:
    yield (
        "rounds",
        "contention rounds: overlapping attempts on a resource without a valid holder; "
        "took: an attempt",
    )
    if result.conditions.instances % 2:
        yield "outcomes", "at odd N, all answering, a quorum refuses every loser: CONTENDED"
    yield (
        "closed form",
        "1 − K·P(Bin(N,1/K) ≥ q), all SETs in one uniformly random order; no tolerance "
        "in contention",
    )
    if result.retries:
        yield (
            "all lost",
            "trials in which nobody's first attempt won; dead: of those, first start → first grant",
        )


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
            "inconclusive" if row.misses else "pass",
            f"split-vote rate {_rate(row.split_rate, 3)}, closed form {row.closed_form:.3f}",
        )
        for row in result.calibration
    ]
    verdict = result.verdict
    whole = Case("split votes", verdict.status, "; ".join(verdict.reasons) or _headline(result))
    return Suite(
        "split-votes", result.started_at, result.duration_s, [*cases, whole], {"id": result.id}
    )
