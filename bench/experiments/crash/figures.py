"""Pictures of crashes: *what was lost, who got a lock twice → one row per case*."""

from __future__ import annotations

from collections.abc import Sequence

from bench.experiments.crash.result import CrashGroup, CrashResult, CrashRow
from bench.report.figures import count
from bench.report.html.figure import Column, Data, Figure
from bench.report.html.forest import RANGE, Bar, forest
from bench.report.html.scale import linear, logarithmic, number_tick, ratio_tick

MOST_ROWS = 64


def figures(result: CrashResult) -> list[Figure]:
    """Locks lost per crash, and double grants by vote margin."""
    drawn = []
    figures_of = [(row, row.lost_per_cut.median or 0.0, row.lost_per_cut.max) for row in result.groups]
    if lost := [(row, median, most) for row, median, most in figures_of if most is not None]:
        drawn.append(_lost(lost[:MOST_ROWS]))
    odd = [row for row in result.rows if row.instances > 1 and row.restart == "at-once"]
    if odd:
        drawn.append(_double(odd))
    return drawn


def _lost(groups: Sequence[tuple[CrashGroup, float, float]]) -> Figure:
    """Median and most of every group."""
    worst = max(most for _, _, most in groups)
    x = logarithmic([0.5, 1.0, *(most for _, _, most in groups)], *RANGE)
    bars = [
        Bar(
            _crash_name(row), median or 0.5, median or 0.5, most or 0.5, f"{count(round(median))}, most {count(most)}",
            "bad" if most else "good",
        )
        for row, median, most in groups
    ]  # fmt: skip
    lossless = sum(not most for _, _, most in groups)
    title = f"{lossless} of {len(groups)} cases lost no acknowledged lock; the worst crash lost {count(worst)}"
    about = (
        "Acknowledged locks lost per crash, median and most, log scale; 0.5 stands for none; 1/3: one of three crashed"
    )
    columns = (Column("case", "text"), Column("median", "count"), Column("most", "count"))
    rows: list[list[str | float]] = [
        [bar.name, median, most] for bar, (_, median, most) in zip(bars, groups, strict=True)
    ]
    picture = forest(bars, x, number_tick, "locks lost per crash (log scale)", name=title, about=about)
    return Figure("lost", title, about, picture, Data(columns, rows))


def _crash_name(row: CrashGroup) -> str:
    late = "" if row.restart == "at-once" else " later"
    return f"{row.crashed}/{row.instances} {row.policy} {row.kind}{late}"


def _double(rows: Sequence[CrashRow]) -> Figure:
    """Cuts with a double grant by how many crashed, margin, and whether restarted instances abstain."""
    sums: dict[tuple[int, int, int, bool], list[int]] = {}
    for row in rows:
        case = (row.instances, row.crashed, row.margin, row.abstention)
        total = sums.setdefault(case, [0, 0])
        total[0] += row.cuts_with_double_grants
        total[1] += row.cuts
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
