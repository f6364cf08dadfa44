"""A visit's counters: a server that did not live through the load takes the cell with it; a silent
one does not."""

from contextlib import nullcontext
from typing import Any

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.experiments.durability import price_experiment as experiment
from bench.experiments.durability.price_experiment import rewrite_now, servers_did
from bench.experiments.durability.price_result import known_sum
from bench.experiments.durability.servers import CellServers
from bench.topology.probe import InfoSnapshot


def snapshot(values: dict[str, Any] | None, at_s: int, missing: str | None = None) -> InfoSnapshot:
    return InfoSnapshot("127.0.0.1:7000", at_s * 1_000_000_000, values, missing)


def info(run_id: str = "a", cpu_s: float = 1.0) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "used_cpu_sys": cpu_s,
        "used_cpu_user": 0.0,
        "aof_delayed_fsync": 3,
        "aof_rewrites": 0,
    }


def test_what_servers_did_is_the_difference() -> None:
    (did,) = servers_did([snapshot(info(), 0)], [snapshot(info(cpu_s=1.5), 2)])
    assert (did.cpu_s, did.aof["aof_delayed_fsync"]) == (pytest.approx(0.5), 0)


@pytest.mark.parametrize("after", [snapshot(None, 2, "connection refused"), snapshot(info("b"), 2)])
def test_a_server_that_did_not_live_through_the_load_is_named(after: InfoSnapshot) -> None:
    with pytest.raises(
        EnvironmentNotReadyError, match="127.0.0.1:7000 did not live through the load"
    ):
        servers_did([snapshot(info(), 0)], [after])


def test_a_server_that_may_not_tell_is_measured_all_the_same() -> None:
    (did,) = servers_did(
        [snapshot(None, 0, "INFO is not allowed")], [snapshot(None, 2, "INFO is not allowed")]
    )
    assert (did.cpu_s, did.aof, did.elapsed_s) == (None, {}, pytest.approx(2.0))
    assert known_sum([1, None]) is None


class Rewriting:
    """A server, its shim and a clock: a thousand fsyncs/s while the load lasts, none in the rest of
    a rewrite."""

    def __init__(self, load_s: float, rewrite_s: float) -> None:
        self.now_s = 0.0
        self._load_s = load_s
        self._rewrite_s = rewrite_s

    @property
    def syncs(self) -> float:
        return 1000 * min(self.now_s, self._load_s)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def bgrewriteaof(self) -> None:
        self.sleep(0.001)

    def info(self, _section: str) -> dict[str, bool]:
        self.sleep(0.0003)
        return {
            "aof_rewrite_in_progress": self.now_s < self._rewrite_s,
            "aof_rewrite_scheduled": False,
        }


@pytest.mark.parametrize(
    "load_s, rewrite_s, wanted",
    [(0.35, 0.1, 1000), (0.35, 2.0, 1000), (0.35, 40.0, None), (0.0, 2.0, None)],
)
def test_a_rewrite_that_outlasts_the_load_is_counted_while_the_load_lasts(
    monkeypatch: pytest.MonkeyPatch, load_s: float, rewrite_s: float, wanted: float | None
) -> None:
    server = Rewriting(load_s, rewrite_s)
    monkeypatch.setattr(experiment, "time", server)
    monkeypatch.setattr(experiment, "client_of", lambda *_: nullcontext(server))
    shims: tuple[Any, ...] = (server,)
    servers = CellServers(("redis://127.0.0.1:7000",), True, None, lambda _: None, controls=shims)
    assert rewrite_now(servers, load_s) == (None if wanted is None else pytest.approx(wanted))
