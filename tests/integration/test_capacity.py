"""`lockbench capacity` on real processes: what is found, and what is kept when it is cut short."""

import contextlib
import math
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.experiments.capacity.result import CapacityResult
from tests.conftest import Ended
from tests.doubles.queueing import QueueingInstance
from tests.integration.locust_runs import result_in, started, until

pytestmark = pytest.mark.integration

SERVICE_S = 0.004  # per command: 125 leases/s; long beside the moments a busy machine takes from everybody
NARROW = 1.15 / 0.85  # ±15 %
CAPACITY = ("capacity", "--duration", "1s", "--warmup", "300ms", "--quick")


def test_what_was_probed_before_ctrl_c_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "cut"
    words = (*CAPACITY, "--out", out, "--slo", "acquire.p99 < 1s", "--instances", "1")
    with started(tmp_path, *words) as process:
        until((out / "probes" / "05" / "result.json").exists, "the first probe behind the closed loops", 60)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    result = result_in(out, CapacityResult)
    assert result["interrupted"]
    probes = result["points"][0]["probes"]
    assert 1 <= len(probes) <= 3  # four closed loops before them, or fewer
    assert result["verdict"]["word"] == "INTERRUPTED"
    assert "leases/s" in said or "no rate is known to hold" in said
    assert all(f"{probe['rate_per_s']:,.0f}" in said for probe in probes)


def test_a_target_that_cannot_be_reached_leaves_nothing(lockbench: Callable[..., Ended], tmp_path: Path) -> None:
    target = ("--target", "redis://127.0.0.1:1", "--out", "none")
    done = lockbench(*CAPACITY, "--slo", "acquire.p99 < 1s", *target)
    assert (done.returncode, done.stdout) == (3, "")
    assert "cannot be used" in done.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize("instances", [1, 3, 5])
@pytest.mark.parametrize("service_s", [0.004, 0.001])
def test_the_known_capacity_of_queueing_servers_lies_in_the_interval(
    tmp_path: Path, instances: int, service_s: float
) -> None:
    found = known_capacity(tmp_path, instances, service_s)
    assert inside(found, service_s), found
    assert found["high"] / found["low"] <= NARROW, found


@pytest.mark.slow
def test_of_twenty_searches_nineteen_hold_the_known_capacity(tmp_path: Path) -> None:
    found = [known_capacity(tmp_path / str(number), 3, SERVICE_S) for number in range(20)]
    assert sum(inside(one, SERVICE_S) for one in found) >= 19, found
    assert sum(one["high"] / one["low"] <= NARROW for one in found if one["low"] and one["high"]) >= 19, found


@pytest.mark.slow
def test_of_twenty_searches_on_one_fleet_nineteen_intervals_overlap(tmp_path: Path) -> None:
    """Nineteen have a rate in common: that is so just when some end of an interval lies in nineteen."""
    found = list[tuple[float, float]]()
    for number in range(20):
        out = tmp_path / str(number)
        options = ["--quick", "--slo", "acquire.p99 < 20ms", "--hold", "5ms"]
        with started(tmp_path, "capacity", *options, "--out", out) as process:
            _, complaint = process.communicate(timeout=240)
        assert process.returncode in (0, 4), complaint
        capacity = result_in(out, CapacityResult)["points"][0]["capacity"]
        found.append((capacity["low"] or 0.0, capacity["high"] or math.inf))
    assert max(sum(low <= end <= high for low, high in found) for end, _ in found) >= 19, found


def inside(found: Mapping[str, Any], service_s: float) -> bool:
    """Whether the capacity of servers with this service time lies in the interval."""
    return (found["low"] or 0.0) <= 1 / (2 * service_s) <= (found["high"] or math.inf)


def known_capacity(out: Path, instances: int, service_s: float) -> Mapping[str, Any]:
    """What capacity says of so many servers of `service_s` per command. The SLO is stricter than lockcore's lag cap of
    50 ms. Past it an instance is left alone until it has caught up: a lease then costs a quorum's work and not
    everybody's, so N instances bear up to N ÷ quorum of the rate, late."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(QueueingInstance(service_s)) for _ in range(instances)]
        targets = [word for server in servers for word in ("--target", server.url)]
        options = ["--slo", "acquire.p90 < 35ms", "--arrivals", "fixed", "--quick", *targets]
        with started(out.parent, "capacity", *options, "--out", out) as process:
            _, complaint = process.communicate(timeout=240)
    assert process.returncode in (0, 4), complaint
    capacity: Mapping[str, Any] = result_in(out, CapacityResult)["points"][0]["capacity"]
    return capacity
