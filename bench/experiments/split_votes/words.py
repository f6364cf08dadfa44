"""What `lockbench split-votes` says: *its result → tables and sentences*, at most 80 columns
wide."""

from collections.abc import Iterator

from bench.experiments.split_votes.result import (
    CalibrationRow,
    ContentionRow,
    RetryRow,
    SplitVotesResult,
)
from bench.report.figures import count, decimals, interval
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import Part, Sheet, made, sheet_of, table_of


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
    shown = " · ".join(f"{row.order} {decimals(row.nobody_won_rate.rate)}" for row in first)
    cut = "interrupted · " if result.interrupted else ""
    return f"{cut}nobody wins, K={most}: {shown} · by chance {first[0].closed_form:.2f}"


def _parts(result: SplitVotesResult) -> Iterator[Part]:
    about = "one driver sends each round's K·N SETs in one shuffled order"
    yield table_of(CalibrationRow, "calibration", about, result.calibration)
    if result.contention:
        trials = max(row.trials for row in result.contention)
        about = f"K processes released together, one attempt each, {count(trials)} trials per row"
        yield table_of(ContentionRow, "contention", about, result.contention)
    if result.retries:
        about = "the same, again and again until somebody wins"
        yield table_of(RetryRow, "retries", about, result.retries)


def _lines(result: SplitVotesResult) -> Iterator[tuple[str, str]]:
    yield (
        "rounds",
        "contention rounds: overlapping attempts on a resource without a valid holder",
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


def suite(result: SplitVotesResult) -> Suite:
    """The calibration of each K and the verdict as a whole, as JUnit cases."""
    cases = [
        Case(
            f"calibration K={row.contenders}",
            "inconclusive" if row.misses else "pass",
            f"nobody won {interval(row.split_rate)}, closed form {row.closed_form:.3f}",
        )
        for row in result.calibration
    ]
    verdict = result.verdict
    whole = Case("split votes", verdict.status, "; ".join(verdict.reasons) or _headline(result))
    return suite_of(result, [*cases, whole])
