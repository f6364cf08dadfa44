"""This module lets load processes share time slices: *a ring of pipes → only one process of the
ring makes load at a time*.

Rules
- A time slice ends only when every caller is between two operations. So no operation is in progress
  during the pause between two time slices.
- The own time of a process stops while the process waits for its time slice. At the end, `shift`
  converts all times in the records to the own time of the process. The pauses of the process do not
  appear in the converted records.
- A process that ends leaves the ring. The other processes skip a process that has died. If a
  process dies during its own time slice, nobody passes the time slice on. The other processes then
  wait until their parents end them.

Source: pipe(7), fifo(7).
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time_ns

import gevent
import numpy as np
from gevent.event import Event
from gevent.socket import wait_read

from bench.measure.record import RECORD_DTYPE, RECORD_FIELDS, Records, words_of
from bench.measure.seals import reseal
from bench.workloads.plan import Ring
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

# A time slice is far longer than an operation, and far shorter than a disturbance by another
# program.
SLICE_NS = 100 * NS_PER_MS
# The run lasts this much longer than the window. The same applies to a run without time slices.
TAIL_NS = 20 * NS_PER_MS
_LOOK_S = 0.01


class RingPlace:
    """The place of one process in the ring.

    `kept_ns`: the total delay (ns) of callers between two operations. Only delays within a time
    slice count. `waited_ns`: the total time that the process waited between its time slices.
    `waited_cpu_ns`: the CPU time that the process used while it waited for a time slice.
    """

    def __init__(self, ring: Ring, callers: int) -> None:
        self._ring = ring
        self._callers = callers
        os.mkfifo(self._file("turn", ring.place))
        self._mine = os.open(self._file("turn", ring.place), os.O_RDWR | os.O_NONBLOCK)
        self._open = Event()
        self._all_parked = Event()
        self._parked = self._parked_at_ns = self._opened_ns = self._since_ns = (
            self._since_cpu_ns
        ) = 0
        self._over = True
        self._holding = False
        self._ended = False
        # Pairs of a record's number and the shift (ns) from that record on.
        self._shifts: list[tuple[int, int]] = [(0, 0)]
        self.kept_ns = self.waited_ns = self.waited_cpu_ns = 0

    # `_parked_at_ns` is the sum of the times at which the callers parked. `_end` needs the total
    # time for which callers waited for the last caller. This total is callers × now −
    # `_parked_at_ns`. Each operation updates only this sum, because a list of times would cost
    # more. `_begin` must set the sum to 0. Otherwise, each time slice would also count all earlier
    # time slices.
    def take(self) -> int:
        """Return the start of this caller's next operation (monotonic, ns).

        Between two time slices, the method first waits for the next time slice.
        """
        if self._over:
            self._parked_at_ns += monotonic_ns()
            self._parked += 1
            if self._parked == self._callers:
                self._all_parked.set()
            self._open.wait()
            self._parked -= 1
            self.kept_ns += monotonic_ns() - self._opened_ns
        return monotonic_ns()

    @property
    def holding(self) -> bool:
        """True if this process has the time slice."""
        return self._holding

    def own_ns(self) -> int:
        """Return the own time of this process (ns).

        This is the monotonic time without the waits for time slices.
        """
        return (
            monotonic_ns() if self._holding or not self._since_ns else self._since_ns
        ) - self.waited_ns

    def run(self, origin_ns: int, length_ns: int, written: Callable[[], int]) -> None:
        """Take part in the ring from `origin_ns` until the own time of the process has advanced by
        `length_ns`. This method does not end the last time slice.

        `written`: a function that returns the number of written records.
        """
        self._wait_from(origin_ns)
        self._file("ready", self._ring.place).touch()
        while self._ring.place == 0 and not all(
            self._file("ready", one).exists() for one in range(self._ring.places)
        ):
            gevent.sleep(_LOOK_S)
        if self._ring.place == 0:
            self._pass_on(to=0)
        end_ns = until_ns = origin_ns + length_ns + TAIL_NS
        while not self._ended:
            wait_read(self._mine)
            self._begin(written())
            until_ns = min(self.own_ns() + SLICE_NS, end_ns)
            while (left_ns := until_ns - self.own_ns()) > 0:
                gevent.sleep(left_ns / NS_PER_S)
            if until_ns == end_ns:
                return
            self._end()

    # The members of the ring are separate processes that start and end at any moment. They leave
    # messages as files, because a file stays and no member can miss it. `ready-N` and `gone-N` are
    # such files, and `turn-N` is a pipe. The owner opens its pipe for reading and for writing. So
    # the pipe reports no end of file, even if no other process has opened the pipe. A member passes
    # a time slice on by writing a byte, and this byte waits in the pipe.
    def _file(self, word: str, place: int) -> Path:
        """Return the path of a pipe or message file of the member at `place`.

        `word` is the first part of the file name. The possible values of `word` are `turn`, `ready`
        and `gone`.
        """
        return self._ring.folder / f"{word}-{place}"

    def _wait_from(self, now_ns: int) -> None:
        self._holding = False
        self._since_ns = now_ns
        self._since_cpu_ns = process_time_ns()

    def _begin(self, written: int) -> None:
        os.read(self._mine, 1)
        self._opened_ns = monotonic_ns()
        self.waited_ns += self._opened_ns - self._since_ns
        self.waited_cpu_ns += process_time_ns() - self._since_cpu_ns
        self._shifts.append((written, self.waited_ns))
        self._holding = True
        self._over = False
        self._parked_at_ns = 0
        self._all_parked.clear()
        self._open.set()

    def _end(self) -> None:
        self._open.clear()
        self._over = True
        self._all_parked.wait()
        if not self._ended:
            self._wait_from(monotonic_ns())
            self.kept_ns += self._callers * self._since_ns - self._parked_at_ns
            self._pass_on(to=self._ring.place + 1)

    def _pass_on(self, to: int) -> None:
        """Give the time slice to the next member that still runs.

        This method tries the member at place `to` first, and then the following members of the
        ring.
        """
        places = self._ring.places
        for place in (number % places for number in range(to, to + places)):
            # If a process has died, nobody reads its pipe, so the pipe cannot be opened for
            # writing.
            if not self._file("gone", place).exists():
                with suppress(OSError):
                    pipe = os.open(self._file("turn", place), os.O_WRONLY | os.O_NONBLOCK)
                    os.write(pipe, b"!")
                    os.close(pipe)
                    return

    def free(self) -> None:
        """Let every caller continue without time slices, because the run ends."""
        self._ended = True
        self._over = False
        self._open.set()
        self._all_parked.set()

    def leave(self) -> None:
        """Leave the ring. If this process has the time slice, pass the time slice to the next
        member."""
        self.free()
        self._file("gone", self._ring.place).touch()
        if self._holding:
            self._pass_on(to=self._ring.place + 1)

    def shift(self, workdir: Path, worker: int) -> None:
        """Convert all times in the history of `worker` to the own time of this process. The files
        of the history must be closed."""
        base = 0
        (firsts, shifts_ns) = np.array(self._shifts).T
        segments = workdir.glob(f"history-{worker}-{os.getpid()}.*.bin")
        moved = []
        for path in sorted(segments, key=lambda path: int(path.suffixes[-2][1:])):
            records = np.fromfile(path, RECORD_DTYPE).view(Records)
            by_ns = shifts_ns[
                np.searchsorted(firsts, np.arange(base, base + len(records)), side="right") - 1
            ]
            for name in (name for name in RECORD_FIELDS if name.endswith("_ns")):
                records[name] -= np.where(records[name] > 0, by_ns, 0)
            records.tofile(path)
            moved.append(words_of(records))
            base += len(records)
        reseal(workdir, worker, moved)
