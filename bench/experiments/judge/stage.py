"""Where a lock is judged: *a lock and N servers → clients that obey step by step, on the audit's
stage*.

Rules: the time to live is the lock's own, so nobody asks for one. A key's end is not waited for:
the stage ends it on the servers (PEXPIRE), where the lock's keys are known by what appears with a
lease and is gone after its release. A client that loses its network stands behind a proxy that hands
over nothing any more.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.experiments.audit.clients.lock import ClientOrder
from bench.experiments.audit.installed import ROOT, LibraryDriver
from bench.experiments.audit.libraries import LibraryWords
from bench.experiments.audit.party import (
    PATIENCE_S,
    READY_S,
    Message,
    NotApplicableError,
    Party,
    Said,
)
from bench.experiments.audit.result import Library
from bench.experiments.audit.stage import Stage
from bench.experiments.judge.subject import Subject
from bench.topology.servants import Proxies, Shape

# A lock whose keys live for longer is not waited for.
LONGEST_TTL_MS = 30_000
WORDS = LibraryWords(
    connect="lock(urls)",
    acquire="acquire",
    release="release",
    hold="with lock: body",
    fork="a forked child: acquire",
)
LOCK_PROCESS = "bench.experiments.judge.lock_process"


def driver_of(subject: Subject) -> LibraryDriver:
    """What starts a client of the lock."""
    command = subject.command or (sys.executable, "-m", LOCK_PROCESS)
    kind = "python" if not subject.command else "node"
    # A module that is named stands where the command is typed.
    path = f"{ROOT}:{Path.cwd()}"
    return LibraryDriver(Library(subject.text, kind), WORDS, command, {"PYTHONPATH": path})


class OwnParty(Party):
    """One client of a lock whose time to live nobody sets: a TTL is `own_ttl_ms`."""

    own_ttl_ms = 10_000

    def begin(self, do: str, **words: object) -> None:
        """Tell it a step."""
        super().begin(do, **words)
        self._ttl_ms = self.own_ttl_ms


class CommandParty(OwnParty):
    """A client that is the user's own command: `acquire NAME`, `release NAME`, a line each."""

    def __init__(self, *args: Any, **words: Any) -> None:
        self._answers: list[Said] = []
        self._name = ""
        super().__init__(*args, **words)

    def tell(self, message: object) -> None:
        """Send a step as the two lines of the protocol say it."""
        if isinstance(message, ClientOrder):
            self._answers.append(Said(ok=True))
            return
        assert isinstance(message, dict)
        do = message["do"]
        if do not in ("acquire", "release"):
            self._answers.append(Said(ok=False, absent=True))
            return
        self._name = message.get("resource", self._name)
        self.write(f"{do} {self._name}\n")

    def hear(self, kind: type[Message], patience_s: float | None = None) -> Message:
        """Return its answer."""
        if self._answers:
            answer: Any = self._answers.pop()
            return answer
        word = self.read_line(READY_S if patience_s is None else patience_s).strip()
        said: Any = Said(ok=word == "ok", error="" if word in ("ok", "no") else word)
        return said


class JudgeStage(Stage):
    """N servers and the clients of one lock. `ttl_ms`: of its keys, None where they have none."""

    def __init__(
        self, subject: Subject, instances: int, server: Any = None, cut: Event | None = None
    ) -> None:
        """Start the servers. Raises EnvironmentNotReadyError."""
        super().__init__(driver_of(subject), instances, server, cut)
        self.subject = subject
        self.ttl_ms: int | None = None
        self.lock_keys: list[frozenset[bytes]] = [frozenset()] * instances
        self._proxies: Proxies | None = None
        if subject.command:
            self.party_type = CommandParty
        else:
            self.party_type = OwnParty

    # -- its clients -------------------------------------------------------------------------------

    def party_behind_proxy(self) -> tuple[Party, Proxies]:
        """One more client, and the proxies between it and the servers."""
        if self._proxies is None:
            self._proxies = Proxies([one.port for one in self.fleet.instances])
        urls = self.urls
        self.urls = tuple(f"redis://127.0.0.1:{port}" for port in self._proxies.ports)
        try:
            return self.party(), self._proxies
        finally:
            self.urls = urls

    def cut_network(self, proxies: Proxies) -> None:
        """Have nothing come through any more, in either direction."""
        for index in range(self.instances):
            proxies.shape(index, Shape(held=("to", "from")))
        self.note("its network is cut: nothing comes through any more")

    def heal_network(self) -> None:
        """Have all come through again, what waits included."""
        if self._proxies is not None:
            for index in range(self.instances):
                self._proxies.shape(index, Shape())

    def _party(self, preload: Mapping[str, str], folder: Path) -> Party:
        party = super()._party(preload, folder)
        assert isinstance(party, OwnParty)
        party.own_ttl_ms = self.ttl_ms or LONGEST_TTL_MS
        return party

    def party_to_interrupt(self) -> Party:
        """One more client, for `interrupt`."""
        self._require_python("a call of a command is not cancelled from outside")
        return super().party_to_interrupt()

    def _require_python(self, sentence: str) -> None:
        if self.subject.command:
            raise NotApplicableError(sentence)

    def _driver(self) -> LibraryDriver:
        if not self.subject.command:
            return self.driver
        return replace(self.driver, command=(*self.subject.command, *self.urls))

    # -- its keys ----------------------------------------------------------------------------------

    def learn(self) -> None:
        """Lock and release once, alone: which keys a lease makes, and for how long they live.
        Raises UsageError where the lock cannot be driven."""
        try:
            party = self.party()
        except EnvironmentNotReadyError as error:
            raise UsageError(str(error)) from None
        reply = party.acquire()
        if not reply.ok:
            raise UsageError(f"{self.name} did not get a lock that nobody has ({reply.error or 'no'})")
        held = self._names()
        lifetimes = [
            server.pttl(name) for server, names in zip(self._servers, held, strict=True) for name in names
        ]
        party.release()
        self._within(PATIENCE_S / 4, lambda: self._names() != held)
        left = self._names()
        self.lock_keys = [frozenset(a - b) for a, b in zip(held, left, strict=True)]
        ends = [ms for ms in lifetimes if ms > 0]
        self.ttl_ms = max(ends) if ends else None

    def _names(self) -> list[set[bytes]]:
        return [set(server.keys("*")) for server in self._servers]

    def keys(self) -> list[str | None]:
        """What the lock's keys hold on each instance that lives, None for nothing."""
        holders: list[str | None] = []
        codes = self.fleet.exit_codes()
        for index, server in enumerate(self._servers):
            if codes[index] is None and index not in self._stopped:
                names = sorted(self.lock_keys[index])
                dumps = [dump for name in names if (dump := server.dump(name)) is not None]
                holders.append(repr(dumps) if dumps else None)
        return holders

    def left_ms(self) -> int:
        """How long the lock's keys live yet, at most, in ms; -1: one has no end, -2: there is none."""
        lifetimes = [
            server.pttl(name)
            for server, names in zip(self._servers, self.lock_keys, strict=True)
            for name in names
        ]
        return -1 if -1 in lifetimes else max(lifetimes, default=-2)

    def until_free(self, patience_s: float = PATIENCE_S) -> bool:
        """End the lock's keys, as their time to live would, and return when they are gone."""
        for index, server in enumerate(self._servers):
            if index not in self._stopped:
                for name in self.lock_keys[index]:
                    server.pexpire(name, 1)
        self.note("its time to live ends")
        return super().until_free(patience_s)

    def end_parties(self) -> None:
        """End the clients, and the proxies before them."""
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

