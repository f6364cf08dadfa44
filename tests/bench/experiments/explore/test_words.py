"""A schedule as a table: a column for each client, or who and what where that would not fit into a
terminal."""

from pathlib import Path

from msgspec.structs import replace

from bench.experiments.explore.diagram import steps_of
from bench.experiments.explore.figures import _holdings, courses
from bench.experiments.explore.result import Broken, ExploreResult, Step
from bench.experiments.explore.search import ENOUGH, SHORT
from bench.experiments.explore.words import diagram, figures, sheet
from bench.experiments.explore.world import START_NS
from bench.measure.result import read_result
from bench.measure.section import typed
from lockcore.clock import NS_PER_MS

RULE = Step(9.0, -1, "two leases were valid at the same time: the leases of C1 and C2")


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
    assert f"{ENOUGH} schedules have broken" in picture.about
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


EXTENDED = (
    Step(0.25, 0, "SET NX PX 500 → OK"),
    Step(0.45, 0, "granted until 493.1"),
    Step(200.0, 0, "extend if C1's 500 → 1"),
    Step(200.4, 0, "extended until 693.1"),
    Step(600.0, 1, "SET NX PX 500 → OK"),
    Step(600.2, 1, "granted until 1092.9"),
)


def spans_of(*steps: Step) -> list[tuple[int, int, int, bool]]:
    return [(one.line, one.begin, one.end, one.is_bad) for one in _holdings(steps)]


def test_an_extension_prolongs_the_bar_of_its_lease() -> None:
    assert spans_of(*EXTENDED) == [(0, 1, 6, True), (1, 5, 6, True)]


def test_an_extended_lease_ends_with_the_extension_or_with_a_release() -> None:
    late = Step(700.0, 1, "SET NX PX 500 → OK"), Step(700.2, 1, "granted until 1192.9")
    assert spans_of(*EXTENDED[:4], *late) == [(0, 1, 4, False), (1, 5, 6, False)]
    released = *EXTENDED[:4], Step(300.0, 0, "del if C1's → 1"), *EXTENDED[4:]
    assert spans_of(*released) == [(0, 1, 4, False), (1, 6, 7, False)]


def test_an_extension_of_the_next_lease_does_not_prolong_the_lease_before() -> None:
    first = Step(0.25, 0, "SET NX PX 500 → OK"), Step(0.45, 0, "granted until 493.1")
    release = Step(10.0, 0, "del if C1's → 1")
    again = (
        Step(20.0, 0, "SET NX PX 500 → OK"),
        Step(20.2, 0, "granted until 512.9"),
        Step(200.0, 0, "extend if C1's 500 → 1"),
        Step(200.4, 0, "extended until 693.1"),
    )
    assert spans_of(*first, release, *again) == [(0, 1, 2, False), (0, 4, 7, False)]


def test_a_schedule_with_several_callers_or_resources_has_no_picture() -> None:
    """A step does not name its caller or its resource, and equal steps are one step."""
    row = explored().rows[0]
    schedule = broken(
        Step(0.25, 0, "2 × SET NX PX 500 → OK"),
        Step(0.45, 0, "2 × granted until 493.1"),
        Step(100.0, 1, "SET NX PX 500 → OK"),
        Step(100.2, 1, "granted until 592.8"),
    )
    assert len(courses([replace(row, broken=schedule)])) == 1
    assert courses([replace(row, broken=replace(schedule, callers=2))]) == []
    assert courses([replace(row, broken=replace(schedule, resources=2))]) == []


def test_the_end_of_a_late_lease_keeps_its_tenth_of_a_millisecond() -> None:
    def at(ms: float) -> int:
        return START_NS + int(ms * NS_PER_MS)

    events = [(at(541.83), "granted", 0, at(1034.48)), (at(900), "extended", 0, at(1392.64))]
    texts = [step.text for step in steps_of(events, 1)]
    assert texts == ["granted until 1034.5", "extended until 1392.6"]
