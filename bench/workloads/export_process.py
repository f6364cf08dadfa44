"""An exporter in a process of its own: *a worker's folder, what it runs on stdin → OTLP, until stdin says so*.

Rules: the first line is the order (JSON; it holds URLs with their passwords, so it comes by pipe); the line `finish`
exports the rest, and an end of file without it, the worker's death, ends at once. What there is to say goes to stderr,
one line each. Source: export.py.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.telemetry.exporter import Sources, open_exporter
from bench.telemetry.run import Run, address_of, policy_of
from bench.telemetry.settings import TelemetrySettings, settings_of
from bench.topology.info_watch import InfoWatch
from bench.topology.probe import inspect


def main(folder: Path) -> int:
    """Export until told to end. Returns an exit code."""
    order = json.loads(sys.stdin.readline() or "{}")
    try:
        settings = settings_of(os.environ)
        if not order or settings is None:
            return 0
        watch = InfoWatch(order["targets"])
        sources = Sources(infos=lambda: watch.infos)
        exporter = open_exporter(_own_port(settings, order["worker"]), _run(order), folder, sources)
    except BenchError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    exporter.start()
    if order["worker"] == 0:  # one of them is enough to ask the servers
        watch.start()
    if sys.stdin.readline().strip() == "finish":
        watch.stop()
        sys.stderr.writelines(f"{warning}\n" for warning in exporter.finish())
    else:
        exporter.abort()
    return 0


def _run(order: dict[str, Any]) -> Run:
    run = order["run"]
    facts = inspect(order["targets"], allow_missing=True)
    addresses = [address_of(fact.address) for fact in facts]
    policy = policy_of(fact.fsync for fact in facts)
    return Run(
        **{**run, "addresses": addresses, "fsync": policy, "instance": f"{run['id']}-{order['worker']}-{os.getppid()}"}
    )


def _own_port(settings: TelemetrySettings, worker: int) -> TelemetrySettings:
    """Each worker of a host has a page of its own, on consecutive ports."""
    if settings.page is None:
        return settings
    host, port = settings.page
    return replace(settings, page=(host, port + worker if port else 0))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
