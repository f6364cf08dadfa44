"""Telemetry of one run, beside the load: *the run's folder, look by look → metrics and traces,
until the result*.

Rules
- Runs in the process that follows the load, never in one that makes it, and with that process's
  priority. A thread of lower priority gets no core where the load fills all of them, as in an
  outage, when its word is needed most. While it waits for a core it may hold the interpreter's
  lock, for which the thread that follows the load waits, too. Its work is bounded: it takes 0.01 of
  a core.
- Counters at the end are those of the whole history read once more, votes patched late included:
  equal to `totals`.
- A collector that is down, slow or refusing changes nothing but `redlock.telemetry.dropped` and one
  warning.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from bench.measure.facts import Window
from bench.measure.history import HistoryTail, history_parts, read_history
from bench.measure.record import NEVER_NS, sound
from bench.measure.run_result import SafetyReport
from bench.measure.workers import WorkerNote, read_workers
from bench.telemetry.load_log import Extension, LineTail, ObservedAttempt
from bench.telemetry.otlp import CLOSE_S, Otlp
from bench.telemetry.page import MetricsPage
from bench.telemetry.points import DataPoint, Snapshot, Totals, point
from bench.telemetry.run import (
    OLD,
    Info,
    InfoTotals,
    OperationCounts,
    Run,
    count_observed,
    current,
    run_points,
)
from bench.telemetry.settings import TelemetrySettings
from bench.telemetry.table import VIOLATIONS
from bench.telemetry.traces import Tracing

# at most between two looks: files do not stay for ever
LOOK_S = 1.0
ALL_TIME = Window(0, 1 << 62)
# kind, target, in force
Fault = tuple[str, str, bool]
# leases judged by now, violations by kind
Judged = tuple[int, Mapping[str, int]]


class Exporter:
    """Exports the run whose processes write into `folder`: `start` before the load, `finish` once
    there is a result.

    `infos`, `faults`, `judged` (what an oracle knows, if one runs) are asked, too: none may block
    for long, or raise.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        run: Run,
        folder: Path,
        *,
        infos: Callable[[], Sequence[Info]] = tuple,
        faults: Callable[[], Sequence[Fault]] = tuple,
        judged: Callable[[], Judged | None] = lambda: None,
    ) -> None:
        """Raises BenchError when it cannot be made."""
        self._settings = settings
        self._run = run
        self._folder = folder
        self._infos = infos
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
        self._tracing = Tracing(run, settings.one_in, self._wall_ns, random.SystemRandom())
        self._fresh = HistoryTail(folder)
        self._settled = HistoryTail(folder)
        self._attempts = LineTail(folder, "attempts", ObservedAttempt)
        self._extensions = LineTail(folder, "extensions", Extension)
        self._counts = OperationCounts(run.quorum, time.monotonic_ns())
        self._observed = Totals()
        self._servers = InfoTotals(run.addresses)
        self._stop = threading.Event()
        self._written = self._not_kept = 0
        self._thread = threading.Thread(target=self._follow, name="telemetry", daemon=True)

    def start(self) -> None:
        """Look at the run every interval from now on."""
        self._thread.start()

    def finish(self, safety: SafetyReport | None = None, within_s: float = CLOSE_S) -> list[str]:
        """The load has ended: export everything once more, exactly, wait for the collector up to
        `within_s` (s), end.

        `safety`: that section of the result. Returns warnings, each one sentence. The folder must
        still be there.
        """
        self._stop_looking()
        failure = []
        try:
            self._look(time.monotonic_ns(), last=True)
            self._count_all()
            self._counts.rest()
            # Without a final verdict, the leases that were judged before count.
            judged = safety is not None and safety.verdict != "UNKNOWN"
            judgement = (
                (self._counts.leases, _violations(safety)) if safety and judged else self._judged()
            )
            self._offer(judgement, ended=True)
        except Exception as error:  # noqa: BLE001 - telemetry never fails a run
            failure = [f"telemetry stopped: {type(error).__name__}: {error}"]
        self._close(within_s)
        warnings = [*failure, *(self._otlp.complaints() if self._otlp else self._settings.warnings)]
        if missed := self._missed():
            warnings.append(
                f"telemetry: {missed} operations were forgotten before they were counted"
            )
        return warnings

    def abort(self) -> None:
        """There is no result: end at once."""
        self._stop_looking()
        self._close(0.0)

    # -- looking -----------------------------------------------------------------------------------

    def _follow(self) -> None:
        offered_s = time.monotonic()
        while not self._stop.wait(min(self._settings.interval_s, LOOK_S)):
            # a file may go while it is read; telemetry never fails a run
            with suppress(Exception):
                self._look(time.monotonic_ns())
            if time.monotonic() - offered_s >= self._settings.interval_s - LOOK_S / 2:
                offered_s = time.monotonic()
                with suppress(Exception):
                    self._offer(self._judged())

    # Two readers follow the same history. The first one hands records out at once, for counts and
    # latencies. The second one stays `settle_ns` behind, because votes may be patched for so long.
    # Votes and traces are made from it alone. One reader for both would either export votes that
    # change afterwards, or show every rate late.
    def _look(self, now_ns: int, *, last: bool = False) -> None:
        """Read what is new in the folder, and what the servers say.

        `last`: no vote is patched any more.
        """
        self._servers.note(self._infos(), time.monotonic_ns())
        rows = self._fresh.new_records()
        records = rows[sound(rows)]
        if len(records):
            self._written = max(self._written, int(records["sequence"].max()))
        self._counts.look(records, now_ns)
        attempts = list(self._attempts.new())
        extensions = list(self._extensions.new())
        self._not_kept += sum(attempt.dropped for attempt in attempts)
        count_observed(self._observed, attempts, extensions, self._run.addresses)
        rows = self._settled.new_records(NEVER_NS if last else now_ns - self._run.settle_ns)
        settled = rows[sound(rows)]
        self._counts.add_votes(settled)
        if self._otlp is not None and self._settings.traces:
            self._tracing.note(attempts, extensions)
            self._otlp.offer_spans(list(self._tracing.look(settled)))

    def _count_all(self) -> None:
        """The whole history once more, by resources: what late patches and far-apart hand-offs have
        changed.

        A worker that nobody follows forgets its oldest files; then what was counted while they were
        there stays.
        """
        counts = OperationCounts(self._run.quorum)
        parts = history_parts(self._folder)
        for part in range(parts):
            history = read_history(self._folder, part, parts).believed()
            if history.missing_segments:
                return
            records = history.records
            counts.add(records)
            counts.add_votes(records)
            counts.add_handoffs(records, ALL_TIME)
        # If there are fewer operations than before, the folder is gone.
        if counts.operations >= self._counts.operations:
            self._counts = counts

    # -- telling -----------------------------------------------------------------------------------

    def _offer(self, judged: Judged | None, *, ended: bool = False) -> None:
        now_ns = time.monotonic_ns()
        notes = read_workers(self._folder)
        fresh = current(notes, now_ns)
        # All workers have ended, also those that were killed.
        if ended:
            notes = _stopped(notes)
            fresh = _stopped(fresh)
        points = [
            *self._counts.points(
                self._tracing.exemplars if self._settings.exemplars else {}, notes, fresh
            ),
            *self._observed.points(),
            *run_points(self._run, notes, fresh, ended=ended),
            *self._servers.points_at(now_ns),
            *self._others(judged),
        ]
        self._tracing.exemplars.clear()
        # a step of the wall clock moves no point of the run
        taken_ns = now_ns + self._wall_ns
        snapshot = Snapshot(self._began_ns, taken_ns, self._run.common, points)
        for sink in (self._otlp, self._page):
            if sink is not None:
                sink.offer(snapshot)

    def _others(self, judged: Judged | None) -> Iterator[DataPoint]:
        """Of an oracle nothing, not even a zero, where none runs."""
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
            "attempt": self._not_kept,
            "record": self._missed(),
        }
        for kind, number in dropped.items():
            yield point("redlock.telemetry.dropped", number, redlock_telemetry_item=kind)

    def _missed(self) -> int:
        """Operations that nobody read before their file was gone."""
        return max(self._written - self._counts.operations, 0) if self._run.processes == 1 else 0

    # -- ending ------------------------------------------------------------------------------------

    def _stop_looking(self) -> None:
        self._stop.set()
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
    """The section `safety` by kind of violation."""
    counts = safety.service_faults, safety.granted_invalid, safety.foreign_deletes
    return dict(
        zip(VIOLATIONS, (*counts, safety.client_overstays, safety.spurious_refusals), strict=True)
    )
