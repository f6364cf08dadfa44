"""An exporter in a process of its own: *a worker's folder, what it runs → OTLP, until told to finish*.

Rules: `finish` exports the rest; the worker's death ends it at once. What there is to say goes to stderr, one line
each. Source: export.py, which tells it; bench.topology.child.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from bench.errors import BenchError
from bench.telemetry.exporter import Exporter, Sources
from bench.telemetry.run import Run, address_of, policy_of
from bench.telemetry.settings import TelemetrySettings, settings_of
from bench.topology.child import orders
from bench.topology.probe import InfoWatch, inspect
from bench.workloads.export import FINISH, ExportOrder


def main() -> int:
    """Export until told to end. Returns an exit code."""
    order, settings = next(orders(ExportOrder), None), settings_of(os.environ)
    if order is None or settings is None:
        return 0
    try:
        watch = InfoWatch(order.targets)
        sources = Sources(infos=lambda: watch.infos)
        exporter = Exporter(_own_port(settings, order.worker), _run(order), order.folder, sources)
    except BenchError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    exporter.start()
    if order.worker == 0:  # one of them is enough to ask the servers
        watch.start()
    if next(orders(str), None) == FINISH:
        watch.stop()
        sys.stderr.writelines(f"{warning}\n" for warning in exporter.finish())
    else:
        exporter.abort()
    return 0


def _run(order: ExportOrder) -> Run:
    facts = inspect(order.targets, allow_missing=True)
    addresses = [address_of(fact.address) for fact in facts]
    policy = policy_of(fact.fsync for fact in facts)
    instance = f"{order.run.id}-{order.worker}-{os.getppid()}"
    return replace(order.run, addresses=addresses, fsync=policy, instance=instance)


def _own_port(settings: TelemetrySettings, worker: int) -> TelemetrySettings:
    """Each worker of a host has a page of its own, on consecutive ports."""
    if settings.page is None:
        return settings
    host, port = settings.page
    return replace(settings, page=(host, port + worker if port else 0))


if __name__ == "__main__":
    sys.exit(main())
