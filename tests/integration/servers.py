"""The servers of this machine that tests run on, and faults on those that were started."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.scenario import Fault
from bench.topology.faults.injection import Injection
from bench.topology.faults.kinds import injection, read_faults
from bench.topology.fleet import Fleet, KeptPort, start_fleet
from bench.topology.server import found_servers

SERVERS = list(found_servers())
every_server = pytest.mark.parametrize(
    "server", SERVERS, ids=lambda server: f"{server.name}-{server.version}"
)


def fault(fleet: Fleet, kind: str, **params: object) -> Injection:
    """A fault as a scenario orders it, until it is ended."""
    (order,) = read_faults([Fault(kind, 0.0, None, ("instance:0",), "fixed", params)], seed=7)
    return injection(fleet, order)


@contextmanager
def cluster_node() -> Iterator[Fleet]:
    """One server in cluster mode.

    By itself it would also take its port + 10,000, which may be anybody's.
    """
    bus = KeptPort()
    config = ["--cluster-enabled", "yes", "--cluster-port", str(bus.number)]
    try:
        with start_fleet(1, "none", config=config) as fleet:
            yield fleet
    finally:
        bus.release()
