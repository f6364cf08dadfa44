"""A schedule as a table: a column for each client, or who and what where that would not fit into a
terminal."""

from pathlib import Path

from msgspec.structs import replace

from bench.experiments.explore.figures import courses
from bench.experiments.explore.result import Broken, ExploreResult, Step
from bench.experiments.explore.search import ENOUGH, SHORT
from bench.experiments.explore.words import diagram, figures, sheet
from bench.measure.result import read_result
from bench.measure.section import typed

RULE = Step(9.0, -1, "two leases valid at once: C1's and C2's")


def broken(*steps: Step) -> Broken:
    return Broken(
        rule=RULE.text,
        number=7,
        clients=2,
        callers=1,
        resources=1,
        rounds=1,
        hold_ms=1.0,
        extends=False,
        starts_ms=(0.0, 0.1),
        seed=1,
        changes=(),
        steps=(*steps, RULE),
    )


def test_each_client_has_a_column_and_the_servers_have_the_last() -> None:
    part = diagram(
        "r",
        broken(Step(0.25, 0, "SET NX → OK"), Step(1.0, -1, "1 stops"), Step(2.5, 1, "GET → nil")),
    )
    assert part.head == ("ms", "client 1", "client 2", "server")
    assert part.rows == (
        ("0.25", "SET NX → OK", "", ""),
        ("1.00", "", "", "1 stops"),
        ("2.50", "", "GET → nil", ""),
    )


def test_what_is_wider_than_a_terminal_says_who_in_every_row() -> None:
    part = diagram(
        "r", broken(Step(0.25, 0, "x" * 40), Step(1.0, -1, "1 stops"), Step(2.5, 1, "y" * 30))
    )
    assert part.head == ("ms", "who", "step")
    assert [row[1] for row in part.rows] == ["client 1", "server", "client 2"]


def explored() -> ExploreResult:
    """A stored result of one flawed recipe, which was broken, and one safe recipe, which held."""
    path = Path(__file__).parents[3] / "histories" / "results" / "explore.json"
    return typed(read_result(path), ExploreResult)


def test_a_row_that_is_not_known_neither_held_nor_broke() -> None:
    result = explored()
    keys = {key.name: key.value for key in sheet(result).keys}
    assert keys["must hold"] == "1 of 1 recipes held"
    assert keys["known flaws"] == "1 of 1 recipes broken"
    rows = [replace(row, broken=None, verdict="not known") for row in result.rows]
    keys = {key.name: key.value for key in sheet(replace(result, rows=(*rows, *result.rows))).keys}
    assert keys["must hold"] == "1 of 2 recipes held"
    assert keys["known flaws"] == "1 of 2 recipes broken"


def test_the_picture_says_when_a_search_ends() -> None:
    picture, *_ = figures(explored())
    assert f"{ENOUGH} schedules broke" in picture.about
    assert f"at most {SHORT} steps" in picture.about


def test_a_schedule_that_breaks_a_recipe_is_drawn_with_its_holders() -> None:
    steps = (
        Step(0.25, 0, "SET NX PX 500 → OK"),
        Step(0.45, 0, "granted until 493.1"),
        Step(150.0, 0, "paused 497 ms"),
        Step(541.6, 1, "SET NX PX 500 → OK"),
        Step(541.8, 1, "granted for ever"),
        Step(648.0, 0, "DEL → 1"),
    )
    row = explored().rows[0]
    (picture,) = courses([replace(row, broken=broken(*steps))])
    assert picture.svg.count('class="area good"') == 2
    assert 'class="area bad"' not in picture.svg
    # Without its end, the first lease lasts until the second one is granted, and longer.
    endless = (steps[0], Step(0.45, 0, "granted for ever"), *steps[2:])
    (picture,) = courses([replace(row, broken=broken(*endless))])
    assert picture.svg.count('class="area bad"') == 2
