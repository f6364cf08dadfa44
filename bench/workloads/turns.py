"""Load processes that take turns: *a ring of pipes → one runs at a time, each as if it were alone*.

Rules: a turn is handed over when every caller stands between two operations, so none spans a pause.
Own time stands still while a process waits: what it recorded is shifted at its end (`shift`), and
reads as if it had run without a pause. Who ends leaves the ring, and who has died is passed over.
Who dies in its own turn leaves the others waiting, until their parents end them. Source: pipe(7),
fifo(7).
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

# far longer than an operation, far shorter than what others do on the machine
SLICE_NS = 100 * NS_PER_MS
# after the window, as of a run alone
TAIL_NS = 20 * NS_PER_MS
_LOOK_S = 0.01


class RingPlace:
    """A process's place in the ring. `kept_ns`: its callers were kept from their next operation so
    long within turns; `waited_ns`, `waited_cpu_ns`: between them."""

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
        # from which record on, by how much
        self._shifts: list[tuple[int, int]] = [(0, 0)]
        self.kept_ns = self.waited_ns = self.waited_cpu_ns = 0

    # `_parked_at_ns` is no time but a sum of times: every caller adds when it parked. `_end` needs
    # how long all of them waited for the last one, which is callers × now − that sum. So nobody
    # keeps a list of times in the path of every operation. `_begin` sets the sum to 0, and without
    # that each turn would count the ones before.
    def take(self) -> int:
        """When this caller's next operation is to start: now, or once it is our turn again
        (monotonic, ns)."""
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
        """Whether it is this process's turn."""
        return self._holding

    def own_ns(self) -> int:
        """The time that has not passed while waiting: monotonic, ns."""
        return (
            monotonic_ns() if self._holding or not self._since_ns else self._since_ns
        ) - self.waited_ns

    def run(self, origin_ns: int, length_ns: int, written: Callable[[], int]) -> None:
        """Take turns until `length_ns` of own time have passed since `origin_ns`; the last turn
        stays open. `written`: how many records there are."""
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

    # Members are separate processes that come and go at any moment. A file that exists is a message
    # that nobody can miss, as whoever looks later still finds it. `ready-N` and `gone-N` are such
    # files, and `turn-N` is a pipe. The pipe is opened for reading and writing by its owner. So it
    # never reports its end while nobody else has it open, and the byte of a turn waits in it.
    def _file(self, word: str, place: int) -> Path:
        """What tells a member that it is its turn, or is there once a member is so."""
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
        """Give the turn to the first from there on who is there."""
        places = self._ring.places
        for place in (number % places for number in range(to, to + places)):
            # Nobody reads the pipe of a process that has died: then it cannot be opened.
            if not self._file("gone", place).exists():
                with suppress(OSError):
                    pipe = os.open(self._file("turn", place), os.O_WRONLY | os.O_NONBLOCK)
                    os.write(pipe, b"!")
                    os.close(pipe)
                    return

    def free(self) -> None:
        """Let every caller go on, for good: the run is to end."""
        self._ended = True
        self._over = False
        self._open.set()
        self._all_parked.set()

    def leave(self) -> None:
        """Leave the ring; the turn goes on to whoever is left."""
        self.free()
        self._file("gone", self._ring.place).touch()
        if self._holding:
            self._pass_on(to=self._ring.place + 1)

    def shift(self, workdir: Path, worker: int) -> None:
        """Bring the times of the closed history of `worker` to own time."""
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
