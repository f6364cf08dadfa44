"""Pictures of rates with their intervals: *split votes, crashes → one row per case*.

Rules: the rate, its 95 % interval and what theory says (a ring) are those of the result. Source:
bench.experiments.split_votes.experiment, bench.experiments.crash.judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.report.figures import count
from bench.report.html.figure import Column, Data, Figure
from bench.report.html.forest import RANGE, Bar, forest
from bench.report.html.scale import linear, logarithmic, number_tick, ratio_tick
from bench.scenario.quantity import duration_text

Result = Mapping[str, Any]
Row = Mapping[str, Any]
MOST_ROWS = 64


def split_votes_figures(result: Result) -> list[Figure]:
    """Calibration against the closed form, and contention of real processes beside it."""
    calibration = [_rate_bar(f"K={row['contenders']}", row, "c1") for row in result["calibration"]]
    contention = [
        _rate_bar(f"K={r['contenders']} {r['order']} {duration_text(r['spread_s'] * 1000)}", r, "c2")
        for r in result["contention"]
    ]
    about = "Share of contention rounds in which nobody could win, with its 95 % interval; the ring is the closed form"
    figures = []
    if calibration:
        title = f"By pure chance: {_said(calibration)}"
        figures.append(_rates("calibration", title, about, calibration))
    if contention:
        title = (
            f"Real processes released together: at most {max(bar.text.split()[0] for bar in contention)} split votes"
        )
        worst = max(contention, key=lambda bar: bar.value or 0)
        title = f"Real processes: at most {worst.text.split('  ')[0]} ({worst.name})"
        figures.append(_rates("contention", title, about, contention[:MOST_ROWS]))
    return figures


def _said(bars: Sequence[Bar]) -> str:
    return ", ".join(f"{bar.name} {bar.text.split('  ')[0]}" for bar in bars)


def _rate_bar(name: str, row: Row, style: str) -> Bar:
    rate = row["split_rate"]
    text = "–" if rate["rate"] is None else f"{rate['rate']:.3f}  {rate['low']:.3f}–{rate['high']:.3f}"
    return Bar(name, rate["rate"], rate["low"], rate["high"], text, style, other=row["closed_form"])


def _rates(name: str, title: str, about: str, bars: Sequence[Bar]) -> Figure:
    x = linear([1.0], *RANGE, most=4)
    columns = (Column("case", "text"), *(Column(part, "ratio") for part in ("rate", "low", "high", "closed_form")))
    rows = [[bar.name, bar.value, bar.low, bar.high, bar.other] for bar in bars]
    picture = forest(bars, x, ratio_tick, "split votes ÷ rounds", name=title, about=about)
    return Figure(name, title, about, picture, Data(columns, rows))


def crash_figures(result: Result) -> list[Figure]:
    """Locks lost per crash, and double grants by vote margin."""
    groups = [row for row in result.get("groups") or () if row["lost_per_cut"]]
    figures = []
    if groups:
        figures.append(_lost(groups[:MOST_ROWS]))
    odd = [row for row in result["rows"] if row["instances"] > 1 and row["restart"] == "at-once"]
    if odd:
        figures.append(_double(odd))
    return figures


def _lost(groups: Sequence[Row]) -> Figure:
    most = [row["lost_per_cut"]["max"] for row in groups]
    x = logarithmic([0.5, 1.0, *most], *RANGE)
    bars = [
        Bar(
            _crash_name(row),
            row["lost_per_cut"]["median"] or 0.5,
            row["lost_per_cut"]["median"] or 0.5,
            row["lost_per_cut"]["max"] or 0.5,
            f"{count(round(row['lost_per_cut']['median']))}, most {count(row['lost_per_cut']['max'])}",
            "bad" if row["lost_per_cut"]["max"] else "good",
        )
        for row in groups
    ]
    lossless = sum(not value for value in most)
    title = f"{lossless} of {len(groups)} cases lost no acknowledged lock; the worst crash lost {count(max(most))}"
    about = (
        "Acknowledged locks lost per crash, median and most, log scale; 0.5 stands for none; 1/3: one of three crashed"
    )
    columns = (Column("case", "text"), Column("median", "count"), Column("most", "count"))
    rows = [
        [bar.name, row["lost_per_cut"]["median"], row["lost_per_cut"]["max"]]
        for bar, row in zip(bars, groups, strict=True)
    ]
    picture = forest(bars, x, number_tick, "locks lost per crash (log scale)", name=title, about=about)
    return Figure("lost", title, about, picture, Data(columns, rows))


def _crash_name(row: Row) -> str:
    late = "" if row["restart"] == "at-once" else " later"
    return f"{row['crashed']}/{row['instances']} {row['policy']} {row['kind']}{late}"


def _double(rows: Sequence[Row]) -> Figure:
    """Cuts with a double grant by how many crashed, margin, and whether restarted instances abstain."""
    sums: dict[tuple[int, int, int, bool], list[int]] = {}
    for row in rows:
        case = (row["instances"], row["crashed"], row["margin"], row["abstention"])
        total = sums.setdefault(case, [0, 0])
        total[0] += row["cuts_with_double_grants"]
        total[1] += row["cuts"]
    cases = [(case, hit, cuts) for case, (hit, cuts) in sorted(sums.items()) if cuts]
    bars = []
    for (instances, crashed, margin, abstains), hit, cuts in cases[:MOST_ROWS]:
        name = f"{crashed} of {instances}, margin {margin}, {'abstains' if abstains else 'trusted'}"
        said, style = f"{hit} of {cuts} cuts", "bad" if hit else "good"
        bars.append(Bar(name, hit / cuts, None, None, said, style))
    abstaining, trusted = (sum(hit for case, hit, _ in cases if case[3] is way) for way in (True, False))
    title = f"Cuts with a double grant: {count(abstaining)} if restarted instances abstain, {count(trusted)} if trusted"
    about = "Cuts after which a second client got a lock that was still valid; restarted at once; by how many crashed"
    names = ("instances", "crashed", "margin", "abstaining", "cuts_with_double_grants", "cuts")
    columns = tuple(Column(name, "text" if name == "abstaining" else "count") for name in names)
    data = Data(columns, [[*case[:3], str(case[3]), hit, cuts] for case, hit, cuts in cases])
    picture = forest(bars, linear([1.0], *RANGE, most=4), ratio_tick, "share of cuts", name=title, about=about)
    return Figure("double-grants", title, about, picture, data)
