"""Pictures of rows: names are legible, nothing lost is a tick, what is not known is a dash."""

import re

from bench.experiments.judge.result import RowFigure
from bench.report.html.plot import (
    Bar,
    Column,
    Measure,
    Panel,
    data_of,
    forest,
    harm,
    panels,
)
from bench.report.html.scale import logarithmic, number_tick

# above the line they stand on
LETTERS_PX = 10.0


def test_no_axis_crosses_the_name_or_the_words_of_a_row() -> None:
    bars = [
        Bar(f"row {number}", 2.0, 1.5, 3.0, "2× (1.5–3)", "bad", "costs") for number in range(4)
    ]
    x = logarithmic([1.0, 10.0], "times", number_tick)
    drawn = forest(
        "costs",
        "t",
        "a",
        bars=bars,
        x=x,
        columns=[Column("n", "text")],
        rows=[["n"]],
        lines=[(1.0, "one")],
    )
    baselines = {
        float(y) for y in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*class="row"', drawn.svg)
    }
    lines = re.findall(r'd="M([\d.]+) ([\d.]+)L\1 ([\d.]+)" class="(?:grid|axis)"', drawn.svg)
    assert len(baselines) == 4
    assert lines
    crossed = [
        (y, line)
        for y in baselines
        for line in lines
        if float(line[1]) < y and float(line[2]) > y - LETTERS_PX
    ]
    assert crossed == []


def test_the_name_of_a_line_at_the_edge_is_inside_the_picture() -> None:
    bar = Bar("row", 2.0, 1.5, 3.0, "2×", "bad", "costs")
    x = logarithmic([1.0, 10.0], "times", number_tick)
    drawn = forest(
        "costs", "t", "a", bars=[bar], x=x, columns=(), rows=(), lines=[(1.0, "no cost")]
    )
    found = re.search(r'<text x="([\d.]+)"[^>]*>no cost</text>', drawn.svg)
    assert found
    assert float(found[1]) >= len("no cost") * 3


def test_nothing_lost_is_a_tick_and_what_is_not_known_a_dash() -> None:
    measures = (
        Measure(0.0, "none", "good", "nothing lost"),
        Measure(7.0, "7", "bad", "lost"),
        Measure(None, "–", "bad", "lost"),
    )
    groups = [("always", [(f"crash {number}", [one]) for number, one in enumerate(measures)])]
    drawn = panels("lost", "t", "a", heads=[Panel("locks", "lost")], groups=groups)
    assert drawn.rows[1:] == [["always", "crash 1", 7.0], ["always", "crash 2", None]]
    assert (drawn.svg.count('class="tick good"'), drawn.svg.count('class="area bad"')) == (1, 1)
    assert ">–</text>" in drawn.svg
    assert list(drawn.legend) == ["nothing lost", "lost"]


def test_harm_is_a_tick_only_where_it_is_known_to_be_none() -> None:
    none, some, unknown = (
        harm(value, "text", some="broken", none="held") for value in (0, 2.0, None)
    )
    assert (none.style, none.key) == ("good", "held")
    assert (some.style, some.key) == ("bad", "broken")
    assert unknown.value is None, "which is drawn as words alone"


def test_the_data_below_a_picture_are_the_named_fields_in_the_named_order() -> None:
    columns, rows = data_of(RowFigure, [RowFigure("takeovers", 3.0, "s")], ("value", "name"))
    assert [column.name for column in columns] == ["value", "name"]
    assert rows == [[3.0, "takeovers"]]
