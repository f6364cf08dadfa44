"""What telemetry has read of a run: *its folder, look by look → counts, observed attempts, spans*.

Rules: looking only reads. At the end the whole history is read once more, votes patched late
included, so that the counts equal `totals`.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path

from bench.measure.facts import Window
from bench.measure.history import HistoryTail, history_parts, read_history
from bench.measure.record import NEVER_NS, sound
from bench.telemetry.load_log import Extension, LineTail, ObservedAttempt
from bench.telemetry.points import Totals
from bench.telemetry.run import Info, InfoTotals, OperationCounts, Run, count_observed
from bench.telemetry.traces import TraceSpan, Tracing

ALL_TIME = Window(0, 1 << 62)


class Looks:
    """All that is known of the run whose processes write into `folder`. `one_in`, `wall_ns`: as in
    Tracing."""

    def __init__(self, run: Run, folder: Path, one_in: int, wall_ns: int) -> None:
        self._run = run
        self._folder = folder
        self.tracing = Tracing(run, one_in, wall_ns, random.SystemRandom())
        self._fresh = HistoryTail(folder)
        self._settled = HistoryTail(folder)
        self._attempts = LineTail(folder, "attempts", ObservedAttempt)
        self._extensions = LineTail(folder, "extensions", Extension)
        self.counts = OperationCounts(run.quorum, time.monotonic_ns())
        self.observed = Totals()
        self.servers = InfoTotals(run.addresses)
        self._written = 0
        # observed attempts that a load process dropped
        self.not_kept = 0

    # Two readers follow the same history. The first one hands records out at once, for counts and
    # latencies. The second one stays `settle_ns` behind, because votes may be patched for so long.
    # Votes and traces are made from it alone. One reader for both would either export votes that
    # change afterwards, or show every rate late.
    def look(
        self, now_ns: int, infos: Sequence[Info | None], *, traces: bool, last: bool
    ) -> list[TraceSpan]:
        """Read what is new in the folder, and what the servers say; return spans, if `traces` are
        asked for.

        `last`: no vote is patched any more.
        """
        self.servers.note(infos, time.monotonic_ns())
        rows = self._fresh.new_records()
        records = rows[sound(rows)]
        if len(records):
            self._written = max(self._written, int(records.sequence.max()))
        self.counts.look(records, now_ns)
        attempts = list(self._attempts.new())
        extensions = list(self._extensions.new())
        self.not_kept += sum(attempt.dropped for attempt in attempts)
        count_observed(self.observed, attempts, extensions, self._run.addresses)
        rows = self._settled.new_records(NEVER_NS if last else now_ns - self._run.settle_ns)
        settled = rows[sound(rows)]
        self.counts.add_votes(settled)
        if not traces:
            return []
        self.tracing.note(attempts, extensions)
        return list(self.tracing.look(settled))

    def count_all(self) -> None:
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
        if counts.operations >= self.counts.operations:
            self.counts = counts

    @property
    def missed(self) -> int:
        """Operations that nobody read before their file was gone."""
        return max(self._written - self.counts.operations, 0) if self._run.processes == 1 else 0
