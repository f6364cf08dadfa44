"""Drives one client of a library. lockbench sends a step as a line, and the client answers with a
line at any later time.

Each client runs in its own process. A wait for an answer lasts at most `PATIENCE_S`, unless the
caller specifies another time. The stage records each grant of the client as an operation. A load
also records each of its grants as an operation. A lease ends at the time that the library stated at
the grant. If the library stated no time, the lease ends one TTL after its acquire began. The record
of a step shows the library call as code that a user of the library would write (libraries.py).
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TypeVar

import msgspec
import psutil
from msgspec import structs

from bench.errors import EnvironmentNotReadyError
from bench.experiments.judge.clients.lock import ClientOrder
from bench.experiments.judge.library import LibraryDriver
from bench.experiments.judge.needs import Observed
from bench.measure.history import History
from bench.measure.record import OUTCOME_CODES, RECORD_FIELDS, OperationFacts, records_of
from bench.topology.child import Child
from bench.topology.fleet import wait_until
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

# A client that does not answer for this time (s) hangs.
PATIENCE_S = 8.0
# A client must be started and connected within this time.
READY_S = 30.0
RESOURCE = "audit-r"
# A lock with the long TTL outlives its schedule. A lock with the short TTL ends within its
# schedule. Both TTLs are whole seconds, because python-redis-lock counts in whole seconds.
LONG_MS = 10_000
SHORT_MS = 1000
WAIT_MS = 500
# A pause of this length stays below the time-outs that clients set for a server. The shortest of
# these time-outs is lockcore's, 50 ms.
BRIEF_S = 0.04
# The time between two checks whether the audit or the judgement was interrupted.
LOOK_S = 0.1
# A client with one of these exit codes was killed from outside, for example for lack of memory.
# This end is not the fault of the client's library.
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)


def history_of(operations: Iterable[OperationFacts]) -> History:
    """Return a history of these operations, in the form that the oracle judges."""
    rows = []
    for one in operations:
        code = OUTCOME_CODES[one.outcome] | OUTCOME_CODES[one.release_outcome] << 8
        rows.append(
            tuple(code if name == "outcome" else getattr(one, name) for name in RECORD_FIELDS)
        )
    return History(records_of(rows), torn=0, missing_segments=0)


class Said(msgspec.Struct, frozen=True):
    """The answer of a client to a step or to the order. The module clients/steps.py describes the
    steps. If the client answers the order, `lacks` holds the features that the client does not
    have.
    """

    ok: bool
    absent: bool = False
    error: str = ""
    valid_ms: float | None = None
    answers: bool = False
    lacks: tuple[Observed, ...] = ()


class HangsError(Exception):
    """A client did not answer in time. `is_waiting(parties)` returns whether the client may be
    waiting for a lock that one of `parties` had when the client asked for the lock.
    """

    def __init__(
        self, text: str, is_waiting: Callable[[Sequence["Party"]], bool] = lambda _parties: False
    ) -> None:
        super().__init__(text)
        self.is_waiting = is_waiting


class NotApplicableError(Exception):
    """A row does not apply to a lock. The text of the exception states the reason."""


class CutError(Exception):
    """The user interrupted the audit or the judgement. Unfinished schedules are dropped, because an
    incomplete schedule proves nothing.
    """


Message = TypeVar("Message")


class Party(Child):
    """One client, which is a process of a driver with a connected lock.

    `operations` holds the client's grants and refusals so far.
    """

    # This argument makes the driver expect steps.
    TELLS_STEPS: tuple[str, ...] = ("steps",)

    def __init__(
        self,
        driver: LibraryDriver,
        order: ClientOrder,
        environ: Mapping[str, str],
        folder: Path,
        cut: Event | None = None,
    ) -> None:
        """Start and connect the client. Once the event `cut` is set, every wait for the client ends
        with CutError. Raises EnvironmentNotReadyError and CutError.
        """
        self._cut = cut or Event()
        super().__init__(
            f"a client of {order.name}",
            [*driver.command, *self.TELLS_STEPS],
            environ=environ,
            folder=folder,
        )
        self.operations: list[OperationFacts] = []
        self.note: Callable[[str], None] = lambda _step: None
        self._words = driver.words
        self._step = ""
        self._asked_ns = 0
        self._ttl_ms = 0
        # The moment when the keys of its last lock end.
        self.until_ns = 0
        # Until this moment the client has certainly not asked a frozen server.
        self.idle_ns = 0
        self.late = False
        try:
            self.tell(order)
            hello = self.hear(Said, READY_S)
            if hello.error:
                raise EnvironmentNotReadyError(hello.error)
            self.lacks = hello.lacks
        except BaseException:
            self.close()
            raise

    def has_written(self, patience_s: float | None) -> bool:
        """Return whether the client writes something or ends within `patience_s` seconds. None
        means READY_S.

        Raises CutError as soon as the user interrupts the audit or the judgement.
        """
        deadline_s = time.monotonic() + (READY_S if patience_s is None else patience_s)
        while not super().has_written(LOOK_S):
            if self._cut.is_set():
                raise CutError
            if time.monotonic() >= deadline_s:
                return False
        return True

    def begin(self, do: str, **words: object) -> None:
        """Send the client a step."""
        self.idle_ns = self._asked_ns = monotonic_ns()
        self._step = do
        self._ttl_ms = int(str(words.get("ttl_ms", 0)))
        self.note(self._words.call(do, self._ttl_ms, WAIT_MS))
        self.tell({"do": do, **words})

    def answer(self, patience_s: float = PATIENCE_S) -> Said:
        """Return the client's answer to the current step. Raises HangsError."""
        try:
            reply = self.hear(Said, patience_s)
        except EnvironmentNotReadyError:
            if not self.ended:
                self.note(f"→ nothing for {patience_s:.0f} s")
                raise HangsError(f"no answer within {patience_s:.0f} s", self._waits) from None
            if self.process.returncode in _FROM_OUTSIDE:
                raise
            reply = Said(ok=False, error="the process ended")
        valid = "" if reply.valid_ms is None else f", valid for {reply.valid_ms:,.0f} ms"
        self.note(f"→ yes{valid}" if reply.ok else f"→ {reply.error or 'no'}")
        return reply

    def _waits(self, parties: Sequence["Party"]) -> bool:
        """Return whether the client may be waiting for a lock that one of `parties` holds. The
        result is False if the current step is a release, or if none of `parties` held a lock when
        the step began. In the step `fork`, a child of the client asks for the lock. The child may
        then wait for a lock that the client itself holds.
        """
        return self._step != "release" and any(
            lease.granted_ns and not lease.release_sent_ns and one.until_ns > self._asked_ns
            for one in parties
            for lease in one.operations[-1:]
        )

    def ask(self, do: str, **words: object) -> Said:
        """Send the client a step and return its answer.

        Raises HangsError if the client does not answer. Raises NotApplicableError if the library
        does not offer this step.
        """
        self.begin(do, **words)
        reply = self.answer()
        if reply.absent:
            raise NotApplicableError(f"the library has no {do}")
        return reply

    def begin_acquire(self, ttl_ms: int = LONG_MS, resource: str = RESOURCE) -> None:
        """Send the client the request to lock the resource."""
        self.begin("acquire", resource=resource, ttl_ms=ttl_ms, wait_ms=WAIT_MS)

    def acquired(self, patience_s: float = PATIENCE_S) -> Said:
        """Wait for the answer to the last `begin_acquire`, record the answer, and return it."""
        reply = self.answer(patience_s)
        now_ns = monotonic_ns()
        self.until_ns = end_ns = self._asked_ns + self._ttl_ms * NS_PER_MS
        if reply.valid_ms is not None:
            end_ns = now_ns + int(reply.valid_ms * NS_PER_MS)
        done = OperationFacts(
            start_ns=self._asked_ns,
            attempt_ns=self._asked_ns,
            ended_ns=now_ns,
            resource=0,
            caller=0,
            sequence=1,
            outcome="contended",
            granted_ns=0,
            valid_until_ns=0,
        )
        if reply.ok:
            done = structs.replace(
                done, outcome="acquired", granted_ns=now_ns, valid_until_ns=end_ns
            )
        self.operations.append(done)
        return reply

    def acquire(self, ttl_ms: int = LONG_MS, resource: str = RESOURCE) -> Said:
        """Make the client lock the resource, and return its answer."""
        self.begin_acquire(ttl_ms, resource)
        return self.acquired()

    def begin_release(self) -> None:
        """Send the client the request to release its newest lock."""
        self.operations[-1] = structs.replace(self.operations[-1], release_sent_ns=monotonic_ns())
        self.begin("release")

    def release(self) -> Said:
        """Make the client release its newest lock, and return its answer."""
        self.begin_release()
        reply = self.answer()
        self.operations[-1] = structs.replace(
            self.operations[-1],
            release_replied_ns=monotonic_ns(),
            release_outcome="released" if reply.ok else "gone",
        )
        return reply

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the client and to all processes that it has started. All these processes
        need the signal, because a user's command may be only a wrapper. In this case, a process
        that the command started uses the lock. For example, the program `timeout` runs the command
        in a separate process group.
        """
        if self.ended:
            return
        started: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            started = psutil.Process(self.process.pid).children(recursive=True)
        os.killpg(self.process.pid, number)
        for process in started:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(process.pid) != self.process.pid:
                    process.send_signal(number)

    def pause(self) -> None:
        """Freeze the client, and wait until its process has stopped."""
        self.signal(signal.SIGSTOP)
        state = Path(f"/proc/{self.process.pid}/stat")
        wait_until(
            lambda: state.read_text().rpartition(")")[2].split()[0] == "T",
            PATIENCE_S,
            "the client did not freeze",
        )
        self.caught()
        self.note("frozen (SIGSTOP)")

    def caught(self) -> None:
        """Record that the client's current request is interrupted now. If the request may have
        timed out before the interruption, `late` becomes true.
        """
        self.late = monotonic_ns() - self.idle_ns > BRIEF_S * NS_PER_S

    def resume(self) -> None:
        """Let the client continue."""
        self.note("continues (SIGCONT)")
        self.idle_ns = monotonic_ns()
        self.signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill the client. The client does not release its lock first, because a client that hangs
        could not do this.
        """
        self.signal(signal.SIGKILL)
        super().close()
