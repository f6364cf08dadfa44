"""Searches for a capacity that is known: the truth lies inside the interval, and no word is
wrong."""

import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.experiments.capacity.result import CapacityResult
from tests.doubles.queueing import (
    Service,
    ServingInstance,
    capacity_of,
    constant,
    delaying,
    idling,
    stalling,
)
from tests.integration.locust_runs import result_in, started

pytestmark = pytest.mark.integration

# So many keys that no two acquires meet on one: each that does costs the server another SET.
PATIENT = ("--quick", "--instance-timeout", "2s", "--wait", "5s", "--resources", "100000")
BURNER = (sys.executable, "-c", "while True: pass")


class Known(NamedTuple):
    """A server, what is asked of it, and a rate that it certainly does not bear (0: it bears none).
    The limit is below lockcore's lag cap of 50 ms: an instance that is later is left alone, so
    acquires fail that would be in time."""

    name: str
    service: Callable[[], Service]
    percentile: int
    limit_ms: int
    arrivals: str
    most: float

    @property
    def truth(self) -> float:
        """The rate that half of the probes hold, leases/s."""
        return self.most and capacity_of(
            self.service(),
            self.most,
            limit_s=self.limit_ms / 1000,
            share=1 - self.percentile / 100,
            is_poisson=self.arrivals == "poisson",
        )


KNOWN = (
    Known("constant 10 ms", lambda: constant(0.010), 90, 35, "fixed", 120),
    Known("constant 4 ms", lambda: constant(0.004), 90, 35, "fixed", 300),
    Known("constant 2 ms", lambda: constant(0.002), 90, 35, "fixed", 600),
    Known("M/D/1 10 ms", lambda: constant(0.010), 99, 45, "poisson", 120),
    Known("M/D/1 4 ms", lambda: constant(0.004), 99, 45, "poisson", 300),
    Known("M/D/1 2 ms", lambda: constant(0.002), 99, 30, "poisson", 600),
    Known("4 ms, stalls of 15 ms", lambda: stalling(0.004, 0.5, 0.015), 99, 45, "poisson", 300),
    Known("2 ms, stalls of 20 ms", lambda: stalling(0.002, 1.0, 0.020), 99, 45, "poisson", 600),
    Known("2 ms, 60 ms after a rest", lambda: idling(0.002, 0.020, 0.060), 99, 45, "poisson", 600),
    Known("a delay of 100 ms", lambda: delaying(0.100), 99, 45, "poisson", 0),
)


class Search(NamedTuple):
    """What one search said, in leases/s; high is inf where nothing bounds it."""

    name: str
    is_beside: bool
    word: str
    low: float
    high: float
    truth: float
    probes: int
    seconds: float
    load: float

    @property
    def is_inside(self) -> bool:
        """Whether the truth lies in the interval."""
        return self.low <= self.truth <= self.high

    @property
    def is_right(self) -> bool:
        """Whether the word can stand beside the truth."""
        expected = {
            "FOUND": self.truth > 0 and self.is_inside,
            "NOT KEPT": self.truth == 0,
            "INCONCLUSIVE": True,
        }
        return expected.get(self.word, False)


@contextlib.contextmanager
def beside(program: tuple[str, ...]) -> Iterator[None]:
    """While another process runs."""
    process = subprocess.Popen(program)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def search(out: Path, known: Known, *options: str, is_beside: bool = False) -> Search:
    """Search for the capacity of a server."""
    begun_s = time.monotonic()
    slo = f"acquire.p{known.percentile} < {known.limit_ms}ms"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ServingInstance(known.service()))
        if is_beside:
            stack.enter_context(beside(BURNER))
        words = (
            "--slo",
            slo,
            "--arrivals",
            known.arrivals,
            "--target",
            server.url,
            "--out",
            out,
            *PATIENT,
            *options,
        )
        process = stack.enter_context(started(out.parent, "capacity", *words))
        _, complaint = process.communicate(timeout=240)
    assert process.returncode in (0, 1, 4), complaint
    result = result_in(out, CapacityResult)
    capacity = result["points"][0]["capacity"]
    probes = result["points"][0]["probes"]
    return Search(
        known.name,
        is_beside,
        result["verdict"]["word"],
        capacity["low"] or 0.0,
        capacity["high"] or math.inf,
        known.truth,
        len(probes),
        time.monotonic() - begun_s,
        os.getloadavg()[0],
    )


@pytest.mark.slow
def test_of_twenty_known_capacities_nineteen_lie_inside_and_no_word_is_wrong(
    tmp_path: Path,
) -> None:
    found = list[Search]()
    for number, known in enumerate(KNOWN * 2):
        found.append(search(tmp_path / str(number), known, is_beside=number >= len(KNOWN)))
        print(found[-1])
    assert all(one.is_right for one in found), found
    assert sum(one.is_inside for one in found) >= 19, found
    assert sum(one.word in ("FOUND", "NOT KEPT") for one in found) >= 12, found


SHORT = ("--duration", "500ms", "--warmup", "100ms", "--budget", "10s")


@pytest.mark.parametrize("known", [KNOWN[1], KNOWN[4], KNOWN[9]], ids=lambda known: known.name)
def test_a_short_search_contradicts_no_known_capacity(known: Known, tmp_path: Path) -> None:
    found = search(tmp_path / "out", known, *SHORT)
    assert found.is_right, found
    assert found.is_inside, found
