"""Pictures of split votes: *rates with their intervals → one row per case*.

Rules: the rate, its 95 % interval and what theory says (a ring) are those of the result. Source:
bench.experiments.split_votes.experiment.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.experiments.split_votes.result import CalibrationRow, ContentionRow, SplitVotesResult
from bench.report.html.figure import Column, Data, Figure
from bench.report.html.forest import RANGE, Bar, forest
from bench.report.html.scale import linear, ratio_tick
from bench.scenario.quantity import duration_text

MOST_ROWS = 64


def figures(result: SplitVotesResult) -> list[Figure]:
    """Calibration against the closed form, and contention of real processes beside it."""
    calibration = [_rate_bar(f"K={row.contenders}", row, "c1") for row in result.calibration]
    contention = [
        _rate_bar(f"K={r.contenders} {r.order} {duration_text(r.spread_s * 1000)}", r, "c2") for r in result.contention
    ]
    about = "Share of contention rounds in which nobody could win, with its 95 % interval; the ring is the closed form"
    drawn = []
    if calibration:
        title = f"By pure chance: {_said(calibration)}"
        drawn.append(_rates("calibration", title, about, calibration))
    if contention:
        worst = max(contention, key=lambda bar: bar.value or 0)
        title = f"Real processes: at most {worst.text.split('  ')[0]} ({worst.name})"
        drawn.append(_rates("contention", title, about, contention[:MOST_ROWS]))
    return drawn


def _said(bars: Sequence[Bar]) -> str:
    return ", ".join(f"{bar.name} {bar.text.split('  ')[0]}" for bar in bars)


def _rate_bar(name: str, row: CalibrationRow | ContentionRow, style: str) -> Bar:
    rate = row.split_rate
    text = "–" if rate.rate is None else f"{rate.rate:.3f}  {rate.low:.3f}–{rate.high:.3f}"
    return Bar(name, rate.rate, rate.low, rate.high, text, style, other=row.closed_form)


def _rates(name: str, title: str, about: str, bars: Sequence[Bar]) -> Figure:
    x = linear([1.0], *RANGE, most=4)
    columns = (Column("case", "text"), *(Column(part, "ratio") for part in ("rate", "low", "high", "closed_form")))
    rows = [[bar.name, bar.value, bar.low, bar.high, bar.other] for bar in bars]
    picture = forest(bars, x, ratio_tick, "split votes ÷ rounds", name=title, about=about)
    return Figure(name, title, about, picture, Data(columns, rows))
