"""The exporter of one run, which works while the load runs: *the run's folder, read again and again
→ metrics and traces, until the result exists*.

Rules
- The exporter runs in the process that follows the load, and the exporter has the priority of this
  process. The exporter never runs in a load process. The data of the exporter are most important
  during an outage, when the load may use all cores. So a lower priority would have two
  disadvantages. First, the exporter might get no core during an outage. Second, the exporter might
  hold Python's global interpreter lock (GIL) while the exporter waits for a core. The thread that
  follows the load would then have to wait for the GIL. The work of the exporter takes at most 0.01
  of a core.
- If a collector is down, is slow or refuses data, `redlock.telemetry.dropped` counts the lost data
  and the result has a warning. The run continues unchanged.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from bench.measure.run_result import SafetyReport
from bench.measure.workers import WorkerNote, read_workers
from bench.telemetry.looks import Looks
from bench.telemetry.otlp import CLOSE_S, Otlp
from bench.telemetry.page import MetricsPage
from bench.telemetry.points import DataPoint, Snapshot, point
from bench.telemetry.run import OLD, Info, Run, current, run_points
from bench.telemetry.settings import TelemetrySettings
from bench.telemetry.table import VIOLATIONS

# Between two readings of the folder, at most this time (s) passes. The time is short, because old
# files are deleted during the run.
LOOK_S = 1.0
HURRIED_S = 1.0
# The kind of a fault, its target, and whether the fault is in force.
Fault = tuple[str, str, bool]
# How many leases have been judged so far, and the violations by kind.
Judged = tuple[int, Mapping[str, int]]


class ServerWatch(Protocol):
    """An object that asks the servers for INFO while the run lasts."""

    @property
    def infos(self) -> Sequence[Info | None]:
        """The last INFO answers, with one entry for each instance.

        The entry is None if the instance does not answer. The sequence is empty until the first
        answers arrive.
        """

    def start(self) -> None:
        """Start the INFO requests to the servers."""

    def stop(self) -> None:
        """Send the last INFO requests to the servers, then stop."""


class Exporter:
    """The exporter of one run. The processes of this run write into `folder`.

    Call `start` before the load, and `finish` once there is a result. `watch` asks the servers for
    INFO until the exporter ends. `faults` returns the faults that are in force at the time of the
    call. `judged` returns the findings of the oracle, or None if no oracle runs. The functions
    `faults` and `judged` must not block for long, and they must not raise an error.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        run: Run,
        folder: Path,
        *,
        watch: ServerWatch | None = None,
        faults: Callable[[], Sequence[Fault]] = tuple,
        judged: Callable[[], Judged | None] = lambda: None,
    ) -> None:
        """Create the exporters that `settings` request. Raises BenchError if this fails."""
        self._settings = settings
        self._run = run
        self._folder = folder
        self._watch = watch
        self._faults = faults
        self._judged = judged
        self._wall_ns = time.time_ns() - time.monotonic_ns()
        self._began_ns = time.monotonic_ns() + self._wall_ns
        self._otlp: Otlp | None = None
        self._page: MetricsPage | None = None
        resource = run.resource(settings.service_name)
        if settings.metrics or settings.traces:
            self._otlp = Otlp(settings, resource, self._wall_ns)
        if settings.page:
            self._page = MetricsPage(
                settings.page, resource, OLD * max(settings.interval_s, LOOK_S)
            )
        self._looks = Looks(run, folder, settings.one_in, self._wall_ns)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="telemetry", daemon=True)

    def start(self) -> None:
        """Start the thread that reads the run's folder once in each interval."""
        if self._watch is not None:
            self._watch.start()
        self._thread.start()

    def finish(self, safety: SafetyReport | None = None, *, hurried: bool = False) -> list[str]:
        """Export the exact totals after the load has ended.

        This method then waits for the collector and stops the exporter. `safety`: the section
        `safety` of the result. `hurried`: true if the exporter must not wait long for the
        collector, because the user is waiting. Return warnings, one sentence each. The folder must
        still exist.
        """
        self._stop_looking()
        failure = []
        try:
            self._look(time.monotonic_ns(), last=True)
            self._looks.count_all()
            self._looks.counts.rest()
            # If there is no final verdict, the findings of the oracle during the run are used.
            judged = safety is not None and safety.verdict != "UNKNOWN"
            judgement = (
                (self._looks.counts.leases, _violations(safety))
                if safety and judged
                else self._judged()
            )
            self._offer(judgement, ended=True)
        except Exception as error:  # noqa: BLE001 - telemetry never fails a run
            failure = [f"telemetry stopped: {type(error).__name__}: {error}"]
        self._close(HURRIED_S if hurried else CLOSE_S)
        warnings = [*failure, *(self._otlp.complaints() if self._otlp else self._settings.warnings)]
        if missed := self._looks.missed:
            warnings.append(f"telemetry: {missed} operations were dropped before they were counted")
        return warnings

    def close(self) -> None:
        """Stop the exporter at once, without the totals of a result. If the exporter has already
        stopped, do nothing."""
        if not self._stop.is_set():
            self._stop_looking()
            self._close(0.0)

    # -- looking -----------------------------------------------------------------------------------

    def _follow(self) -> None:
        offered_s = time.monotonic()
        while not self._stop.wait(min(self._settings.interval_s, LOOK_S)):
            # A file may vanish while it is read. Telemetry never fails a run.
            with suppress(Exception):
                self._look(time.monotonic_ns())
            if time.monotonic() - offered_s >= self._settings.interval_s - LOOK_S / 2:
                offered_s = time.monotonic()
                with suppress(Exception):
                    self._offer(self._judged())

    def _look(self, now_ns: int, *, last: bool = False) -> None:
        traces = self._otlp is not None and bool(self._settings.traces)
        infos = self._watch.infos if self._watch is not None else ()
        spans = self._looks.look(now_ns, infos, traces=traces, last=last)
        if self._otlp is not None:
            self._otlp.offer_spans(spans)

    # -- telling -----------------------------------------------------------------------------------

    def _offer(self, judged: Judged | None, *, ended: bool = False) -> None:
        now_ns = time.monotonic_ns()
        looks = self._looks
        notes = read_workers(self._folder)
        fresh = current(notes, now_ns)
        # All workers have ended. A killed worker has not reported its end.
        if ended:
            notes = _stopped(notes)
            fresh = _stopped(fresh)
        points = [
            *looks.counts.points(
                looks.tracing.exemplars if self._settings.exemplars else {}, notes, fresh
            ),
            *looks.observed.points(),
            *run_points(self._run, notes, fresh, ended=ended),
            *looks.servers.points_at(now_ns),
            *self._others(judged),
        ]
        looks.tracing.exemplars.clear()
        # All times use one offset to the wall clock, so a step of the wall clock moves no point.
        taken_ns = now_ns + self._wall_ns
        snapshot = Snapshot(self._began_ns, taken_ns, self._run.common, points)
        for sink in (self._otlp, self._page):
            if sink is not None:
                sink.offer(snapshot)

    def _others(self, judged: Judged | None) -> Iterator[DataPoint]:
        """Yield the points about safety, faults and dropped items.

        If no oracle runs, there are no points about safety.
        """
        if judged is not None:
            leases, violations = judged
            yield point("redlock.safety.judged_leases", leases)
            for kind in VIOLATIONS:
                yield point(
                    "redlock.safety.violations",
                    violations.get(kind, 0),
                    redlock_violation_kind=kind,
                )
        for kind, target, active in self._faults():
            yield point(
                "redlock.fault.active",
                int(active),
                redlock_fault_kind=kind,
                redlock_fault_target=target,
            )
        dropped = {
            **(self._otlp.dropped if self._otlp else {}),
            "attempt": self._looks.not_kept,
            "record": self._looks.missed,
        }
        for kind, number in dropped.items():
            yield point("redlock.telemetry.dropped", number, redlock_telemetry_item=kind)

    # -- ending ------------------------------------------------------------------------------------

    def _stop_looking(self) -> None:
        self._stop.set()
        if self._watch is not None:
            self._watch.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _close(self, within_s: float) -> None:
        if self._otlp is not None:
            self._otlp.close(within_s)
        if self._page is not None:
            self._page.close(4 * within_s)


def _stopped(notes: Sequence[WorkerNote]) -> list[WorkerNote]:
    return [replace(note, phase="stopped") for note in notes]


def _violations(safety: SafetyReport) -> dict[str, int]:
    """Count the violations of the section `safety` by kind."""
    counts = safety.service_faults, safety.granted_invalid, safety.foreign_deletes
    return dict(
        zip(VIOLATIONS, (*counts, safety.client_overstays, safety.spurious_refusals), strict=True)
    )
