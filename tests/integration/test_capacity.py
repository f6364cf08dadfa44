"""`lockbench capacity` on real processes: what is found, and what is kept when it is cut short."""

import contextlib
import math
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.experiments.capacity.result import CapacityResult
from tests.conftest import Ended
from tests.doubles.queueing import QueueingInstance
from tests.integration.locust_runs import result_in, started, until

pytestmark = pytest.mark.integration

# N, leases/s
KNOWN = [(n, rate) for rate in (100, 500, 1000) for n in (1, 3, 5)] + [(1, 2000)]
# ±15 %
NARROW = 1.15 / 0.85
CAPACITY = ("capacity", "--duration", "1s", "--warmup", "300ms", "--quick")


def test_what_was_probed_before_ctrl_c_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "cut"
    words = (
        *CAPACITY,
        "--out",
        out,
        "--slo",
        "acquire.p99 < 1s",
        "--instances",
        "1",
        "--processes",
        "2",
        "--users",
        "4",
    )
    with started(tmp_path, *words) as process:
        until(
            (out / "probes" / "02" / "result.json").exists,
            "the first probe behind the closed loop",
            60,
        )
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    result = result_in(out, CapacityResult)
    assert result["interrupted"]
    probes = result["points"][0]["probes"]
    # one closed loop before them: no more callers are allowed
    assert 1 <= len(probes) <= 3
    assert result["verdict"]["word"] == "INTERRUPTED"
    assert "leases/s" in said or "lockbench found no rate that keeps the SLO" in said
    assert all(f"{probe['rate_per_s']:,.0f}" in said for probe in probes)


def test_a_target_that_cannot_be_reached_leaves_nothing(
    lockbench: Callable[..., Ended], tmp_path: Path
) -> None:
    target = ("--target", "redis://127.0.0.1:1", "--out", "none")
    done = lockbench(*CAPACITY, "--slo", "acquire.p99 < 1s", *target)
    assert (done.returncode, done.stdout) == (3, "")
    assert "cannot use 1 of 1 targets" in done.stderr
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_of_twenty_searches_nineteen_hold_the_known_capacity(tmp_path: Path) -> None:
    found = list[Search]()
    for number, (instances, known) in enumerate(KNOWN * 2):
        found.append(known_capacity(tmp_path / str(number), instances, known))
        print(instances, found[-1])
    assert sum(search.low <= search.known <= search.high for search in found) >= 19, found
    assert sum(search.high / search.low <= NARROW for search in found if search.low) >= 19, found


@pytest.mark.slow
def test_of_twenty_searches_on_one_fleet_nineteen_intervals_overlap(tmp_path: Path) -> None:
    """Nineteen have a rate in common: that is so just when some end of an interval lies in
    nineteen. One key bounds this fleet: what shares the cores changes its capacity least."""
    options = ["--quick", "--slo", "acquire.p90 < 40ms", "--hold", "5ms", "--resources", "1"]
    found = list[tuple[float, float]]()
    for number in range(20):
        found.append(interval(tmp_path / str(number), options))
        print(found[-1])
    assert max(sum(low <= end <= high for low, high in found) for end, _ in found) >= 19, found
    assert all(0 < low < high < math.inf for low, high in found), found


class Search(NamedTuple):
    """What one search said of servers of a known capacity, all in leases/s; high is inf where
    nothing bounds it."""

    known: float
    low: float
    high: float


def known_capacity(out: Path, instances: int, known: float) -> Search:
    """What capacity says of so many servers that bear `known` leases/s. The SLO is stricter than
    lockcore's lag cap of 50 ms. Past it an instance is left alone until it has caught up: a lease
    then costs a quorum's work and not everybody's, so N instances bear up to N ÷ quorum of the
    rate, late."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(QueueingInstance(1 / (2 * known))) for _ in range(instances)]
        targets = [word for server in servers for word in ("--target", server.url)]
        options = ["--slo", "acquire.p90 < 35ms", "--arrivals", "fixed", "--quick", *targets]
        return Search(known, *interval(out, options))


def interval(out: Path, options: Sequence[str]) -> tuple[float, float]:
    """The ends that one search says."""
    with started(out.parent, "capacity", *options, "--out", out) as process:
        _, complaint = process.communicate(timeout=240)
    assert process.returncode in (0, 4), complaint
    capacity = result_in(out, CapacityResult)["points"][0]["capacity"]
    return capacity["low"] or 0.0, capacity["high"] or math.inf
