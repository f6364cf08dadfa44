"""The part of the leader that manages the workers on other hosts. This module writes the clock
readings, the notes and the histories of these workers into the run's folder.

Rules
- The leader uses round trips to compare a worker's clock with its own clock. Each round trip limits
  the error of this comparison (measure/clocks.py). At first, the leader makes thirty round trips
  per second. When the shortest round trip does not become shorter any more, the leader makes only
  six round trips per second.
- If a worker's clock has the same name as our clock, the leader assumes that both are the same
  clock. If a round trip contradicts this assumption, the leader drops the assumption.
- The leader converts the times in the workers' notes to our clock and writes the notes into the
  folder.
- When all workers have finished (ending.py), the leader asks each worker how much of its history
  fits into the budget. The leader then decides which resources the workers send. The budget of the
  busiest host limits the number of these resources (share.py). The leader fetches the sums of each
  worker and the records of these resources. It fetches each file in pieces, and requests a lost
  piece again.
- If a worker is lost during the fetch, the leader keeps only the worker's notes. In the worker's
  last note, the leader changes the phase to "lost".
- A worker on another host can send only its own files.
"""

import logging
import re
import shutil
import struct
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import gevent
import msgspec
import numpy as np
from gevent import get_hub
from gevent.event import AsyncResult
from locust.rpc.protocol import Message
from locust.runners import STATE_MISSING, MasterRunner

from bench.hosts.away import (
    CLOCK,
    FOLDED,
    NOTE,
    PACKED,
    PIECE,
    TAKEN,
    WANT,
    HistoryAnswer,
    HistoryQuestion,
)
from bench.hosts.ending import Ending, Progress
from bench.hosts.share import (
    BUCKETS,
    FOLD,
    Led,
    budget_per_s,
    chosen,
    read_fold,
    unpack_here,
    write_led,
)
from bench.measure.begun import BEGUN, LOST
from bench.measure.clocks import Clock, clock_file
from bench.measure.environment import clock_name, slewed_ns
from bench.measure.facts import Window
from bench.measure.fold import Fold
from bench.measure.gaps import GAPS
from bench.measure.section import decoded
from bench.measure.workers import WorkerNote, note_late, write_note
from bench.scenario import Scenario
from bench.topology.child import is_alive
from lockcore.clock import NS_PER_S, monotonic_ns

ASK_S = 0.1
# Once the bound on a clock has settled, only every SETTLED_EVERY-th round asks the clock.
SETTLED_EVERY = 5
# A round trip becomes the new shortest round trip only if it takes less than this share of the old
# shortest. Then the bound is no longer settled.
SHORTER = 0.9
# Round trips come in bursts of this size, because a worker that is awake answers fastest.
BURST = 3
# A run begins after this many round trips.
ENOUGH = 5
# The last round trips, this many, convert the times of a note. If this many round trips bring no
# shorter round trip, the bound has settled.
RECENT = 50
# If a piece has not come after this time (s), it is lost. The leader asks for it again.
AGAIN_S = 3.0
# The longest time (s) for one answer, even about the longest history.
WORK_S = 600.0
_ROW = struct.Struct("<4q")
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Host:
    """The data that the leader has about one worker. It consists of the worker's identity, the
    round trips to the worker's clock, the worker's last note and the worker's last answer.

    `name` is the unique name of the worker's host (`names_of`).
    """

    pid: int = 0
    name: str = ""
    # the name, address and clock name that the worker itself reports
    machine: tuple[str, str, str] = ("", "", "")
    about: str = ""
    same_clock: bool = False
    # the origin of the run on the worker's clock; 0: not computed yet
    theirs_ns: int = 0
    worker: int = 0
    trips: list[tuple[int, int, int, int]] = field(default_factory=list)
    # The shortest round trip. A trip that is only slightly shorter does not replace it (SHORTER).
    shortest_ns: int = 1 << 62
    # the number of trips when the shortest one came
    shortest_at: int = 0
    # the number of trips in the clock file
    written: int = 0
    # the number of further round trips in this burst
    again: int = 0
    note: WorkerNote | None = None
    # True if the history has arrived or is lost. Then further notes are ignored.
    closed: bool = False
    # the last question to this worker
    request: HistoryQuestion = field(default_factory=HistoryQuestion)
    # the answer to that question
    piece: AsyncResult | None = None

    def add_trip(self, asked_ns: int, there_ns: int, back_ns: int, slewed_ns: int) -> None:
        """Add a round trip.

        `slewed_ns` is NTP's change of our clock minus NTP's change of the worker's clock.
        """
        self.trips.append((asked_ns, there_ns, back_ns, slewed_ns))
        if back_ns - asked_ns < SHORTER * self.shortest_ns:
            self.shortest_ns = back_ns - asked_ns
            self.shortest_at = len(self.trips)

    @property
    def is_settled(self) -> bool:
        """True if further round trips would not reduce the error of this clock."""
        return len(self.trips) - self.shortest_at >= RECENT

    def ahead_ns(self) -> int:
        """Return the best present estimate of our clock minus the worker's clock, in ns."""
        if self.same_clock or not self.trips:
            return 0
        there = self.trips[-1][1]
        return Clock(np.array(self.trips[-RECENT:], np.int64)).ours(there) - there


def names_of(machines: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
    """Return a unique name for each machine. A machine is a tuple of name, address and clock name.

    If no other machine has the same name, the unique name is the machine's own name. Otherwise the
    function adds the machine's address to the name. If the address is missing or not unique, the
    function also adds a number.
    """
    distinct = list(dict.fromkeys(machines))
    shared = Counter(name for name, _, _ in distinct)
    twins = Counter((name, address) for name, address, _ in distinct)
    names = {}
    numbers = Counter[str]()
    for machine in distinct:
        name, address, _ = machine
        numbers[name] += 1
        if shared[name] == 1:
            names[machine] = name
        else:
            place = f"{name} at {address}" if address else name
            names[machine] = (
                place if twins[name, address] == 1 and address else f"{place}, no. {numbers[name]}"
            )
    return names


class Hosts:
    """The workers of a Locust master. Call `begin` with the folder of each run."""

    def __init__(self, runner: MasterRunner) -> None:
        self._runner = runner
        self._clock = clock_name()
        self._folder: Path | None = None
        self._origin_ns = 0
        self.known: dict[str, Host] = {}
        self.sent_away: set[str] = set()
        runner.register_message(CLOCK, self._note_clock)
        runner.register_message(NOTE, self._note_note)
        runner.register_message(PIECE, self._note_piece)
        gevent.spawn(self._look)

    def begin(self, folder: Path | None) -> None:
        """Begin a run. `folder` receives the files of the run. `folder` is None if the run will not
        be judged."""
        self._folder = folder
        self.known = {}
        self.sent_away = set()
        self._origin_ns = 0

    def note_here(self, node: str, facts: dict[str, object]) -> None:
        """Store the facts that a worker reports about itself."""
        host = self.known.setdefault(node, Host())
        host.pid = int(str(facts["pid"]))
        host.about = str(facts["about"])
        host.machine = str(facts["host"]), str(facts.get("address", "")), str(facts["clock"])
        names = names_of([one.machine for one in self.known.values()])
        for one in self.known.values():
            one.name = names[one.machine]
        host.same_clock = facts["clock"] == self._clock
        host.worker = self._runner.get_worker_index(node)

    def send_away(self, node: str, name: str) -> bool:
        """Ask a late worker to leave, and record the worker's name. A worker is late if it joins
        after the run has begun.

        Return False if the leader has already asked this worker to leave.
        """
        if node in self.sent_away:
            return False
        self.sent_away.add(node)
        if self._folder is not None:
            note_late(self._folder, name)
        self.dismiss(
            [node], "this worker connected after the run had begun, so the leader sent it away"
        )
        # This is Locust's own message. Locust gives the users of this worker to other workers.
        self._runner.send_message("quit", None, node)
        return True

    def dismiss(self, nodes: Iterable[str], why: str) -> None:
        """Tell these workers that the leader refuses their histories. When the workers leave, they
        log the reason `why`."""
        for node in list(nodes):
            self._runner.send_message(TAKEN, {"why": why}, node)

    def ready(self) -> bool:
        """Return whether every worker's clock has enough round trips for the run to begin."""
        return all(
            len(self.known[node].trips) >= ENOUGH
            for node in self._runner.clients
            if node in self.known
        )

    def origin(self, node: str, origin_ns: int) -> int:
        """Store the origin of the run, which is a time (ns) on our clock. Return the same time on
        the worker's clock."""
        self._origin_ns = origin_ns
        host = self.known.get(node)
        if host is None:
            return origin_ns
        host.theirs_ns = origin_ns - host.ahead_ns()
        return host.theirs_ns

    @property
    def far_ns(self) -> int:
        """The median round trip of the slowest worker, in ns."""
        trips = [np.array(host.trips) for host in self.known.values() if host.trips]
        return int(max((np.median(rows[:, 2] - rows[:, 0]) for rows in trips), default=0))

    # -- clocks and notes --------------------------------------------------------------------------

    def _look(self) -> None:
        for turn in count():
            for node, host in list(self.known.items()):
                if not host.is_settled or turn % SETTLED_EVERY == 0:
                    host.again = BURST - 1
                    self._ask_clock(node)
                if host.note is not None and host.note.phase == "running" and self.is_gone(node):
                    host.note = msgspec.structs.replace(host.note, phase="lost")
                    self._write(host)
            gevent.sleep(ASK_S)

    def is_gone(self, node: str) -> bool:
        """Return whether Locust has lost contact with this worker. A lost worker sends no more
        messages."""
        client = self._runner.clients.get(node)
        return client is None or client.state == STATE_MISSING

    def is_dead(self, node: str) -> bool:
        """Return whether the process of a worker on this host has ended."""
        host = self.known.get(node)
        return host is not None and not is_alive(host.pid)

    def _ask_clock(self, node: str) -> None:
        self._runner.send_message(CLOCK, {"asked": monotonic_ns()}, node)

    def _note_clock(self, msg: Message, **_: object) -> None:
        back = monotonic_ns()
        host = self.known.get(msg.node_id)
        if host is None or msg.data["asked"] > back:
            return
        asked_ns = msg.data["asked"]
        there = msg.data["there"]
        ours = slewed_ns()
        theirs = msg.data["slewed"]
        if ours is not None and theirs is not None:
            host.add_trip(asked_ns, there, back, ours - theirs)
        if host.same_clock and not asked_ns <= there <= back:
            # The worker is on another machine with our clock name, perhaps from a copied image.
            host.same_clock = False
        if self._folder is not None and host.pid and not host.same_clock:
            path = clock_file(self._folder, host.worker, host.pid)
            # After the verdict the folder is gone, but Locust's page may still have workers.
            with suppress(FileNotFoundError), path.open("ab") as file:
                file.writelines(_ROW.pack(*trip) for trip in host.trips[host.written :])
            host.written = len(host.trips)
        if host.again:
            host.again -= 1
            self._ask_clock(msg.node_id)

    def _note_note(self, msg: Message, **_: object) -> None:
        host = self.known.get(msg.node_id)
        if host is not None and not host.closed:
            self._take_note(host, msg.data["note"])

    def _take_note(self, host: Host, text: bytes) -> None:
        note = decoded(text, WorkerNote)
        ahead_ns = host.ahead_ns()
        if note.spawned_ns == host.theirs_ns != 0:
            # The worker began at the origin that was computed for its clock. The origin on our own
            # clock is exact.
            spawned_ns = self._origin_ns
        else:
            spawned_ns = note.spawned_ns and note.spawned_ns + ahead_ns
        host.note = msgspec.structs.replace(
            note,
            worker=host.worker,
            pid=host.pid,
            host=host.name,
            about=host.about,
            clock="" if host.same_clock else "own",
            spawned_ns=spawned_ns,
            stopped_ns=note.stopped_ns and note.stopped_ns + ahead_ns,
            told_ns=note.told_ns and note.told_ns + ahead_ns,
        )
        self._write(host)

    def _write(self, host: Host) -> None:
        if self._folder is not None and host.note is not None:
            write_note(self._folder, host.note)

    # -- histories ---------------------------------------------------------------------------------

    def fetch(
        self, ending: Ending, scenario: Scenario, window_ns: tuple[int, int | None], ended_ns: int
    ) -> None:
        """Fetch the files of the finished workers. After the fetch, the workers may remove their
        copies.

        `window_ns` is the start and end of the measured time, in ns since the origin. `ended_ns` is
        the time at which the leader asked the load to end. If the run never reached its measured
        time, the leader fetches no history.
        """
        if (folder := self._folder) is None:
            return
        start_ns, stop_ns = window_ns
        until_ns = ended_ns if stop_ns is None else min(self._origin_ns + stop_ns, ended_ns)
        window = Window(self._origin_ns + start_ns, until_ns)
        buckets = 0
        ending.lose([node for node in ending.at(Progress.FINISHED) if node not in self.known])
        if self._origin_ns and window.stop_ns > window.start_ns:
            write_led(folder, Led((window.start_ns, window.stop_ns), 0))
            answers = self._fold(ending, window)
            buckets = chosen([one["fits"] for one in answers], [one["counts"] for one in answers])
            write_led(folder, Led((window.start_ns, window.stop_ns), buckets))
        else:
            for node in ending.at(Progress.FINISHED):
                # Nothing was measured, so there is nothing to fold.
                ending.note(node, Progress.FOLDED)
        folds = {node: Fold(scenario, window) for node in ending.at(Progress.FOLDED)}
        gevent.joinall(
            [gevent.spawn(self._bring, ending, node, buckets, fold) for node, fold in folds.items()]
        )
        for node in ending.at(Progress.LOST):
            self._give_up(node)

    def _give_up(self, node: str) -> None:
        """Mark a lost worker, so that the leader ignores its later notes. If the worker connects
        again, the leader sends it the reason."""
        host = self.known.get(node)
        if host is not None:
            host.closed = True
            if host.note is not None:
                host.note = msgspec.structs.replace(host.note, phase="lost")
                self._write(host)
        self.dismiss([node], "the leader lost contact with this worker at the end of the run")

    def _fold(self, ending: Ending, window: Window) -> list[HistoryAnswer]:
        """Ask every finished worker for the sums of its history, and return the answers."""
        window_ns = [edge_ns - self._origin_ns for edge_ns in (window.start_ns, window.stop_ns)]
        beside = Counter(host.name for host in self.known.values())
        budget = budget_per_s() * window_ns[1] / NS_PER_S
        answers: list[HistoryAnswer] = []

        def ask(node: str) -> None:
            what: HistoryQuestion = {
                "name": FOLDED,
                "at": 0,
                "window_ns": window_ns,
                "budget": budget / beside[self.known[node].name],
            }
            answer = self._ask(node, what)
            if (
                ending.note(node, Progress.LOST if answer is None else Progress.FOLDED)
                and answer is not None
            ):
                answers.append(answer)

        gevent.joinall([gevent.spawn(ask, node) for node in ending.at(Progress.FINISHED)])
        return answers

    def _bring(self, ending: Ending, node: str, buckets: int, fold: Fold) -> None:
        """Fetch all files of one worker. If one of the files fails, the leader keeps no files of
        this worker.

        `fold` is an empty `Fold` for the same run. If the worker's sums cannot be merged into
        `fold`, the leader keeps no files of this worker.
        """
        host = self.known[node]
        folder = self._folder
        assert folder is not None
        arriving = folder / f"arriving-{host.worker}-{host.pid}"
        arriving.mkdir(exist_ok=True)
        notes = self._arrived(node, arriving, buckets, fold)
        if notes is None:
            ending.note(node, Progress.LOST)
        elif ending.note(node, Progress.HERE):
            for path in arriving.iterdir():
                path.rename(folder / path.name)
            for text in notes:
                self._take_note(host, text)
            host.closed = True
            self._runner.send_message(TAKEN, None, node)
        shutil.rmtree(arriving, ignore_errors=True)

    def _arrived(self, node: str, arriving: Path, buckets: int, fold: Fold) -> list[bytes] | None:
        """Fetch a worker's files into the folder `arriving`, and return the final notes of this
        worker.

        Return None if a file is missing or damaged.
        """
        host = self.known[node]
        answer = self._ask(node, {"name": PACKED, "at": buckets})
        if answer is None:
            return None
        who = f"{host.worker}-{host.pid}"
        own = re.compile(
            rf"(?:(?:{BEGUN}|{GAPS})-{who}\.bin|{FOLD}-{who}\.json|(?:history|{LOST})-{who}\.pack)"
        )
        for name, size in answer["files"].items():
            if not own.fullmatch(name) or not self._fetch_file(node, arriving / name, size):
                return None
            try:
                if name.endswith(".pack"):
                    get_hub().threadpool.apply(
                        unpack_here, (arriving / name,), {"whole": buckets == BUCKETS}
                    )
                elif name.endswith(".json"):
                    fold.sums.merge(read_fold(arriving / name))
            except (ValueError, OverflowError) as error:
                logger.error(
                    "the leader cannot use the file %s of the host %s: %s", name, host.name, error
                )
                return None
        return answer["notes"]

    def _fetch_file(self, node: str, path: Path, size: int) -> bool:
        with path.open("wb") as file:
            while file.tell() < size:
                answer = self._ask(node, {"name": path.name, "at": file.tell()})
                if answer is None or not answer["bytes"]:
                    return False
                file.write(answer["bytes"])
        return True

    def _ask(self, node: str, what: HistoryQuestion) -> HistoryAnswer | None:
        """Return the worker's answer, or None if the worker is gone or has failed."""
        host = self.known[node]
        deadline_s = time.monotonic() + WORK_S
        host.request = what
        host.piece = AsyncResult()
        while True:
            self._runner.send_message(WANT, {**what}, node)
            with suppress(gevent.Timeout):
                answer: HistoryAnswer = host.piece.get(timeout=AGAIN_S)
                if "failed" not in answer:
                    return answer
                logger.error("%s cannot give its history: %s", host.name, answer["failed"])
                return None
            if self.is_gone(node) or time.monotonic() > deadline_s:
                return None

    def _note_piece(self, msg: Message, **_: object) -> None:
        host = self.known.get(msg.node_id)
        if host is not None and host.piece is not None and host.request.items() <= msg.data.items():
            host.piece.set(msg.data)
