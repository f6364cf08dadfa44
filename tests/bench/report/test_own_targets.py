"""Servers of the user keep their name, version and AOF policy in everything that is shown of a
run."""

import csv
from pathlib import Path

import pytest
from msgspec import structs

from bench.experiments.capacity.probe import FSYNC, read_slo, uses_of
from bench.experiments.capacity.words import answer
from bench.experiments.capacity.words import sheet as capacity_sheet
from bench.experiments.compare.words import sheet as compare_sheet
from bench.experiments.durability.price_words import sheet as fsync_sheet
from bench.frame.showing import append_line
from bench.measure.fleet_facts import FleetFacts
from bench.measure.run_result import RunResult
from bench.measure.server_facts import InstanceFacts
from bench.report.html.run_page import conditions_of, run_page
from bench.report.summary import sheet
from tests.bench.experiments.compare.test_words import compared
from tests.bench.experiments.durability.test_price_words import result as fsync_result
from tests.bench.report.screen import sheet_text
from tests.bench.whole_run import run_of
from tests.doubles.capacity_points import capacity_result, point


def fact(index: int, fsync: str | None = "always", server: str | None = "redis") -> InstanceFacts:
    return InstanceFacts(
        index, f"10.0.0.{index}:6379", False, server=server, version="7.4.1", fsync=fsync
    )


def fleet_of(*facts: InstanceFacts) -> FleetFacts:
    return FleetFacts(started=False, server=None, fsync=None, fdatasync_s=None, instances=facts)


ALWAYS = fleet_of(*map(fact, range(3)))


def run_on(fleet: FleetFacts) -> RunResult:
    """A run on the user's servers.

    The key `fsync` of its scenario has its default, which is not theirs.
    """
    urls = [f"redis://{one.address}" for one in fleet.instances]
    result = run_of(scenario={"targets": urls, "fsync": "everysec"})
    return structs.replace(result, fleet=fleet)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ([fact(0), fact(1)], "own targets, fsync always"),
        ([fact(0), fact(1, "none")], "own targets, fsync none and always"),
        ([fact(0), fact(1, None)], "own targets, fsync always (of 1 not known)"),
        ([fact(0, None), fact(1, None)], "own targets, fsync not known"),
        ([], "own targets, fsync not known"),
    ],
)
def test_a_fleet_of_the_user_is_called_by_its_policies(
    facts: list[InstanceFacts], text: str
) -> None:
    assert fleet_of(*facts).text == text


def test_a_fleet_that_was_started_is_called_by_the_policy_it_was_started_with() -> None:
    started = structs.replace(ALWAYS, started=True, fsync="no")
    assert (started.text, started.policies, started.policy) == ("fsync no", "no", "no")


def test_the_summary_names_the_policy_of_own_targets() -> None:
    assert "own targets, fsync always" in sheet_text(sheet(run_on(ALWAYS)), 200)


def test_the_page_of_a_run_shows_the_policy_and_the_servers_and_not_the_scenario_s_default() -> (
    None
):
    result = run_on(ALWAYS)
    assert conditions_of(result)["fsync"] == "always"
    (conditions,) = [
        chapter for chapter in run_page(result).chapters if chapter.heading == "Conditions"
    ]
    (servers,) = [table for table in conditions.tables if table.name == "Servers"]
    assert ("fsync", "always") in servers.rows
    assert ("server", "redis 7.4.1") in servers.rows


def test_the_line_of_a_table_has_the_policy_of_own_targets(tmp_path: Path) -> None:
    append_line(tmp_path / "runs.csv", run_on(ALWAYS))
    append_line(tmp_path / "runs.csv", run_on(fleet_of(fact(0, None))))
    rows = list(csv.DictReader((tmp_path / "runs.csv").open(encoding="utf-8")))
    assert [(row["server"], row["fsync"]) for row in rows] == [
        ("redis 7.4.1", "always"),
        ("redis 7.4.1", ""),
    ]


def test_the_answer_of_capacity_names_the_policy_of_own_targets() -> None:
    own = structs.replace(point(), fleet=ALWAYS)
    assert answer(own, capacity_result(own)).startswith("N=5, own targets, fsync always, 512 users")
    assert "redis 7.4.1" in sheet_text(capacity_sheet(capacity_result(own)), 200)


def test_fsync_is_no_limit_of_own_targets_only_where_they_tell_how_long_they_waited() -> None:
    """INFO counts delayed syncs of everysec alone: of always it says nothing."""
    slo = read_slo(["acquire.p99 < 10ms"])

    def texts(fleet: FleetFacts) -> list[str]:
        return [use.text for use in uses_of(run_on(fleet), slo) if use.name == FSYNC]

    assert texts(fleet_of(fact(0, "everysec"))) == ["no write waited for it"]
    assert texts(ALWAYS) == []
    assert texts(fleet_of(fact(0, None))) == []


def test_a_comparison_names_the_policy_of_own_targets(tmp_path: Path) -> None:
    result = compared(tmp_path)
    side = structs.replace(result.sides[0], fleet=ALWAYS)
    text = sheet_text(compare_sheet(structs.replace(result, sides=(side, *result.sides[1:]))), 200)
    assert "own targets, fsync always" in text


def test_the_price_of_fsync_names_the_servers_of_the_user() -> None:
    own = structs.replace(
        fsync_result().fleet, started=False, server=None, instances=(fact(0), fact(1))
    )
    text = sheet_text(fsync_sheet(structs.replace(fsync_result(), fleet=own)), 200)
    assert "2 of your servers (redis 7.4.1)" in text
