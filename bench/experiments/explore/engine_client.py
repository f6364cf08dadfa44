"""Runs lockcore's engine as a client of the simulated servers.

The engine itself decides the steps of acquire, extend and release, and the client executes these
steps. The client replaces lockcore's sockets and event loop, and it runs in virtual time. The
client sends a batch in the next pass of the simulated event loop. The client calls the engine's
`tick` at the time that the engine requests. The engine also decides when the client repairs a
broken connection.
"""

from collections.abc import Generator, Sequence
from functools import cache, partial
from random import Random
from typing import Any, TypeVar

from bench.experiments.explore.network import SimulatedLink, SimulatedServer
from bench.experiments.explore.schedule import TTL_MS
from bench.experiments.explore.world import Process, here
from lockcore import Denied, Lease, Outcome, RetryPolicy, Settings
from lockcore.bench import (
    Acquisition,
    Dialect,
    Engine,
    ExtendRound,
    Hello,
    Offer,
    Request,
    SetRound,
    Turn,
    extend_steps,
    release_steps,
)
from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS

NATIVE = Dialect("delifeq", True)
SCRIPTS = Dialect("evalsha", False)
RETRY = RetryPolicy("full-jitter", TTL_MS / 10, 100)
SETTINGS = Settings(max_ttl_ms=TTL_MS, rejoin="trust-first", retry=RETRY)
Ended = TypeVar("Ended")
LAG_NS = int(SETTINGS.lag_cap.age_ms * NS_PER_MS)


class EngineClient:
    """One instance of lockcore in one simulated process, connected to all servers.

    Only simulated threads of this process may create and use the object.
    """

    def __init__(self, process: Process, servers: Sequence[SimulatedServer], seed: int) -> None:
        self._process = process
        self._world = process.world
        self._servers = servers
        self._random = Random(seed)
        self.engine = Engine(
            [f"server:{server.index}" for server in servers], SETTINGS, self._want_flush
        )
        self.engine.turns.want_wake = lambda: self._world.later(0, self._wake)
        self._links: list[SimulatedLink | None] = [None] * len(servers)
        self._ticks_ns = FAR_FUTURE_NS
        for index in range(len(servers)):
            self._connect(index)
        self._flush()

    # -- operations --------------------------------------------------------------------------------

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> Lease | Denied:
        """Acquire a lease, as Redlock.try_acquire does."""
        engine = self.engine
        now_ns = self._world.now_ns
        terms = engine.terms(ttl_ms)
        return self._operate(
            Acquisition(engine, resource, terms, wait_ms, now_ns, self._random).steps(now_ns)
        )

    def extend(self, lease: Lease, ttl_ms: int) -> Lease | Denied:
        """Extend a lease, as Redlock.try_extend does."""
        return self._operate(extend_steps(self.engine, lease, ttl_ms, self._world.now_ns))

    def release(self, lease: Lease) -> Outcome:
        """Release a lease, as Redlock.try_release does."""
        return self._operate(release_steps(self.engine, lease, self._world.now_ns)).outcome

    def _operate(self, steps: Generator[Request, int, Ended]) -> Ended:
        actor = here()
        try:
            request = next(steps)
            while True:
                if isinstance(request, int):
                    actor.wait(request)
                elif not isinstance(request, Offer):
                    self._submit(request)
                    if request.outcome is None:
                        request.waiter = partial(actor.wake, actor.turn)
                        try:
                            actor.wait()
                        except BaseException as error:  # noqa: BLE001
                            # The engine's steps decide how the exception is handled.
                            request.waiter = None
                            steps.throw(error)
                request = steps.send(self._world.now_ns)
        except StopIteration as done:
            ended: Ended = done.value
            return ended

    def _submit(self, request: Any) -> None:
        if isinstance(request, Turn):
            self._arm(request.due_ns)
        elif isinstance(request, SetRound):
            self.engine.submit(request)
        elif isinstance(request, ExtendRound):
            self.engine.submit_extend(request)
        else:
            self.engine.submit_release(request)

    def close(self) -> None:
        """Do nothing. This client has no sockets to close."""

    @property
    def is_calm(self) -> bool:
        """True if the engine has nothing to send, expects no reply and needs no new connection."""
        return (
            self.engine.is_idle and None not in self._links and not any(self.engine.members.debts)
        )

    # -- what a shell does -------------------------------------------------------------------------

    def _want_flush(self) -> None:
        self._world.later(0, partial(self._process.run, self._flush))

    def _flush(self) -> None:
        engine = self.engine
        now_ns = self._world.now_ns
        if engine.outbox.dirty:
            engine.flush(now_ns)
        self._arm()

    def _arm(self, next_ns: int = FAR_FUTURE_NS) -> None:
        """Plan the next tick for the time at which the engine needs the tick. If a planned tick is
        already early enough, keep this tick, unless `next_ns` is earlier.
        """
        now_ns = self._world.now_ns
        ticks_ns = self._ticks_ns
        # In most cases the planned tick is early enough. The tick is too late if a deadline comes
        # before it, or if it is further away than the lag cap. Only in these two cases, this
        # function asks the engine for the time of the next tick. The check saves time because this
        # function runs for every message.
        if ticks_ns > self.engine.deadlines.due_ns or ticks_ns > now_ns + LAG_NS:
            next_ns = self.engine.next_tick_ns(now_ns)
        self._plan(next_ns)

    def _plan(self, next_ns: int) -> None:
        if next_ns < self._ticks_ns:
            self._ticks_ns = next_ns
            self._world.at(next_ns, partial(self._when_awake, next_ns))

    def _when_awake(self, planned_ns: int) -> None:
        if planned_ns == self._ticks_ns:
            paused_ns = self._process.paused_ns
            if self._world.now_ns < paused_ns:
                self._world.at(paused_ns, partial(self._when_awake, planned_ns))
            else:
                self._tick()

    def _tick(self) -> None:
        self._ticks_ns = FAR_FUTURE_NS
        self._plan(self.engine.tick(self._world.now_ns))
        due = self.engine.members.due_connects(self._world.now_ns)
        for index in due:
            self._connect(index)
        if due or self.engine.outbox.dirty:
            self._flush()
        if self.engine.ready:
            self._wake()

    def _wake(self) -> None:
        for settled in self.engine.take_ready():
            wake = settled.waiter
            settled.waiter = None
            if wake is not None:
                self._world.later(0, wake)

    def _connect(self, index: int) -> None:
        server = self._servers[index]
        now_ns = self._world.now_ns
        if server.down or server.stopped:
            self.engine.members.detach(index, "nobody answers", now_ns)
            return
        self._links[index] = link = SimulatedLink(
            self._process, server, self._heard, self._broken, self._broken
        )
        hello = _hello(index, server.runs, link.id)
        self.engine.members.attach(
            index, hello, SCRIPTS if server.is_old else NATIVE, link.send, now_ns
        )

    def _broken(self, link: SimulatedLink) -> None:
        index = link.server.index
        if self._links[index] is link:
            self._links[index] = None
            link.close()
            self.engine.members.detach(index, "broken", self._world.now_ns)
            self._arm(self.engine.members.states[index].next_ns)
            self._world.later(0, self._wake)

    def _heard(self, link: SimulatedLink, data: bytes) -> None:
        if link.is_open:
            self.engine.received(link.server.index, data, self._world.now_ns)
            if self.engine.ready:
                self._wake()


@cache
def _hello(index: int, run: int, link: int) -> Hello:
    return Hello(f"server-{index}-{run}", 1_000_000, "simulated", link)
