"""Telemetry of a worker that nobody follows: *a plain `locust` worker's folder → OTLP, by a process
beside it*.

Rules: imported only where OTEL_* variables ask for it; what it has to say stands in Locust's log.
"""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.errors import BenchError
from bench.telemetry.exporter import Exporter
from bench.telemetry.run import Run
from bench.telemetry.settings import settings_of
from bench.topology.child import Child, orders
from bench.topology.probe import InfoWatch, inspect
from bench.topology.target import databases_of
from bench.workloads.plan import Plan

END_S = 10.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """What the exporter is told: whose `folder` it reads, as worker number `worker` of its host,
    and what that runs."""

    folder: Path
    worker: int
    targets: tuple[str, ...]
    run: Run


def export_beside(plan: Plan, index: int, folder: Path, workers: int) -> Callable[[], None]:
    """Export what the worker `index` of `workers` writes into `folder`; call what is returned when
    that is complete."""
    child = Child("the exporter", __name__)

    def finish() -> None:
        child.finish(END_S)
        for line in child.last_words():
            logger.warning(line)
        child.close()

    run = Run.of(plan.scenario, plan.run_id, 1, shares=workers)
    with suppress(BenchError):
        child.tell(ExportOrder(folder, index, tuple(plan.targets), run))
    return finish


# -- in the exporter's process ---------------------------------------------------------------------


def main() -> int:
    """Export until told to end. Returns an exit code."""
    order = next(orders(ExportOrder), None)
    settings = settings_of(os.environ)
    if order is None or settings is None:
        return 0
    try:
        # one of them is enough to ask the servers
        watch = InfoWatch(order.targets) if order.worker == 0 else None
        facts = inspect(order.targets, allow_missing=True)
        run = order.run.on_servers(
            facts, databases_of(order.targets), f"-{order.worker}-{os.getppid()}"
        )
        # each worker of a host has one of its own, on consecutive ports
        if settings.page is not None:
            host, port = settings.page
            settings = replace(settings, page=(host, port + order.worker if port else 0))
        exporter = Exporter(settings, run, order.folder, watch=watch)
    except BenchError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    exporter.start()
    # there is none: its end is the run's
    next(orders(str), None)
    sys.stderr.writelines(f"{warning}\n" for warning in exporter.finish())
    return 0


if __name__ == "__main__":
    sys.exit(main())
