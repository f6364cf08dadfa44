"""Negative controls of the whole chain: a fault planted in a lock that is safe turns its row of the safety matrix red,
and an oracle that is blind turns the row of a flawed lock red."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.experiments.safety_matrix import claims as restarts
from bench.experiments.safety_matrix import leases
from bench.experiments.safety_matrix.experiment import look_at
from bench.experiments.safety_matrix.row import SKIPPED, PlannedRow, RowSetup, judge_rows
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED
from bench.recipes.plain import PlainInstance
from bench.recipes.registry import find_recipe
from bench.recipes.schedules.stage import Stage
from bench.recipes.schedules.table import SCHEDULES
from bench.run.experiment import exit_code
from bench.safety import judge as judge_module
from bench.safety import rules
from bench.topology.fleet import Fleet, start_fleet
from lockcore import claims, engine
from lockcore.errors import LockcoreError

pytestmark = pytest.mark.integration
NOBODY = "redis://127.0.0.1:1"


@pytest.fixture
def ground(fleet: Fleet, tmp_path: Path) -> RowSetup:
    return RowSetup(fleet, seed=1, quick=True, server=None, scratch=tmp_path, run_id="57041")


def row(schedule: str, recipe: str, ground: RowSetup) -> tuple[str, int]:
    """The verdict of a row of the matrix, and what the command would end with if it were the only one."""
    entry = SCHEDULES[schedule]
    finding = look_at(entry, recipe, recipe in entry.shown_by, ground)
    planned = PlannedRow("schedule", recipe, schedule, "", "", finding)
    return finding.verdict, exit_code(judge_rows([planned.row(finding)]), interrupted=False)


# -- a lock that is safe, made unsafe ----------------------------------------------------------------------------------


def two_sides(fleet: Fleet) -> int:
    """Service faults when one client reaches the first instance only, the other the rest."""
    first, *rest = fleet.urls
    with Stage(find_recipe("redlock"), fleet) as stage:
        for urls in ([first, NOBODY, "redis://127.0.0.1:2"], [NOBODY, *rest]):
            stage.client(urls=urls).acquire()
        return stage.report().service_faults


def test_a_quorum_off_by_one_is_found_out(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "quorum_of", lambda instances: instances // 2)
    assert two_sides(fleet) == 1


def test_with_the_right_quorum_one_of_them_does_not_even_connect(fleet: Fleet) -> None:
    with pytest.raises(Exception, match="quorum"):
        two_sides(fleet)


def test_a_release_without_owner_check_is_found_out(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    assert row("overslept-holder", "set-nx-lua", ground) == (AS_EXPECTED, 0)
    monkeypatch.setattr(PlainInstance, "delete_own", lambda self, key, _token: self.ask("DEL", key))
    assert row("overslept-holder", "set-nx-lua", ground) == (VIOLATED, 5)


def test_an_ignored_drift_is_found_out(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "WITHIN", (1.009,))
    monkeypatch.setattr(claims, "drift_ns", lambda _ttl_ms, _factor: 0)
    finding = leases.validity_drift(replace(ground, quick=False))  # a TTL of 2 s: 18 ms of overlap
    if finding.verdict in (SKIPPED, NOT_KNOWN):
        pytest.skip(f"not known here: {finding.reason}")
    assert finding.verdict == VIOLATED, finding.figures


def test_a_shutdown_that_forgets_is_found_out(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "start_fleet", lambda instances, _fsync: start_fleet(instances, "none"))
    finding = restarts.clean_shutdown(ground)
    assert finding.verdict in (VIOLATED, NOT_KNOWN), finding.figures
    if finding.verdict == NOT_KNOWN:
        pytest.skip(f"not known here: {finding.preconditions}")


def test_restarted_servers_that_vote_at_once_are_found_out(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "connect", lambda urls, **told: leases.connect(urls, **{**told, "rejoin": "trust"}))
    finding = restarts.delayed_restart(ground)
    assert finding.verdict == VIOLATED, finding.figures


def test_what_was_seen_before_a_server_failed_to_answer_stays_seen(
    ground: RowSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after_restart(_fleet: object, restarted: tuple[int, ...], rejoin: str) -> tuple[bool, float, float]:
        if len(restarted) == 3:
            raise LockcoreError("nobody answered")
        return rejoin == "trust-first", 0.1, 0.1

    monkeypatch.setattr(restarts, "start_fleet", lambda *_: nullcontext())
    monkeypatch.setattr(restarts, "_after_restart", after_restart)
    assert restarts.delayed_restart(ground).verdict == VIOLATED


# -- an oracle that is blind -------------------------------------------------------------------------------------------


def nobody(*_arguments: object) -> tuple[np.ndarray, np.ndarray]:
    return np.empty(0, np.int64), np.empty(0, np.int64)


def test_an_oracle_that_sees_no_overlap_is_found_out(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    assert row("both-read-first", "get-set", ground) == (AS_EXPECTED, 0)
    monkeypatch.setattr(rules, "service_faults", nobody)
    assert row("both-read-first", "get-set", ground) == (NOT_SHOWN, 4)


def test_an_oracle_that_crashes_shows_nothing(ground: RowSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module.rules, "order_leases", lambda *_: 1 / 0)
    assert row("both-read-first", "get-set", ground) == (NOT_SHOWN, 4)


@pytest.mark.parametrize("rule, figure", [("foreign_deletes", "foreign_deletes"), ("client_overstays", "overstays")])
def test_a_figure_comes_from_its_rule(
    rule: str, figure: str, ground: RowSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = SCHEDULES["overslept-holder"]
    assert look_at(schedule, "set-nx-fixed", True, ground).figures[figure] == 1
    monkeypatch.setattr(rules, rule, nobody)
    assert look_at(schedule, "set-nx-fixed", True, ground).figures[figure] == 0
