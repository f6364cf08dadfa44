"""All data that telemetry has read about a run: *the files in the run's folder → counts, observed
attempts, spans*. Telemetry reads the folder again and again while the run lasts.

Rules: telemetry never writes into the folder. At the end, telemetry reads the whole history once
more. By then, all late votes are part of the history, so the counts are equal to `totals` in
result.json.
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
    """All data about the run whose processes write into `folder`.

    The parameters `one_in` and `wall_ns` have the same meaning as in Tracing.
    """

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
        # How many observed attempts the load processes dropped.
        self.not_kept = 0

    # Two readers follow the same history. The first reader returns records at once, for counts and
    # latencies. The second reader returns a record only after `settle_ns`, because votes may change
    # during that time. Only the second reader provides records for votes and traces. With only one
    # reader, telemetry would either export votes that change afterwards, or show every rate late.
    def look(
        self, now_ns: int, infos: Sequence[Info | None], *, traces: bool, last: bool
    ) -> list[TraceSpan]:
        """Read the new data in the folder, and use the last answers of the servers.

        If `traces` is true, return the new spans. If `traces` is false, return no spans. `last`:
        true if no vote can change after this call.
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
        """Read the whole history once more. Each step reads the records of some resources.

        The new counts include late votes. A hand-off has two records, and telemetry may have read
        these records at very different times. The new counts also include such hand-offs. A worker
        that no process follows deletes its oldest files. If files were deleted, this method does
        not change the counts.
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
        # If there are fewer operations than before, somebody has removed the folder.
        if counts.operations >= self.counts.operations:
            self.counts = counts

    @property
    def missed(self) -> int:
        """The number of operations that telemetry missed.

        Telemetry missed an operation if the file with its record was deleted too early.
        """
        return max(self._written - self.counts.operations, 0) if self._run.processes == 1 else 0
