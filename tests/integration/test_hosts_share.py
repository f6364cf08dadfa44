"""Histories that are too large for the way to their leader: latencies and counts are of all, the
verdict of a share."""

from pathlib import Path
from typing import Any

import pytest

from bench.hosts.share import BUDGET_VARIABLE
from bench.measure.run_result import RunResult
from bench.topology.fleet import Fleet
from tests.integration import test_hosts
from tests.integration.locust_runs import cut_short, free_port, keys, result_in, started, targets
from tests.integration.test_hosts import LOAD, ahead, counted, finished, left, workers

pytestmark = test_hosts.pytestmark
AHEAD = (7_200, 3_600)  # s


def led(
    folder: Path, fleet: Fleet, budget: float, *words: object
) -> tuple[int, dict[str, Any], str]:
    """A run by two workers that may send so many bytes per second."""
    port = free_port()
    here = ("--expect-workers", 2, "--bind", f"127.0.0.1:{port}", "--out", "out")
    leader = started(
        folder, "run", *targets(fleet), *LOAD, *here, *words, **{BUDGET_VARIABLE: f"{budget}"}
    )
    with workers(folder, port, *map(ahead, AHEAD)):
        return finished(leader, folder)


def test_counts_and_latencies_are_of_all_and_the_verdict_is_of_a_share(
    tmp_path: Path, fleet: Fleet
) -> None:
    code, result, said = led(
        tmp_path, fleet, 2_000, "--duration", "6s", "--hold", "10ms", "--users", 32
    )
    counted(result)
    # by how many were tested
    assert (code, result["verdict"]["word"]) in ((0, "SAFE"), (0, "NOT TESTED")), said
    assert 0 < result["safety"]["judged_ratio"] < 0.9
    (warning,) = [warning for warning in result["warnings"] if "the oracle judged" in warning]
    assert "The oracle did not judge the other leases" in warning
    assert "recorded" not in str(result["safety"]["reason"]), "what was not wanted is no hole"
    assert (keys(fleet), left(tmp_path)) == (0, [])


def test_a_run_that_is_cut_is_folded_until_then(tmp_path: Path, fleet: Fleet) -> None:
    port = free_port()
    here = (
        "--expect-workers",
        2,
        "--bind",
        f"127.0.0.1:{port}",
        "--out",
        "out",
        "--duration",
        "60s",
    )
    leader = started(tmp_path, "run", *targets(fleet), *LOAD, *here)
    with workers(tmp_path, port, *map(ahead, AHEAD)):
        assert leader.stderr is not None
        assert any(line.startswith("measuring") for line in leader.stderr)
        # a few seconds later
        said = cut_short(leader, "measuring")
    result = result_in(tmp_path / "out", RunResult)
    counted(result)
    assert result["interrupted"], said
    assert 2 < result["duration_s"] < 30
    assert result["rate"]["achieved_per_s"] * result["duration_s"] <= result["totals"]["acquired"]
    assert result["outcomes"]["acquired"] > 0.5 * result["totals"]["acquired"]
    assert (keys(fleet), left(tmp_path)) == (0, [])


@pytest.mark.parametrize("resources", [1, pytest.param(16, marks=pytest.mark.slow)])
def test_a_lock_that_does_not_hold_is_caught_in_a_chosen_resource(
    tmp_path: Path, fleet: Fleet, resources: int
) -> None:
    """Callers of two hosts believe in a lock that all read as free at once.

    One resource travels in any case.
    """
    flaw = (
        "--recipe",
        "get-set",
        "--pause",
        "after-get:50ms:0.5",
        "--hold",
        "100ms",
        "--users",
        32,
    )
    port = free_port()
    here = (
        "--expect-workers",
        2,
        "--bind",
        f"127.0.0.1:{port}",
        "--out",
        "out",
        "--duration",
        "5s",
    )
    words = ("run", *flaw, "--target", fleet.urls[0], "--resources", resources, *here)
    leader = started(tmp_path, *words, **{BUDGET_VARIABLE: "1"})
    with workers(tmp_path, port, *map(ahead, AHEAD)):
        code, result, said = finished(leader, tmp_path)
    assert (code, result["verdict"]["word"]) == (5, "VIOLATED"), said
    assert result["safety"]["service_faults"] > 0
    assert (result["safety"]["judged_ratio"] < 1) == (resources > 1)
    assert {
        operation["resource"]
        for one in result["safety"]["examples"]
        for operation in one["operations"]
    } == {0}
