"""Which faults can be had here: *a server → the kinds it can have, and for each other one the reason*.

Rules: tried, not guessed: one throw-away server is started with everything that faults need, and each kind is asked.
"""

from collections.abc import Mapping
from typing import Any

from bench.errors import BenchError
from bench.scenario.model import Fault
from bench.topology.faults.injection import Injection
from bench.topology.faults.kinds import KINDS, injection, needs_of, read_faults
from bench.topology.faults.site import Site
from bench.topology.fleet import start_fleet
from bench.topology.server import ServerBinary

_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "proxy": {"delay": "5ms"},
    "clock-jump": {"by": "5s"},
    "clock-rate": {"rate": 1.1},
    "client-pause": {"mode": "write"},
}


def why_not_here(server: ServerBinary) -> dict[str, str | None]:
    """Every kind of fault with the reason why this machine cannot inject it into `server`, or None if it can.

    Takes about 0.2 s. Raises EnvironmentNotReadyError when the server does not even start.
    """
    orders = read_faults(
        Fault(kind, 0.0, 1000.0 if kind == "loading" else None, ("instance:0",), "fixed", _EXAMPLES.get(kind, {}))
        for kind in KINDS
    )
    with (
        Site(needs_of(orders)) as site,
        start_fleet(1, server=server, environment=site.environment, config=site.config(server)) as fleet,
    ):
        site.attach(fleet)
        return {order.kind: _reason(injection(site, order)) for order in orders}


def _reason(fault: Injection) -> str | None:
    try:
        return fault.why_not()
    except BenchError as error:
        return str(error)
