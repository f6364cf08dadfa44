"""Provides the stage on which the judge tests a user's lock. This stage extends the stage of the
audit. The new stage handles the TTL and the keys that the user's lock chooses. The new stage also
adds proxies and faults.

The lock chooses its TTL, and the judge waits until this TTL has passed. The lock's keys are the
keys that appear with a lease and are gone after its release. The judge cannot see when a waiting
acquire sends its SET. So a lease ends one TTL after the acquire began. If the grant is later than
this end, the lease ends immediately after the grant. A lease that ends immediately after its grant
never counts as a fault. If a row cuts a client's network, a proxy connects this client to the
servers. The proxy then stops forwarding data.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from msgspec import structs
from redis.exceptions import RedisError

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.experiments.judge.clients.lock import ClientOrder
from bench.experiments.judge.library import ROOT, Language, Library, LibraryDriver, LibraryWords
from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.needs import LONGEST_TTL_MS, Observed
from bench.experiments.judge.party import (
    PATIENCE_S,
    READY_S,
    RESOURCE,
    HangsError,
    Message,
    NotApplicableError,
    Party,
    Said,
)
from bench.experiments.judge.subject import Subject
from bench.measure.server_facts import ServerBinary
from bench.topology.faults.injection import FaultKind, FaultOrder, Injection, read_params
from bench.topology.fleet import HOST, Fleet, start_fleet
from bench.topology.probe import Info
from bench.topology.servants import Proxies, Shape

# The protocol of a command does not have these calls.
COMMAND_LACKS: tuple[Observed, ...] = ("hold", "fork", "interrupt", "virtual time")
# A place of a semaphore may end before the semaphore's key. The measured time until its end
# includes the wait of the next client, so only this part of it is certain. If the whole time
# counted, a client that is quicker to get the place would look like one client too many.
SURE = 0.8
# The keys that other clients write live for this time.
WRITTEN_S = 86_400
# A part of a key's name that differs from lease to lease, such as a UUID.
_UNIQUE = re.compile(rb"[0-9A-Fa-f-]{8,}")
# This many characters of a command's answer are shown.
LONGEST_ANSWER = 200
WORDS = LibraryWords(
    connect="lock(urls)",
    acquire="acquire",
    release="release",
    hold="with lock: body",
    fork="a forked child: acquire",
)
LOCK_PROCESS = f"{__package__}.lock_process"


def driver_of(subject: Subject) -> LibraryDriver:
    """Return the driver that starts a client of the lock."""
    command = subject.command or (sys.executable, "-m", LOCK_PROCESS)
    kind: Language = "node" if subject.command else "python"
    # A named module is in the folder where the command is typed, or on the path of this process.
    path = os.pathsep.join(filter(None, (str(ROOT), str(Path.cwd()), *sys.path)))
    return LibraryDriver(Library(subject.text, kind), WORDS, command, {"PYTHONPATH": path})


class OwnParty(Party):
    """One client of a user's lock. The lock chooses its own TTL, which is `own_ttl_ms`."""

    IF_LATE = "connect, acquire and release must return when nobody has the lock"
    own_ttl_ms = 10_000

    def failure(self) -> EnvironmentNotReadyError:
        """Return an error that states why the process ended, and what the user can do."""
        return EnvironmentNotReadyError(f"{super().failure()}; {self.IF_LATE}")

    def begin(self, do: str, **words: object) -> None:
        """Send the client a step."""
        super().begin(do, **words)
        self._ttl_ms = self.own_ttl_ms

    def acquired(self, patience_s: float = PATIENCE_S) -> Said:
        """Return the answer to an acquire. The recorded lease ends at least 1 ns after its
        grant.
        """
        reply = super().acquired(patience_s)
        last = self.operations[-1]
        ends_ns = max(last.valid_until_ns, last.granted_ns + 1)
        if reply.ok:
            self.operations[-1] = structs.replace(last, valid_until_ns=ends_ns)
        return reply


class CommandParty(OwnParty):
    """A client that runs the user's own command. lockbench sends the lines `acquire NAME` and
    `release NAME` to the command.
    """

    IF_LATE = "answer each line on stdin with a line on stdout, and flush stdout"
    # The answer is a word or the text of an error.
    LONGEST_LINE = 1 << 20
    # A user's command gets the URLs of the servers as its last arguments, and no argument after
    # them.
    TELLS_STEPS = ()

    def __init__(self, *args: Any, **words: Any) -> None:
        self._answers: list[Said] = []
        self._name = ""
        self._acquire = "acquire"
        super().__init__(*args, **words)

    def tell(self, message: object) -> None:
        """Send the step to the command as the line `acquire NAME` or `release NAME`. If `message`
        is another step, do not send it, and answer with `absent`.
        """
        if isinstance(message, ClientOrder):
            self._acquire = message.side or "acquire"
            self._answers.append(Said(ok=True, lacks=COMMAND_LACKS))
            return
        assert isinstance(message, dict)
        do = message["do"]
        if do not in ("acquire", "release"):
            self._answers.append(Said(ok=False, absent=True))
            return
        self._name = message.get("resource", self._name)
        self.write(f"{self._acquire if do == 'acquire' else do} {self._name}\n")

    def hear(self, kind: type[Message], patience_s: float | None = None) -> Message:
        """Return the command's answer."""
        if not self._answers:
            word = self.read_line(READY_S if patience_s is None else patience_s).strip()
            error = "" if word in ("ok", "no") else word[:LONGEST_ANSWER]
            self._answers.append(Said(ok=word == "ok", error=error))
        answer = self._answers.pop()
        assert isinstance(answer, kind)
        return answer


class JudgeStage(Stage):
    """N servers and the clients of one lock. `ttl_ms` is the TTL of the lock's keys, or None if the
    keys have no TTL."""

    def __init__(
        self,
        subject: Subject,
        instances: int,
        server: ServerBinary | None = None,
        cut: Event | None = None,
    ) -> None:
        """Start the servers. Raises EnvironmentNotReadyError."""
        super().__init__(driver_of(subject), instances, server, cut)
        self.subject = subject
        # The number of takeovers that are timed at once, and the duration of a load (s).
        self.takeovers = 3
        self.seconds = 1.0
        self.ttl_ms: int | None = None
        self.lock_keys: list[frozenset[bytes]] = [frozenset()] * instances
        # The names of the keys that stay after a release, without their unique parts.
        self.other_keys = frozenset[bytes]()
        self._proxies: Proxies | None = None
        self._replicas: Fleet
        self._replicated: Sequence[int] = ()
        if subject.command:
            self.party_type = CommandParty
        else:
            self.party_type = OwnParty

    @property
    def is_shared(self) -> bool:
        """True if readers may hold the lock together, and a writer may only hold it alone."""
        return bool(self.side)

    # -- its clients -------------------------------------------------------------------------------

    def party(self) -> Party:
        """Start one more client in the current folder, because a user's command may open files in
        this folder.
        """
        return self._party({}, Path.cwd())

    def reader(self) -> Party:
        """Start one more client, which uses the readers' side of a shared lock."""
        side = self.side
        self.side = "read"
        try:
            return self.party()
        finally:
            self.side = side

    def party_behind_proxy(self) -> Party:
        """Start one more client. Proxies connect this client to the servers."""
        if self._proxies is None:
            self._proxies = Proxies([one.port for one in self.fleet.instances])
        urls = self.urls
        self.urls = tuple(f"redis://{HOST}:{port}" for port in self._proxies.ports)
        try:
            return self.party()
        finally:
            self.urls = urls

    def cut_network(self) -> None:
        """Stop all traffic through the proxies, in both directions."""
        assert self._proxies is not None
        for index in range(self.instances):
            self._proxies.shape(index, Shape(held=("to", "from")))
        self.note("the network of client A is cut")

    def heal_network(self) -> None:
        """Let the proxies forward all data again, including the data that waits in them."""
        if self._proxies is not None:
            for index in range(self.instances):
                self._proxies.shape(index, Shape())

    def _party(self, preload: Mapping[str, str], folder: Path) -> Party:
        party = super()._party(preload, folder)
        assert isinstance(party, OwnParty)
        party.own_ttl_ms = self.ttl_ms or LONGEST_TTL_MS
        if self.place_ms is not None:
            party.own_ttl_ms = min(party.own_ttl_ms, int(SURE * self.place_ms))
        return party

    def party_to_interrupt(self) -> Party:
        """Start one more client, which the method `interrupt` can interrupt. Raises
        NotApplicableError for a user's command.
        """
        self._require_python("lockbench cannot cancel a call of a lock that runs as a command")
        return super().party_to_interrupt()

    def _require_python(self, sentence: str) -> None:
        if self.subject.command:
            raise NotApplicableError(sentence)

    def _driver(self) -> LibraryDriver:
        if not self.subject.command:
            return self.driver
        return replace(self.driver, command=(*self.subject.command, *self.urls))

    # -- its servers -------------------------------------------------------------------------------

    def restart_all(self) -> None:
        """Restart all servers. They forget all keys."""
        everyone = range(self.instances)
        self.kill(everyone)
        self.fleet.restart(*everyone)
        self._killed.clear()
        self.note("all servers run again, and they are empty")

    @contextmanager
    def fault(
        self,
        kind: FaultKind,
        text: str,
        lasts_ms: float | None = None,
        *,
        is_mute: bool = False,
        **params: object,
    ) -> Iterator[None]:
        """Apply a fault of a scenario to all servers. If `is_mute` is true, the servers answer
        nobody during the fault. Raises NotApplicableError if a server cannot have the fault.
        """
        everyone = range(self.instances)
        values = read_params(kind.params, params)
        with ExitStack() as undo:
            for index in everyone:
                order = FaultOrder(text, "instance", index, lasts_ms=lasts_ms, params=values)
                injection = Injection(self.fleet, order, kind)
                refusal = injection.refusal()
                if refusal is not None:
                    raise NotApplicableError(str(refusal))
                undo.callback(injection.end)
                injection.begin()
            self.note(f"all servers: {text}")
            if is_mute:
                self._stopped.update(everyone)
                undo.callback(self._stopped.clear)
            yield
        self.note(f"all servers are normal again, because {text} has ended")

    def write(self, names: Sequence[str], text: str) -> None:
        """Write keys to all servers, as another client would."""
        for server in self._servers:
            pipeline = server.pipeline(transaction=False)
            for name in names:
                pipeline.set(name, text, ex=WRITTEN_S)
            pipeline.execute()

    def add_replicas(self, which: Sequence[int]) -> None:
        """Start a replica for each of these servers. Each replica copies the data of its server
        once. Then the replica is disconnected from this server.
        """
        self._replicas = self._places.enter_context(
            start_fleet(len(which), "none", server=self.fleet.server)
        )
        self._replicated = which
        for index, primary in enumerate(which):
            # Otherwise a primary waits for 5 s in case more replicas come.
            self.fleet.configure(primary, {"repl-diskless-sync-delay": "0"})
            port = self.fleet.instances[primary].port
            self._replicas.command(index, "REPLICAOF", HOST, port)
            self._replicas.until(index, _is_copy, "copy its primary")
            self._replicas.command(index, "REPLICAOF", "NO", "ONE")
        self._note_servers("the replica of each of these servers stops copying data", which)

    def fail_over(self) -> None:
        """Kill the servers that have a replica. Clients then reach the replica at the address of
        the killed server.
        """
        self.kill(self._replicated)
        assert self._proxies is not None
        for instance, index in zip(self._replicas.instances, self._replicated, strict=True):
            self._proxies.shape(index, Shape(port=instance.port))
        self._note_servers(
            "the replica of this server is now the primary, at the same address", self._replicated
        )

    # -- its keys ----------------------------------------------------------------------------------

    def learn(self) -> None:
        """Make one client lock and release while no other client runs. The judge observes which
        keys the lease creates, and how long these keys live. Raises UsageError if the judge cannot
        drive the lock.
        """
        try:
            self._learn()
        except HangsError as error:
            raise UsageError(
                f"{self.name} hangs while nobody else has its lock ({error}); {OwnParty.IF_LATE}"
            ) from None
        except (EnvironmentNotReadyError, RedisError) as error:
            raise UsageError(str(error)) from None

    def _learn(self) -> None:
        party = self.party()
        reply = party.acquire()
        if not reply.ok:
            raise UsageError(
                f"{self.name} did not get the lock although nobody has it ({reply.error or 'no'})"
            )
        held = self._names()
        lifetimes = [
            server.pttl(name)
            for server, names in zip(self._servers, held, strict=True)
            for name in names
        ]
        party.release()
        self._within(PATIENCE_S / 4, lambda: self._names() != held)
        left = self._names()
        self.lock_keys = [frozenset(a - b) for a, b in zip(held, left, strict=True)]
        self.other_keys = frozenset(_UNIQUE.sub(b"", name) for names in left for name in names)
        ends = [ms for ms in lifetimes if ms > 0]
        self.ttl_ms = max(ends) if ends else None

    def _names(self) -> list[set[bytes]]:
        return [{bytes(name) for name in server.scan_iter()} for server in self._servers]

    # The first lease shows all keys of a mutex. A semaphore may have a key for each place or for
    # each owner. Then the next lease has another key, and the first key says nothing about it.
    def _lock_keys(self, index: int) -> list[bytes]:
        """Return the names of the lock's keys on one server. For a semaphore, the result also
        contains the keys that exist now. However, some keys of a lock remain after a release. The
        result omits all keys that differ from such a key only in a unique part of the name.
        """
        names = set(self.lock_keys[index])
        if self.capacity > 1:
            names.update(
                name
                for name in self._servers[index].scan_iter(f"*{RESOURCE}*")
                if _UNIQUE.sub(b"", name) not in self.other_keys
            )
        return sorted(names)

    def keys(self) -> list[str | None]:
        """Return the contents of the lock's keys, with one entry for each live instance. The entry
        is None if the instance has none of these keys.
        """
        holders: list[str | None] = []
        codes = self.fleet.exit_codes()
        for index, server in enumerate(self._servers):
            if codes[index] is None and index not in self._stopped:
                names = self._lock_keys(index)
                dumps = [dump for name in names if (dump := server.dump(name)) is not None]
                holders.append(repr(dumps) if dumps else None)
        return holders

    def left_ms(self) -> int:
        """Return the longest remaining time to live of the lock's keys, in ms. The result is -1 if
        a key never expires, and -2 if there is no key.
        """
        lifetimes = [
            server.pttl(name)
            for index, server in enumerate(self._servers)
            for name in self._lock_keys(index)
        ]
        return -1 if -1 in lifetimes else max(lifetimes, default=-2)

    def until_free(self, patience_s: float = PATIENCE_S) -> bool:
        """Return True when the lock's keys have expired, and False if the keys remain. Raises
        NotApplicableError if the keys have no TTL, or if the TTL is too long to wait for.
        """
        return super().until_free(patience_s + self.require_ttl() / 1000)

    def until_lockable(self, patience_s: float) -> bool:
        """Return True when the lock's keys no longer prevent a quorum. Return False if the keys
        still prevent a quorum after the wait. The wait lasts at most half a TTL. During a longer
        wait, keys could expire, and an expired key looks like a released key.
        """
        if self.ttl_ms:
            patience_s = min(patience_s, self.ttl_ms / 2000)
        return super().until_lockable(patience_s)

    def require_ttl(self) -> int:
        """Return the TTL of the lock's keys in ms. Raises NotApplicableError if the keys have no
        TTL, or if the TTL is too long to wait for.
        """
        if self.ttl_ms is None:
            raise NotApplicableError("the lock's keys have no TTL")
        if self.ttl_ms > LONGEST_TTL_MS:
            raise NotApplicableError(
                f"the lock's TTL is {self.ttl_ms / 1000:g} s; use a TTL of "
                f"{LONGEST_TTL_MS // 1000} s or less for this row"
            )
        return self.ttl_ms

    def end_parties(self) -> None:
        """End the clients. The proxies continue to run, and forward the data that waits in them."""
        self.heal_network()
        super().end_parties()

    def close_proxies(self) -> None:
        """End the proxies."""
        if self._proxies is not None:
            self._proxies.close()
            self._proxies = None

    def __exit__(self, *raised: object) -> None:
        self.close_proxies()
        super().__exit__(*raised)


def _is_copy(info: Info) -> bool:
    """Return whether a replica has copied all keys of its primary."""
    return info.get("master_link_status") == "up"
