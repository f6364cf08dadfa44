"""This module writes the history of the callers of one process: *operations → records, votes, lost
attempts, misreports, and counts in Locust's table*.

Callers only append to the history. The process does all other work once a second and at the end of
the run. Each second, this work is done in pieces of about 100 µs. Every record is counted exactly
once.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import gevent
from locust.env import Environment

from bench.measure.begun import Begun
from bench.measure.recorder import Recorder
from bench.scenario import Scenario
from bench.workloads.operation import Books, OpenVotes, PackedVotes
from bench.workloads.table import FOLD, Row, acquires_of, releases_of
from bench.workloads.turns import RingPlace
from lockcore.clock import NS_PER_MS, monotonic_ns

# How many votes are patched at once.
PATCH = 64
SETTLE_S = 0.002


class WorkerHistory:
    """The history of worker `index` in `workdir`. The object also contains this worker's two rows
    of Locust's table.

    Raises EnvironmentNotReadyError if a file cannot be created.
    """

    def __init__(
        self,
        workdir: Path,
        index: int,
        scenario: Scenario,
        environment: Environment,
        turns: RingPlace | None,
        *,
        instances: int,
    ) -> None:
        self.workdir = workdir
        self._index = index
        self._turns = turns
        self._stats = environment.stats
        fire = environment.events.request.fire if scenario.events == "stock" else None
        self.acquires = Row(scenario.recipe, "acquire", acquires_of, fire)
        self.releases = Row(scenario.recipe, "release", releases_of)
        self.recorder = Recorder(workdir, index)
        self.begun = Begun(workdir, index)
        votes = PackedVotes()
        self.open = OpenVotes(self.recorder.patch_votes, votes)
        # How many impossible values the recipe reported, by message.
        self.misreports: Counter[str] = Counter()
        # How many operations the end of the run cut off.
        self.cuts = 0
        # How many records are already counted in Locust's table.
        self._folded = 0
        self.books = Books(
            recorder=self.recorder,
            votes=votes,
            lost=self.lost,
            pending=self.open.add,
            tell=self.acquires.tell if fire else None,
            cut=self.cut,
            misreport=self.misreport,
            still_open=instances << 40,
            held=set(),
        )

    # -- for callers -------------------------------------------------------------------------------

    def misreport(self, sentence: str) -> None:
        """Count an impossible value that the recipe has reported."""
        self.misreports[sentence] += 1

    def cut(self) -> None:
        """Count an acquire whose caller ended before the acquire returned."""
        self.cuts += 1

    def lost(self, resource: int, times_ns: Sequence[int]) -> None:
        """Store the start times of the lost attempts of one acquire."""
        waited_ns = self._turns.waited_ns if self._turns else 0
        self.begun.lost(resource, [time_ns - waited_ns for time_ns in times_ns])

    # -- once a second -----------------------------------------------------------------------------

    def patch(self) -> Iterator[None]:
        """Patch the votes of the rounds that have closed since the last call. The iterator yields
        after each group of PATCH rounds."""
        for _ in range(0, len(self.open), PATCH):
            self.open.look(PATCH)
            yield

    def fold(self) -> Iterator[None]:
        """Count the records that exist at the time of the call. The iterator yields after each
        group of at most FOLD records.

        Callers can write new records whenever the iterator yields. The next call counts these new
        records. In an earlier version, the same call also counted the new records. Under overload,
        such a call delayed all later work by 8 s or more.
        """
        until = self.recorder.written
        while len(records := self.recorder.read(self._folded, min(FOLD, until - self._folded))):
            self.acquires.fold(records)
            self.releases.fold(records)
            self._folded += len(records)
            yield

    def report(self) -> None:
        """Bring Locust's table up to date."""
        self.acquires.report(self._stats)
        self.releases.report(self._stats)

    def forget(self, segments_kept: int) -> None:
        """Remove all segments of the record except the last `segments_kept`. If this method removes
        a segment, it also removes the stored lost attempts."""
        segments = sorted(
            self.workdir.glob("history-*.bin"), key=lambda path: path.stat().st_mtime_ns
        )
        for path in segments[:-segments_kept]:
            path.unlink(missing_ok=True)
            self.begun.forget()

    # -- at the end --------------------------------------------------------------------------------

    def settle(self, timeout_ms: float) -> None:
        """Wait until all open rounds have closed, but at most for twice `timeout_ms`. Then count
        all records."""
        deadline_ns = monotonic_ns() + 2 * int(timeout_ms * NS_PER_MS)
        self.open.look(len(self.open))
        while len(self.open) and monotonic_ns() < deadline_ns:
            gevent.sleep(SETTLE_S)
            self.open.look(len(self.open))
        self.open.look(len(self.open), last=True)
        for _ in self.fold():
            pass
        self.report()

    def close(self) -> None:
        """Close the files. If the process shared time slices with other runs, this method then
        converts the recorded times to the process's own time."""
        self.recorder.close()
        self.begun.close()
        if self._turns is not None:
            self._turns.shift(self.workdir, self._index)
