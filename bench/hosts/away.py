"""A worker on another host: *the leader's questions → the worker's clock, notes and history*.

Rules
- While users run, the worker sends only clock readings, one note per second and Locust's table.
- When all workers have ended, this worker folds its history. It reports how much of the history
  fits into the budget, and packs the part that the leader chooses (share.py). A thread does this
  work, so the worker still answers questions about its clock.
- The leader asks for files piece by piece.
- The worker removes its files when the leader has the files or does not want them. If this process
  is killed, the files are removed, too.
- A leader that is silent for too long counts as gone. In that case the files stay.
"""

import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypedDict

import gevent
import numpy as np
from gevent import get_hub
from gevent.event import Event
from locust.rpc.protocol import Message
from locust.runners import WorkerRunner

from bench.errors import EnvironmentNotReadyError
from bench.hosts.joining import LAST, MORE, NOTE_VARIABLE
from bench.hosts.share import BUCKETS, FOLD, buckets_of, fitting, fold_here, pack_here
from bench.measure.begun import BEGUN, read_lost
from bench.measure.environment import slewed_ns
from bench.measure.facts import Window
from bench.measure.gaps import GAPS
from bench.measure.record import RECORD_BYTES
from bench.measure.workers import NOTE_S, read_workers
from bench.scenario import Scenario
from bench.topology.servants import Guard
from lockcore.clock import monotonic_ns

CLOCK, NOTE, WANT, PIECE, TAKEN = (
    f"lockbench-{word}" for word in ("clock", "note", "want", "piece", "taken")
)
PIECE_BYTES = 1 << 20
# After this silence, the leader counts as gone. A leader asks for the clock at least twice a
# second.
SILENCE_S = 15.0
# A worker that leaves waits this long for its leader to take its history.
TAKEN_S = 10.0
# Before the leader asks for files, it asks how much fits (FOLDED), and then for the file list
# (PACKED).
FOLDED = "folded"
PACKED = "packed"
logger = logging.getLogger(__name__)


class HistoryQuestion(TypedDict, total=False):
    """A question of the leader, in the form that Locust sends.

    `name`: FOLDED, PACKED or the name of a file. `at`: the place of the piece in its file, or the
    number of buckets to pack. `window_ns`, `budget`: see `_folded`, for FOLDED only.
    """

    name: str
    at: int
    window_ns: list[int]
    budget: float


class HistoryAnswer(TypedDict, total=False):
    """The answer of a worker, beside the keys of the question.

    `failed`: the reason if there is no other answer. `fits`, `counts`: the answer to FOLDED, which
    is how many buckets fit, and how many records each bucket has. `files`, `notes`: the answer to
    PACKED, which is the sizes of the files in bytes, and the worker's notes. `bytes`: a piece of a
    file.
    """

    failed: str
    fits: int
    counts: list[int]
    files: dict[str, int]
    notes: list[bytes]
    bytes: bytes


class Away:
    """The part of a worker that answers its leader, which runs on another host.

    While the worker has a plan of the leader, all files of the worker are in one folder.
    """

    def __init__(self, runner: WorkerRunner) -> None:
        self._runner = runner
        self._guard: Guard | None = None
        self._folder: Path | None = None
        self._scenario: Scenario | None = None
        # The long jobs. A job runs only once, even if the leader asks for it again.
        self._jobs: dict[tuple[object, ...], gevent.Greenlet] = {}
        self._taken = Event()
        # The reason why the leader does not want this history, or "" if the leader wants it.
        self._unwanted = ""
        # How many clock messages, and how many other questions, the leader has sent.
        self._heard = self._asked = 0
        # True if the leader has been silent for SILENCE_S.
        self._is_alone = False
        runner.register_message(CLOCK, self._tell_clock)
        runner.register_message(WANT, self._give, concurrent=True)
        runner.register_message(TAKEN, self._note_taken)

    def open(self, scenario: Scenario, *, more: bool) -> Path:
        """Make and return a folder for a run of `scenario`.

        From now on the leader gets the notes in this folder. `more`: another run may follow.
        """
        self._guard = Guard(Path(tempfile.gettempdir()), "lockbench-worker-")
        folder = self._folder = self._guard.folder
        self._scenario = scenario
        self._jobs = {}
        self._taken.clear()
        gevent.spawn(self._tell_notes, folder)
        gevent.spawn(self._watch_leader)
        if note := os.environ.get(NOTE_VARIABLE):
            Path(note).write_text(MORE if more else LAST, encoding="utf-8")
        return folder

    def leave(self) -> None:
        """Give the leader time to take the history before this process ends.

        If the leader does not take the history, the log says where the history is.
        """
        questions = -1
        while (
            self._folder is not None
            and any(self._folder.iterdir())
            and not (self._unwanted or self._is_alone)
        ):
            before = questions
            questions = self._asked
            if questions == before:
                self._keep("the leader has not taken this worker's history")
                return
            self._taken.wait(TAKEN_S)
        if self._is_alone:
            self._keep(f"the leader sent nothing for {SILENCE_S:.0f} s")
            return
        if self._unwanted:
            self._end_badly(self._unwanted)
        self._remove()

    def _keep(self, why: str) -> None:
        """If there is a history, leave it in its folder. Log `why`."""
        guard = self._guard
        self._guard = None
        if guard is not None and any(guard.folder.iterdir()):
            guard.leave_folder()
            why = f"{why}; the history of this worker is kept in {guard.folder}"
        elif guard is not None:
            guard.close()
        self._folder = None
        self._end_badly(why)

    def _end_badly(self, why: str) -> None:
        logger.error(why)
        self._runner.environment.process_exit_code = EnvironmentNotReadyError.exit_code

    def _tell_clock(self, msg: Message, **_: object) -> None:
        self._heard += 1
        self._runner.send_message(
            CLOCK, {**msg.data, "there": monotonic_ns(), "slewed": slewed_ns()}
        )

    def _tell_notes(self, folder: Path) -> None:
        last_text = b""
        while self._folder == folder:
            for path in folder.glob("worker-*.json"):
                with suppress(OSError):
                    if (text := path.read_bytes()) != last_text:
                        self._runner.send_message(NOTE, {"note": text})
                        last_text = text
            gevent.sleep(NOTE_S)

    def _watch_leader(self) -> None:
        """End this process when its leader is gone.

        The loop counts its own rounds instead of time. If this process was stopped, time has
        passed, but the leader's messages may still wait to be read.
        """
        heard = -1
        in_vain = 0
        while in_vain * NOTE_S < SILENCE_S:
            in_vain = in_vain + 1 if self._heard == heard else 0
            heard = self._heard
            gevent.sleep(NOTE_S)
        self._is_alone = True
        self._taken.set()
        self._runner.quit()

    def _give(self, msg: Message, **_: object) -> None:
        """Answer a question of the leader.

        The answer is how much of the history fits, the list of files with their sizes, or a piece
        of a file.
        """
        folder = self._folder
        scenario = self._scenario
        if folder is None or scenario is None or self._unwanted:
            return
        self._asked += 1
        question: HistoryQuestion = msg.data
        name = question["name"]
        at = question["at"]
        if name == FOLDED:
            window_ns = question["window_ns"]
            budget = question["budget"]
            answer = self._worked(("fold",), partial(_folded, folder, scenario, window_ns, budget))
        elif name == PACKED:
            answer = self._worked(("pack", at), partial(_packed, folder, at))
        else:
            answer = _piece(folder / Path(name).name, at)
        self._runner.send_message(PIECE, {**question, **answer})

    def _worked(self, what: tuple[object, ...], work: Callable[[], HistoryAnswer]) -> HistoryAnswer:
        if what not in self._jobs:
            self._jobs[what] = gevent.spawn(get_hub().threadpool.apply, _tried, (work,))
        job = self._jobs[what]
        job.join()
        answer: HistoryAnswer | None = job.value
        return answer or {"failed": str(job.exception)}

    def _note_taken(self, msg: Message, **_: object) -> None:
        """Handle the message that the leader has the history or does not want it.

        If the leader has the history, the files are removed. If it does not want the history, this
        worker may still be at work on the files, and Locust will ask it to quit.
        """
        if msg.data:
            self._unwanted = str(msg.data["why"])
            self._taken.set()
        else:
            self._remove()

    def _remove(self) -> None:
        guard = self._guard
        self._guard = None
        self._folder = None
        if guard is not None:
            guard.close()
        self._taken.set()


def _tried(work: Callable[[], HistoryAnswer]) -> HistoryAnswer:
    """Return the answer of `work`. If `work` fails, return the reason.

    The hub's thread pool would print an exception, so no exception leaves this function.
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the leader learns of it
        return {"failed": f"{type(error).__name__}: {error}"}


def _piece(path: Path, at: int) -> HistoryAnswer:
    """Return a piece of a file, or the reason why the file cannot be read.

    If the leader did not want the history, the folder may be gone.
    """
    try:
        with path.open("rb") as file:
            file.seek(at)
            return {"bytes": file.read(PIECE_BYTES)}
    except OSError as error:
        return {"failed": str(error)}


def _folded(
    folder: Path, scenario: Scenario, window_ns: Sequence[int], budget: float
) -> HistoryAnswer:
    """Fold the history, and find how many buckets fit into the budget.

    `window_ns`: the start and end of the measured time, in ns since the worker's own origin.
    `budget`: the number of packed bytes.
    """
    note = read_workers(folder)[0]
    who = (note.worker, note.pid)
    window = Window(*(note.spawned_ns + offset_ns for offset_ns in window_ns))
    counts = fold_here(folder, who, scenario, window)
    lost = np.bincount(buckets_of(read_lost(folder)[:, 0]), minlength=BUCKETS)
    packed = lambda buckets: sum(pack_here(folder, who, buckets).values())  # noqa: E731 - of these
    fits = fitting(RECORD_BYTES * counts + 16 * lost, budget, packed)
    return {"fits": fits, "counts": counts.tolist()}


def _packed(folder: Path, buckets: int) -> HistoryAnswer:
    note = read_workers(folder)[0]
    sizes = pack_here(folder, (note.worker, note.pid), buckets)
    others = [path for kind in (BEGUN, GAPS) for path in folder.glob(f"{kind}-*.bin")]
    others += folder.glob(f"{FOLD}-*.json")
    files = {**{path.name: path.stat().st_size for path in others}, **sizes}
    return {"files": files, "notes": [path.read_bytes() for path in folder.glob("worker-*.json")]}
