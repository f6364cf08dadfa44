"""A worker on another host: *what its leader asks → its clock, its notes, its history, kept until the leader has it*.

Rules: while users run only the clock, a note a second and Locust's table travel, 6.5 kB/s; the history follows when
all have ended, a piece at a time as the leader asks. It is removed when the leader says that it has it, never before.
"""

import logging
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import gevent
from gevent.event import Event
from locust.rpc.protocol import Message
from locust.runners import WorkerRunner

from bench.errors import EnvironmentNotReadyError
from bench.measure.begun import BEGUN, LOST
from bench.workloads.launch import LAST, MORE, NOTE_VARIABLE
from bench.workloads.plan import Plan
from lockcore.clock import NS_PER_S, monotonic_ns

CLOCK, NOTE, WANT, PIECE, TAKEN = (f"lockbench-{word}" for word in ("clock", "note", "want", "piece", "taken"))
PIECE_BYTES = 1 << 20
NOTE_S = 1.0
SILENCE_S = 15.0  # without a word of the leader, which asks for the clock ten times a second: it is gone
TAKEN_S = 10.0  # how long a worker that leaves waits for its leader to have its history
KINDS = ("history", BEGUN, LOST)
logger = logging.getLogger(__name__)


class Away:
    """Answers for one worker, whose files stand in `folder` while it has a plan of a leader elsewhere."""

    def __init__(self, runner: WorkerRunner) -> None:
        self._runner = runner
        self._folder: Path | None = None
        self._taken = Event()
        self._heard_ns = 0
        runner.register_message(CLOCK, self._tell_clock)
        runner.register_message(WANT, self._give)
        runner.register_message(TAKEN, self._remove)

    def open(self, plan: Plan) -> Plan:
        """The plan with a folder of its own, whose notes the leader gets from now on."""
        folder = self._folder = Path(tempfile.mkdtemp(prefix="lockbench-worker-"))
        self._taken.clear()
        self._heard_ns = monotonic_ns()
        gevent.spawn(self._tell_notes, folder)
        if note := os.environ.get(NOTE_VARIABLE):
            Path(note).write_text(MORE if plan.more else LAST, encoding="utf-8")
        return replace(plan, workdir=folder)

    def leave(self) -> None:
        """This process ends: give the leader time to take the history, else say where it is."""
        if self._folder is not None and not self._taken.wait(TAKEN_S):
            logger.warning("the leader has not taken this worker's history, which stays in %s", self._folder)

    def _tell_clock(self, msg: Message, **_: object) -> None:
        self._heard_ns = monotonic_ns()
        self._runner.send_message(CLOCK, {**msg.data, "there": self._heard_ns})

    def _tell_notes(self, folder: Path) -> None:
        told = b""
        while self._folder == folder:
            for path in folder.glob("worker-*.json"):
                with suppress(OSError):
                    if (text := path.read_bytes()) != told:
                        self._runner.send_message(NOTE, {"note": text})
                        told = text
            if monotonic_ns() - self._heard_ns > SILENCE_S * NS_PER_S:
                logger.error("nothing was heard of the leader for %.0f s: giving the locks back", SILENCE_S)
                self._runner.environment.process_exit_code = EnvironmentNotReadyError.exit_code
                self._runner.quit()
                return
            gevent.sleep(NOTE_S)

    def _give(self, msg: Message, **_: object) -> None:
        """A list of the files and their sizes, or a piece of one."""
        folder = self._folder
        if folder is None:
            return
        name, at = msg.data["name"], msg.data["at"]
        if name is None:
            files = {path.name: path.stat().st_size for kind in KINDS for path in folder.glob(f"{kind}-*.bin")}
            notes = [path.read_bytes() for path in folder.glob("worker-*.json")]
            self._runner.send_message(PIECE, {**msg.data, "files": files, "notes": notes})
            return
        with (folder / Path(name).name).open("rb") as file:
            file.seek(at)
            self._runner.send_message(PIECE, {**msg.data, "bytes": file.read(PIECE_BYTES)})

    def _remove(self, **_: object) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
        self._taken.set()
