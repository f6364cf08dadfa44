"""Workers on other hosts, seen by who leads: *Locust's messages → their clocks, notes and history in the run's folder*.

Rules
- Ten round trips a second to every worker bound its clock (measure/clocks.py) from the start of a run until its history
  is here. A worker whose clock has our name is exact while every round trip agrees, and is bounded as others if not.
- A worker's notes stand in the folder as if it had written them here, with times of our clock.
- Histories are asked for piece by piece, one message on the way per worker, and asked for again when it is lost.
- What comes from elsewhere names files only of the worker that sends it.
"""

import re
import struct
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gevent
import msgspec
import numpy as np
from gevent.event import AsyncResult
from locust.rpc.protocol import Message
from locust.runners import STATE_MISSING, MasterRunner

from bench.measure.clocks import Clock, clock_file
from bench.measure.environment import clock_name
from bench.measure.section import decoded
from bench.measure.workers import WorkerNote, write_note
from bench.workloads.away import CLOCK, KINDS, NOTE, PIECE, TAKEN, WANT
from lockcore.clock import monotonic_ns

ASK_S = 0.1
ENOUGH = 5  # round trips before a run begins
RECENT = 50  # round trips that place a note
AGAIN_S = 3.0  # without a piece: it was lost on the way
GONE_S = 30.0
_ROW = struct.Struct("<3q")


@dataclass(slots=True)
class Host:
    """One worker: who it is, the round trips to its clock, its last note, and how much of it is here."""

    pid: int = 0
    name: str = ""
    about: str = ""
    same_clock: bool = False
    worker: int = 0
    trips: list[tuple[int, int, int]] = field(default_factory=list)
    written: int = 0  # of the trips
    note: WorkerNote | None = None
    here: bool = False
    piece: AsyncResult | None = None

    def ahead_ns(self) -> int:
        """Ours − theirs, most likely, as of now."""
        if self.same_clock or not self.trips:
            return 0
        there = self.trips[-1][1]
        return Clock(np.array(self.trips[-RECENT:], np.int64)).ours(there) - there


class Hosts:
    """The workers of a master. `begin` with each run and its folder; `close` when it is over."""

    def __init__(self, runner: MasterRunner) -> None:
        self._runner, self._clock = runner, clock_name()
        self._folder: Path | None = None
        self.known: dict[str, Host] = {}
        runner.register_message(CLOCK, self._note_clock)
        runner.register_message(NOTE, self._note_note)
        runner.register_message(PIECE, self._note_piece)
        gevent.spawn(self._look)

    def begin(self, folder: Path | None) -> None:
        """A run begins. `folder`: where its files belong; None: nobody judges it."""
        self._folder, self.known = folder, {}

    def note_here(self, node: str, facts: dict[str, object]) -> None:
        """A worker has said what it is."""
        host = self.known.setdefault(node, Host())
        host.pid, host.name, host.about = int(str(facts["pid"])), str(facts["host"]), str(facts["about"])
        host.same_clock, host.worker = facts["clock"] == self._clock, self._runner.get_worker_index(node)

    def ready(self) -> bool:
        """Whether the clock of every worker is known well enough to begin."""
        return all(len(self.known[node].trips) >= ENOUGH for node in self._runner.clients if node in self.known)

    def theirs(self, node: str, time_ns: int) -> int:
        """What a worker's clock shows at our `time_ns`."""
        host = self.known.get(node)
        return time_ns - (host.ahead_ns() if host else 0)

    @property
    def far_ns(self) -> int:
        """The longest of the workers' usual round trips."""
        trips = [np.array(host.trips) for host in self.known.values() if host.trips]
        return int(max((np.median(rows[:, 2] - rows[:, 0]) for rows in trips), default=0))

    # -- clocks and notes --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        while True:
            for node, host in list(self.known.items()):
                self._runner.send_message(CLOCK, {"asked": monotonic_ns()}, node)
                if host.note is not None and host.note.phase == "running" and self.is_gone(node):
                    host.note = msgspec.structs.replace(host.note, phase="lost")
                    self._write(host)
            gevent.sleep(ASK_S)

    def is_gone(self, node: str) -> bool:
        """Whether nothing will be heard of it any more."""
        client = self._runner.clients.get(node)
        return client is None or client.state == STATE_MISSING

    def _note_clock(self, msg: Message, **_: object) -> None:
        back = monotonic_ns()
        host = self.known.get(msg.node_id)
        if host is None:
            return
        asked, there = msg.data["asked"], msg.data["there"]
        host.trips.append((asked, there, back))
        if host.same_clock and not asked <= there <= back:
            host.same_clock = False  # another machine with our name, as of a copied image
        if self._folder is not None and host.pid and not host.same_clock:
            with clock_file(self._folder, host.worker, host.pid).open("ab") as file:
                file.writelines(_ROW.pack(*trip) for trip in host.trips[host.written :])
            host.written = len(host.trips)

    def _note_note(self, msg: Message, **_: object) -> None:
        host = self.known.get(msg.node_id)
        if host is not None and not host.here:
            self._take_note(host, msg.data["note"])

    def _take_note(self, host: Host, text: bytes) -> None:
        note, ahead_ns = decoded(text, WorkerNote), host.ahead_ns()
        host.note = msgspec.structs.replace(
            note,
            worker=host.worker,
            pid=host.pid,
            host=host.name,
            about=host.about,
            clock="" if host.same_clock else "own",
            spawned_ns=note.spawned_ns and note.spawned_ns + ahead_ns,
            stopped_ns=note.stopped_ns and note.stopped_ns + ahead_ns,
            told_ns=note.told_ns and note.told_ns + ahead_ns,
        )
        self._write(host)

    def _write(self, host: Host) -> None:
        if self._folder is not None and host.note is not None:
            write_note(self._folder, host.note)

    # -- histories ---------------------------------------------------------------------------------------------------

    def fetch(self, node: str) -> None:
        """Bring a worker's files here once it has ended; it may then remove them. Without an answer it is gone."""
        host, folder = self.known.get(node), self._folder
        if host is None or folder is None:
            return
        answer = self._ask(node, host, {"name": None, "at": 0})
        if answer is None:
            return
        own = re.compile(rf"(?:{'|'.join(KINDS)})-{host.worker}-{host.pid}(?:\.\d+)?\.bin")
        for name, size in answer["files"].items():
            if not own.fullmatch(name) or not self._fetch_file(node, host, folder / name, size):
                return
        for text in answer["notes"]:
            self._take_note(host, text)
        host.here = True
        self._runner.send_message(TAKEN, None, node)

    def _fetch_file(self, node: str, host: Host, path: Path, size: int) -> bool:
        with path.open("wb") as file:
            while file.tell() < size:
                answer = self._ask(node, host, {"name": path.name, "at": file.tell()})
                if answer is None or not answer["bytes"]:
                    return False
                file.write(answer["bytes"])
        return True

    def _ask(self, node: str, host: Host, what: dict[str, Any]) -> dict[str, Any] | None:
        """Its answer; None when it is gone."""
        deadline_s = time.monotonic() + GONE_S
        while time.monotonic() < deadline_s:
            host.piece = AsyncResult()
            self._runner.send_message(WANT, what, node)
            with suppress(gevent.Timeout):
                answer: dict[str, Any] = host.piece.get(timeout=AGAIN_S)
                if {**answer, **what} == answer:
                    return answer
            if self.is_gone(node):
                return None
        return None

    def _note_piece(self, msg: Message, **_: object) -> None:
        host = self.known.get(msg.node_id)
        if host is not None and host.piece is not None:
            host.piece.set(msg.data)
