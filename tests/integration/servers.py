"""The servers of this machine that tests run on, and faults on those that were started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.scenario import Fault
from bench.topology.faults.injection import Injection
from bench.topology.faults.kinds import injection, read_faults
from bench.topology.faults.site import Need, Site
from bench.topology.fleet import Fleet, KeptPort, start_fleet
from bench.topology.server import ServerBinary, find_server, found_servers

SERVERS = [server for server in found_servers() if isinstance(server, ServerBinary)]
every_server = pytest.mark.parametrize("server", SERVERS, ids=lambda server: f"{server.name}-{server.version}")


@contextmanager
def prepared(
    needs: frozenset[Need], instances: int = 1, fsync: str = "everysec", server: ServerBinary | None = None, **more: Any
) -> Iterator[Site]:
    """Servers on which faults with these needs can take place."""
    server = server or find_server()
    with (
        Site(needs) as site,
        start_fleet(
            instances, fsync, server=server, environment=site.environment, config=site.config(server), **more
        ) as fleet,
    ):
        site.attach(fleet)
        yield site


def fault(site: Site, kind: str, target: str = "instance:0", **params: object) -> Injection:
    """A fault as a scenario orders it, until it is ended."""
    (order,) = read_faults([Fault(kind, 0.0, None, (target,), "fixed", params)], seed=7)
    return injection(site, order)


@contextmanager
def cluster_node() -> Iterator[Fleet]:
    """One server in cluster mode. By itself it would also take its port + 10,000, which may be anybody's."""
    bus = KeptPort()
    config = ["--cluster-enabled", "yes", "--cluster-port", str(bus.number)]
    try:
        with start_fleet(1, "none", config=config) as fleet:
            yield fleet
    finally:
        bus.release()
