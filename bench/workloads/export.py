"""This module exports the telemetry of a worker of plain `locust`: *the files in the worker's
folder → OTLP messages that a separate process sends*. In a run that `lockbench run` started,
another module sends the telemetry.

This module is imported only if OTEL_* variables request telemetry. Its messages go to Locust's log.
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
    """The message that tells the exporter process what to export.

    `folder`: the folder into which the worker writes. `worker`: the number of the worker.
    `targets`: the URLs of the servers. `run`: the description of the run.
    """

    folder: Path
    worker: int
    targets: tuple[str, ...]
    run: Run


def export_beside(plan: Plan, index: int, folder: Path, workers: int) -> Callable[[], None]:
    """Export the files that worker `index` of `workers` writes into `folder`.

    Returns a function that ends the export. Call this function when the files are complete.
    """
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
    """Export until the worker closes its pipe. Returns an exit code."""
    order = next(orders(ExportOrder), None)
    settings = settings_of(os.environ)
    if order is None or settings is None:
        return 0
    try:
        # It is enough if one exporter asks the servers, so only the exporter of worker 0 asks.
        watch = InfoWatch(order.targets) if order.worker == 0 else None
        facts = inspect(order.targets, allow_missing=True)
        run = order.run.on_servers(
            facts, databases_of(order.targets), f"-{order.worker}-{os.getppid()}"
        )
        # Each worker has its own metrics page. The ports of the pages are consecutive.
        if settings.page is not None:
            host, port = settings.page
            settings = replace(settings, page=(host, port + order.worker if port else 0))
        exporter = Exporter(settings, run, order.folder, watch=watch)
    except BenchError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    exporter.start()
    # No other order comes after this order. When the pipe closes, the run has ended.
    next(orders(str), None)
    sys.stderr.writelines(f"{warning}\n" for warning in exporter.finish())
    return 0


if __name__ == "__main__":
    sys.exit(main())
