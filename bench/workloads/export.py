"""Telemetry of a worker that nobody follows: *a plain `locust` worker's folder → an exporter in a process beside it*.

Rules: only where OTEL_* variables ask for it; the exporter hears of the worker's end, ordered or not, by the pipe
between them; what it has to say stands in Locust's log. Under `lockbench run` that command's own process exports.
Source: bench.workloads.export_process.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from bench.telemetry.run import Run
from bench.telemetry.settings import is_wanted
from bench.workloads.plan import Plan

END_S = 10.0
logger = logging.getLogger(__name__)


class ExportBeside:
    """The process. Made by `export_beside`; `finish` when the worker's files are complete."""

    def __init__(self, folder: Path, order: dict[str, object]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.workloads.export_process", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        self._write(json.dumps(order))

    def finish(self) -> None:
        """The worker has ended: wait until the rest is exported, and log what there is to say."""
        self._write("finish")
        try:
            _, said = self._process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, said = self._process.communicate()
        for line in said.decode(errors="replace").splitlines():
            logger.warning(line)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, and says why when it is asked
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()


def export_beside(plan: Plan, index: int, folder: Path) -> ExportBeside | None:
    """Export what the worker `index` writes into `folder`; None when nobody asks for it."""
    if not is_wanted(os.environ):
        return None
    scenario = plan.scenario
    run = Run(
        id=plan.run_id,
        recipe=scenario.recipe,
        fsync="unknown",  # the exporter asks
        addresses=[],
        users=scenario.users,
        processes=1,
        rate_per_s=scenario.rate_per_s,
        instance_timeout_ms=scenario.instance_timeout_ms,
    )
    return ExportBeside(folder, {"worker": index, "targets": plan.targets, "run": asdict(run)})
