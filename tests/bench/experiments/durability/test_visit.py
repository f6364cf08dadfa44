"""A visit's counters: a server that did not survive the load takes the cell with it; a silent
one does not."""

from typing import Any

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.experiments.durability.price_experiment import servers_did
from bench.experiments.durability.price_result import known_sum
from bench.topology.probe import InfoSnapshot


def snapshot(values: dict[str, Any] | None, at_s: int, missing: str | None = None) -> InfoSnapshot:
    return InfoSnapshot("127.0.0.1:7000", at_s * 1_000_000_000, values, missing)


def info(run_id: str = "a", cpu_s: float = 1.0) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "used_cpu_sys": cpu_s,
        "used_cpu_user": 0.0,
        "aof_delayed_fsync": 3,
    }


def test_what_servers_did_is_the_difference() -> None:
    (did,) = servers_did([snapshot(info(), 0)], [snapshot(info(cpu_s=1.5), 2)])
    assert (did.cpu_s, did.aof["aof_delayed_fsync"]) == (pytest.approx(0.5), 0)


@pytest.mark.parametrize("after", [snapshot(None, 2, "connection refused"), snapshot(info("b"), 2)])
def test_a_server_that_did_not_live_through_the_load_is_named(after: InfoSnapshot) -> None:
    with pytest.raises(EnvironmentNotReadyError, match="127.0.0.1:7000 did not survive the load"):
        servers_did([snapshot(info(), 0)], [after])


def test_a_server_that_may_not_tell_is_measured_all_the_same() -> None:
    (did,) = servers_did(
        [snapshot(None, 0, "this user may not call INFO")],
        [snapshot(None, 2, "this user may not call INFO")],
    )
    assert (did.cpu_s, did.aof, did.elapsed_s) == (None, {}, pytest.approx(2.0))
    assert known_sum([1, None]) is None
