"""Provides the stage of a schedule. The stage has N servers, and clients of one library that
execute single steps.

lockbench starts the servers for itself, and they are empty before each schedule. The oracle that
judges every run of lockbench also judges the grants of the clients. The stage records every step.
Source: proc(5), /proc/net/tcp.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Self

from msgspec.structs import replace
from redis import Redis

from bench.errors import EnvironmentNotReadyError
from bench.experiments.judge.clients.lock import ClientOrder
from bench.experiments.judge.library import LibraryDriver
from bench.experiments.judge.party import (
    LONG_MS,
    PATIENCE_S,
    READY_S,
    RESOURCE,
    WAIT_MS,
    CutError,
    NotApplicableError,
    Party,
    Said,
    history_of,
)
from bench.experiments.judge.result import CourseStep
from bench.measure.server_facts import ServerBinary
from bench.safety.judge import judge
from bench.topology.faults.injection import Need, prepared_fleet
from bench.topology.fleet import Fleet, wait_until
from bench.topology.shim import Control, Preload
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

WARM = "audit-warm"
# If a grant comes at most this long (s) after the end of another client's lease, the client had
# waited for this end.
WAITED_S = 2.0
# The time between two looks at the keys. Each look asks all servers, and the looks must not slow
# down other plays on this machine.
LOOK_S = 0.02
# These keys lock nothing: a list that wakes waiters (python-redis-lock), and the reply of a release
# that a client may ask for again (Redisson, for a third of a minute).
_NOTES = re.compile("signal|_unlock_latch")
# A JVM needs half the CPU to start with these options. Only its timing differs.
_BRIEF = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


class Stage:
    """N servers and the clients of one library. If the servers in `minority` fail, a quorum
    remains. If the servers in `majority` fail, there is no quorum.
    """

    def __init__(
        self,
        driver: LibraryDriver,
        instances: int,
        server: ServerBinary | None = None,
        cut: Event | None = None,
    ) -> None:
        """Start the servers.

        Once the event `cut` is set, every wait ends with CutError. Raises EnvironmentNotReadyError.
        """
        self._cut = cut or Event()
        self.driver = driver
        # The number of clients that may hold the lock at once.
        self.capacity = 1
        # The time for which a place of a semaphore outlives its holder, or None if it is not known.
        self.place_ms: float | None = None
        self.minority = range(instances // 2 + 1, instances)
        self.majority = range((instances - 1) // 2, instances)
        self.fleet: Fleet = prepared_fleet(frozenset({Need.DEBUG}), instances, "none", server)
        # The settings of the next client, and its driver.
        self.urls: tuple[str, ...] = self.fleet.urls
        self.side = ""
        self.party_type = Party
        self.parties: list[Party] = []
        self.course: list[CourseStep] = []
        self._begun_ns = monotonic_ns()
        self._clocks: dict[Party, Control] = {}
        self._servers = [Redis.from_url(url, socket_timeout=PATIENCE_S) for url in self.fleet.urls]
        self._stopped = set[int]()
        self._killed = set[int]()
        self._places = ExitStack()

    @property
    def instances(self) -> int:
        """The number of servers."""
        return len(self._servers)

    @property
    def name(self) -> str:
        """The name of the library."""
        return self.driver.library.name

    def party(self) -> Party:
        """Start one more client. The client has open connections, because it has already locked and
        released another resource.
        """
        return self._party({}, self.fleet.folder)

    def party_to_interrupt(self) -> Party:
        """Start one more client, which the method `interrupt` can interrupt. Raises
        NotApplicableError if a call of the library cannot be interrupted from outside.
        """
        if self.driver.library.kind in ("node", "rust"):
            raise NotApplicableError("a call of this library cannot be cancelled from outside")
        return self.party()

    def interrupt(self, party: Party) -> None:
        """Interrupt the client, and return when the client has received the signal. A thread gets
        Ctrl-C, an asyncio task is cancelled, and in Go the context is cancelled.
        """
        party.note("gets SIGINT, which interrupts its call or cancels its task")
        party.process.send_signal(signal.SIGINT)
        status = Path(f"/proc/{party.process.pid}/status")
        wait_until(
            lambda: not _awaits(signal.SIGINT, status.read_text()),
            PATIENCE_S,
            "the client was not interrupted",
        )
        party.caught()

    def party_by_clock(self) -> Party:
        """Start one more client, whose wall clock can be set.

        Raises NotApplicableError if lockbench cannot set the client's clock.
        """
        if self.driver.library.kind in ("go", "rust"):
            raise NotApplicableError(
                "the wall clock cannot be set, because the client does not read it through libc"
            )
        folder = self.fleet.folder / f"clock-{len(self.parties)}-{monotonic_ns()}"
        folder.mkdir()
        shim = Preload()
        party = self._party(shim.environment(0, folder), folder)
        if not shim.controls[0].loaded_in(party.process.pid):
            raise NotApplicableError(
                "the wall clock cannot be set, because the client ignores LD_PRELOAD"
            )
        self._clocks[party] = shim.controls[0]
        return party

    def shift_clock(self, party: Party, by_s: int) -> None:
        """Shift the wall clock of a client by `by_s` seconds. The client must come from
        `party_by_clock`. No other clock changes.
        """
        self._clocks[party].shift_clock(by_s * NS_PER_S)
        party.note(f"its wall clock is set {'back' if by_s < 0 else 'ahead'} by {abs(by_s)} s")

    def _party(self, preload: Mapping[str, str], folder: Path) -> Party:
        order = ClientOrder(self.name, self.urls, side=self.side)
        environ = {
            **os.environ,
            **_BRIEF,
            **self.driver.environment,
            **preload,
        }
        number = len(self.parties)
        party = self.party_type(self._driver(), order, environ, folder, self._cut)
        self.parties.append(party)
        self.fleet.adopt(party.process.pid)
        for do, words in (
            ("acquire", {"resource": WARM, "ttl_ms": LONG_MS, "wait_ms": WAIT_MS}),
            ("release", {}),
        ):
            party.begin(do, **words)
            reply = party.hear(Said, READY_S)
            if not reply.ok:
                word = reply.error or "no"
                raise EnvironmentNotReadyError(
                    f"{self.name}: {do} failed on a free resource with the answer {word}; {do} "
                    "must succeed when nobody else has the lock"
                )
        party.note = lambda step: self.note(step, chr(ord("A") + number))
        party.note(self.driver.words.connect)
        return party

    def _driver(self) -> LibraryDriver:
        """Return the driver that starts the next client."""
        return self.driver

    def note(self, step: str, who: str = "") -> None:
        """Add a step to the course of events. `who` is the client that did the step, or "" for the
        servers.
        """
        self.course.append(CourseStep((monotonic_ns() - self._begun_ns) / NS_PER_MS, who, step))

    # -- the servers -------------------------------------------------------------------------------

    def stop(self, which: Sequence[int]) -> None:
        """Freeze these instances."""
        for index in which:
            self.fleet.stop(index)
        self._stopped.update(which)
        self._note_servers("frozen (SIGSTOP)", which)

    def cont(self, which: Sequence[int]) -> None:
        """Let these instances continue, and wait until they have executed the commands that had
        already arrived.
        """
        self._note_servers("continue (SIGCONT)", which)
        for index in which:
            self.fleet.cont(index)
        self._stopped.difference_update(which)
        for index in which:
            self._servers[index].ping()

    def kill(self, which: Sequence[int]) -> None:
        """End these instances."""
        for index in which:
            self.fleet.kill(index)
        self._killed.update(which)
        self._note_servers("killed", which)

    def _note_servers(self, what: str, which: Sequence[int]) -> None:
        if which:
            self.note(
                f"{'servers' if len(which) > 1 else 'server'} "
                f"{', '.join(str(one + 1) for one in which)}: {what}"
            )

    def keys(self) -> list[str | None]:
        """Return the content of the resource's key on each instance, or None if there is no key.
        Dead and frozen instances are left out.
        """
        holders: list[str | None] = []
        codes = self.fleet.exit_codes()
        for index, server in enumerate(self._servers):
            if codes[index] is None and index not in self._stopped:
                names = [
                    name for name in server.keys(f"*{RESOURCE}*") if not _NOTES.search(str(name))
                ]
                holders.append(next((repr(server.dump(name)) for name in names), None))
        return holders

    def forget(self, which: Sequence[int]) -> None:
        """Delete all keys of these instances, as a restart without persistence does."""
        for index in which:
            self._servers[index].flushall()
        self._note_servers("FLUSHALL", which)

    def flush_scripts(self) -> None:
        """Send SCRIPT FLUSH to all servers."""
        for server in self._servers:
            server.script_flush()
        self.note("all servers: SCRIPT FLUSH")

    def until_asked(self, which: Sequence[int], party: Party) -> bool:
        """Return True when one of these frozen instances has an unread request of the client.
        Return False if no request arrives in time.
        """
        ports = {self.fleet.instances[index].port for index in which}

        def asked() -> bool:
            looked_ns = monotonic_ns()
            has_request = bool(ports & _asked_ports())
            party.idle_ns = party.idle_ns if has_request else looked_ns
            return has_request

        came = self._within(PATIENCE_S / 4, asked)
        self.note("a request has arrived at a frozen server" if came else "no request has arrived")
        return came

    def until_free(self, patience_s: float = PATIENCE_S) -> bool:
        """Return True when no live instance has the resource's key. Return False if a key remains
        after the wait.
        """
        free = self._within(patience_s, lambda: not any(self.keys()), LOOK_S)
        self.note("its keys have ended" if free else "its keys are still there")
        return free

    def until_everywhere(self, patience_s: float) -> bool:
        """Return True when each live instance has the resource's key. Return False if an instance
        still has no key after the wait.
        """
        return self._within(patience_s, lambda: all(self.keys()), LOOK_S)

    def until_lockable(self, patience_s: float) -> bool:
        """Return True when the resource's keys on the live instances no longer prevent a quorum.
        Return False if the keys still prevent a quorum after the wait.
        """
        quorum = self.instances // 2 + 1
        lockable = self._within(patience_s, lambda: self.keys().count(None) >= quorum, LOOK_S)
        if not lockable:
            self.note(
                f"after {patience_s:.0f} s, keys remain on {sum(map(bool, self.keys()))} servers"
            )
        return lockable

    def cut(self) -> None:
        """End every wait of this stage. If another stage uses the same event `cut`, all waits of
        that stage also end.
        """
        self._cut.set()

    def rest(self, seconds: float) -> None:
        """Wait for this time. Raises CutError."""
        if self._cut.wait(seconds):
            raise CutError

    def _within(self, patience_s: float, met: Callable[[], bool], look_s: float = 0.002) -> bool:
        """Return True when the condition `met` is true. Return False if `met` is still false at the
        end of the wait. The function checks the condition every `look_s` seconds.

        Raises CutError.
        """
        deadline_s = time.monotonic() + patience_s
        while not (is_met := met()) and time.monotonic() < deadline_s:
            if self._cut.wait(look_s):
                raise CutError
        return is_met

    def require_servers(self) -> None:
        """Raise EnvironmentNotReadyError if something other than the schedule killed a server."""
        for index, code in enumerate(self.fleet.exit_codes()):
            if code is not None and index not in self._killed:
                raise EnvironmentNotReadyError(f"server {index + 1} ended with exit code {code}")

    def has_waited(self) -> bool:
        """Return whether some client's lease ended within the last two seconds. Call this function
        after a client has got the lock. If the result is True, this client waited for the end of
        another client's lease. If the result is False, this client got the lock while another
        client held the lock.
        """
        ends_ns = [party.until_ns for party in self.parties if party.operations]
        now_ns = monotonic_ns()
        return any(0 <= now_ns - end_ns < WAITED_S * NS_PER_S for end_ns in ends_ns)

    # -- its end -----------------------------------------------------------------------------------

    def broken(self, *, has_waited: bool = False) -> str:
        """Return a text that names the broken rule of mutual exclusion, or "" if no rule was
        broken.

        `has_waited` means that a client waited for another client's lease. Some libraries do not
        state when a lease ends. For such a library, the judge assumes that the lease ends one TTL
        after the request. So the grant may be later than the assumed end. If `has_waited` is true,
        such a late grant is not a fault.
        """
        done = [
            replace(one, caller=number)
            for number, party in enumerate(self.parties)
            for one in party.operations
        ]
        if not done:
            return ""
        report = judge(history_of(done), LONG_MS)
        if report.service_faults:
            return "two clients held the lock at once"
        is_late = report.granted_invalid and not has_waited
        return "a lease was granted after its end" if is_late else ""

    def clear(self) -> None:
        """End the clients. Make all servers live and empty again."""
        self.end_parties()
        for index, code in enumerate(self.fleet.exit_codes()):
            if code is None:
                self.fleet.cont(index)
            else:
                self.fleet.restart(index)
        self._stopped.clear()
        self._killed.clear()
        for server in self._servers:
            server.flushall()
        self.course = []
        self._begun_ns = monotonic_ns()

    def end_parties(self) -> None:
        """End the clients."""
        while self.parties:
            self.parties.pop().close()
        self._clocks.clear()
        self._places.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        with ExitStack() as steps:
            steps.callback(self.fleet.close)
            for server in self._servers:
                steps.callback(server.close)
            steps.callback(self.end_parties)


def _awaits(number: signal.Signals, status: str) -> bool:
    """Return whether the signal `number` is still pending. `status` is the text of the process's
    file /proc/PID/status.
    """
    pending = (
        line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))
    )
    return any(int(mask, 16) >> (number - 1) & 1 for mask in pending)


def _asked_ports() -> set[int]:
    """Return the local TCP ports on which a connection has unread data."""
    ports = set[int]()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if state == "01" and int(queues.partition(":")[2], 16):
            ports.add(int(local.partition(":")[2], 16))
    return ports
