"""A run that can be watched: *a scenario → the run with Prometheus around it; every panel's answer beside the result*.

Rules: the run is that of `lockbench run`, its result and exit code too; what watches it never decides them. The panels
are asked when Prometheus has seen the run's last word. What was measured is kept, and shown, whatever happens to the
panels: Ctrl-C while they are asked leaves only them away.
Source: result.py.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.experiments.observe.panels import Watched, ask_boards, read_boards
from bench.experiments.observe.query import Prometheus
from bench.experiments.observe.result import Panels
from bench.experiments.observe.watch import SCRAPE_S, Watch
from bench.measure.run_result import RunResult
from bench.run.follow import Show
from bench.run.interrupt import Interrupts
from bench.run.run import Order, run_scenario
from bench.run.verdict import INTERRUPTED, Done

PANELS_NAME = "panels.json"
LAST_WORD_S = 10.0


@dataclass(frozen=True, slots=True)
class Observed:
    """The run, and its panels; `panels` None = there are none. `why`: the reason, or that they show less than it."""

    finished: Done[RunResult]
    panels: Panels | None
    path: Path | None
    why: str = ""


def observe(order: Order, show: Show, watch: Watch) -> Observed:
    """Run `order` with `watch` around it and store its panels beside its result. Raises as run_scenario does."""
    start_s = time.time()
    with Interrupts() as interrupts:
        finished = run_scenario(order, interrupts, show)
        try:
            interrupts.raising = True
            end_s = _last_word_s(watch.prometheus, order.run_id, start_s)
            panels = _panels(order, watch, Watched(order.run_id, start_s, end_s, SCRAPE_S))
            path = write_panels(panels, order.folder) if order.folder else None
            missed = _missed(watch.prometheus, finished, order.run_id, start_s, end_s)
        except BenchError as error:
            return Observed(finished, None, None, str(error))
        except KeyboardInterrupt:
            return Observed(replace(finished, exit_code=INTERRUPTED), None, None, "interrupted, so no panels")
        return Observed(finished, panels, path, missed)


def _last_word_s(prometheus: Prometheus, run: str, start_s: float) -> float:
    """When Prometheus last saw the run, once it has seen it after the run's end.

    Raises EnvironmentNotReadyError when it has seen nothing at all.
    """
    ended_s = time.time()
    seen_s = 0.0
    while time.time() < ended_s + LAST_WORD_S:
        now_s = time.time()
        raw = prometheus.at(f'redlock_run_info{{redlock_run_id="{run}"}}[{now_s - start_s + 1:.0f}s]', now_s)
        seen_s = max((time_s for one in raw.series for time_s, _ in one.points), default=0.0)
        gone = not prometheus.at(f'redlock_run_info{{redlock_run_id="{run}"}}', now_s).series
        if seen_s and (gone or seen_s > ended_s + SCRAPE_S / 2):
            return seen_s
        time.sleep(SCRAPE_S / 4)
    if not seen_s:
        raise EnvironmentNotReadyError("Prometheus has seen nothing of the run, so there are no panels")
    return seen_s


def _missed(prometheus: Prometheus, finished: Done[RunResult], run: str, start_s: float, end_s: float) -> str:
    """A sentence where the boards show less than the result: a busy Prometheus comes late, or not at all."""
    counted_as = f'redlock_acquire_outcomes_total{{redlock_run_id="{run}"}}'
    answer = prometheus.at(f"sum(last_over_time({counted_as}[{end_s - start_s + 1:.0f}s]))", end_s)
    seen = int(next((one.last for one in answer.series if one.last), 0))
    every = finished.result.totals.total
    if seen == every:
        return ""
    return f"Prometheus has not seen the end of the run: the boards show {seen:,} of its {every:,} acquires"


def _panels(order: Order, watch: Watch, watched: Watched) -> Panels:
    return Panels(
        id=order.run_id,
        command=tuple(order.command),
        start_s=round(watched.start_s, 3),
        end_s=round(watched.end_s, 3),
        step_s=watched.step_s,
        prometheus=watch.prometheus.version(),
        by_collector=watch.collector is not None,
        boards=ask_boards(watch.prometheus, read_boards(), watched),
    )


def write_panels(panels: Panels, folder: Path) -> Path:
    """Write panels.json into `folder`, whole or not at all, and return its path. Raises EnvironmentNotReadyError."""
    path = folder / PANELS_NAME
    partial = path.with_suffix(".part")
    try:
        partial.write_bytes(msgspec.json.encode(panels))
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise EnvironmentNotReadyError(f"{path} cannot be written ({error.strerror})") from None
    return path
