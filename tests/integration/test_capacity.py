"""`lockbench capacity` on real processes: what is found, and what is kept when it is cut short."""

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.experiments.capacity.result import CapacityResult
from tests.conftest import Ended
from tests.doubles.queueing import QueueingInstance
from tests.integration.locust_runs import result_in, started, until

pytestmark = pytest.mark.integration

SERVICE_S = 0.004  # per command: 125 leases/s; long beside the moments a busy machine takes from everybody
LOOKS = 3
CAPACITY = ("capacity", "--duration", "1s", "--warmup", "300ms", "--no-callers", "--quick")


def test_what_was_probed_before_ctrl_c_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "cut"
    words = (*CAPACITY, "--out", out, "--slo", "acquire.p99 < 1s", "--instances", "1")
    with started(tmp_path, *words) as process:
        until((out / "probes" / "02" / "result.json").exists, "the first probe behind the pilot", 60)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    result = result_in(out, CapacityResult)
    assert result["interrupted"]
    (probe,) = result["points"][0]["probes"]
    assert result["verdict"]["word"] == "INTERRUPTED"
    held = probe["seen"] == "held"  # a machine that stands still keeps no rate
    assert (f"≥ {probe['rate_per_s']:,.0f} leases/s" if held else "no rate at") in said
    assert f"{probe['rate_per_s']:,.0f}" in said


def test_a_target_that_cannot_be_reached_leaves_nothing(lockbench: Callable[..., Ended], tmp_path: Path) -> None:
    target = ("--target", "redis://127.0.0.1:1", "--out", "none")
    done = lockbench(*CAPACITY, "--slo", "acquire.p99 < 1s", *target)
    assert (done.returncode, done.stdout) == (3, "")
    assert "cannot be used" in done.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize("instances", [1, 3, 5])
def test_the_known_capacity_of_queueing_servers_is_found_within_five_per_cent(tmp_path: Path, instances: int) -> None:
    """The SLO is stricter than lockcore's lag cap of 50 ms. Past it an instance is left alone until it has caught up:
    a lease then costs a quorum's work and not everybody's, so N instances bear up to N ÷ quorum of the rate, late."""
    true, found = pytest.approx(1 / (2 * SERVICE_S), rel=0.05), list[float]()
    while (not found or found[-1] != true) and len(found) < LOOKS:  # other processes take time from the servers
        found.append(known_capacity(tmp_path / str(len(found)), instances))
    assert found[-1] == true, found


def known_capacity(out: Path, instances: int) -> float:
    """What capacity says of so many servers of SERVICE_S per command: leases/s."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(QueueingInstance(SERVICE_S)) for _ in range(instances)]
        targets = [word for server in servers for word in ("--target", server.url)]
        options = ["--slo", "acquire.p90 < 35ms", "--arrivals", "fixed", *targets]
        with started(out.parent, *CAPACITY, *options, "--duration", "4s", "--out", out) as process:
            _, complaint = process.communicate(timeout=900)
    assert process.returncode in (0, 4), complaint
    return float(result_in(out, CapacityResult)["points"][0]["capacity"]["low"])
