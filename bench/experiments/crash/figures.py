"""Pictures of crashes: *what was lost, who got a lock twice → one row per case*.

Rules: every figure is one of the result. Source: bench.experiments.crash.judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.report.figures import count
from bench.report.html.figure import Column, Data, Figure
from bench.report.html.forest import RANGE, Bar, forest
from bench.report.html.scale import linear, logarithmic, number_tick, ratio_tick

Result = Mapping[str, Any]
Row = Mapping[str, Any]
MOST_ROWS = 64


def figures(result: Result) -> list[Figure]:
    """Locks lost per crash, and double grants by vote margin."""
    groups = [row for row in result.get("groups") or () if row["lost_per_cut"]]
    drawn = []
    if groups:
        drawn.append(_lost(groups[:MOST_ROWS]))
    odd = [row for row in result["rows"] if row["instances"] > 1 and row["restart"] == "at-once"]
    if odd:
        drawn.append(_double(odd))
    return drawn


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
