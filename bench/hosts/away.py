"""A worker on another host, which sends its clock, its notes and its history to the leader.

Rules
- While users run, the worker sends only its clock readings, one note per second, and Locust's
  statistics.
- When all workers have finished, this worker adds up its history. The worker reports how much of
  the history fits into the budget, and packs the part that the leader chooses (share.py). A thread
  does this work, so that the worker can still answer questions about its clock.
- The leader requests each file in pieces.
- The worker removes its files when the leader has received the files or refused them. The files are
  also removed if this process is killed.
- If the leader sends nothing for too long, the worker assumes that the leader is gone. Then the
  worker keeps its files.
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
    """A question from the leader, as a dict that Locust can send.

    `name` is FOLDED, PACKED or the name of a file. In a question about a file, `at` is the offset
    of the requested piece in bytes. In a PACKED question, `at` is the number of buckets that the
    worker must pack. Only a FOLDED question has the keys `window_ns` and `budget`. The function
    `_folded` explains these two keys.
    """

    name: str
    at: int
    window_ns: list[int]
    budget: float


class HistoryAnswer(TypedDict, total=False):
    """A worker's answer. The message also contains all keys of the question.

    If the worker cannot answer, the message also has the key `failed` with the reason, and it has
    no further keys. The further keys of an answer to a FOLDED question are `fits` and `counts`.
    `fits` is how many buckets fit into the budget, and `counts` is the number of records in each
    bucket. The further keys of an answer to a PACKED question are `files` and `notes`. `files` has
    the size of each file in bytes, and `notes` has the worker's notes. The further key of any other
    answer is `bytes`, which is a piece of a file.
    """

    failed: str
    fits: int
    counts: list[int]
    files: dict[str, int]
    notes: list[bytes]
    bytes: bytes


class Away:
    """The part of a worker that answers its leader, which runs on another host.

    During a run, all files of this worker are in one folder.
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

        After this call, the worker sends each new note that is stored in this folder to the leader.
        If `more` is true, another run may follow.
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
                self._keep("the leader has not fetched this worker's history")
                return
            self._taken.wait(TAKEN_S)
        if self._is_alone:
            self._keep(f"the leader sent nothing for {SILENCE_S:.0f} s")
            return
        if self._unwanted:
            self._end_badly(self._unwanted)
        self._remove()

    def _keep(self, why: str) -> None:
        """Keep the worker's folder if it has any files, and log `why`."""
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

        The loop checks for new messages at regular intervals. It counts the checks without a new
        message, and it does not measure time. After a stop of this process, messages of the leader
        may still be unread. A loop that measured time would then end this process although the
        leader is alive.
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
        """Answer a question from the leader.

        The answer to FOLDED shows how much of the history fits into the budget. The answer to
        PACKED lists the files and their sizes. The answer to any other question is a piece of a
        file.
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
        """Handle the message in which the leader accepts or refuses this worker's history.

        If the leader has received the history, the worker removes its files. If the leader refuses
        the history, the files stay, because a job of this worker may still use them. In this case,
        Locust will ask the worker to quit.
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
    """Call the function `work` and return its answer. If `work` raises an exception, return an
    answer that contains the text of the exception.

    This function never raises, because gevent's thread pool would print the exception.
    """
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the leader learns of it
        return {"failed": f"{type(error).__name__}: {error}"}


def _piece(path: Path, at: int) -> HistoryAnswer:
    """Return a piece of a file, or the reason why the file cannot be read.

    The folder may be missing if the leader has refused the history.
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
    """Add up the history, and compute how many buckets fit into the budget.

    `window_ns` has the start and the end of the measured time. Both are in ns since the worker's
    own origin. `budget` is the largest permitted number of packed bytes.
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
