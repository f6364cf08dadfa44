"""Storms: *a seed → clients, callers and faults in a small world, every grant and every name checked as it happens*.

What is checked while it storms: a lease is granted on a quorum of OKs that really came, inside its validity, while no
other lease on the resource is valid; the votes of an attempt are those that came; a release is confirmed by a quorum.
What is checked afterwards: no key of ours is left anywhere, and the engines remember nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lockcore import attempt
from lockcore.clock import NS_PER_MS
from lockcore.engine import Engine
from lockcore.model import Denied, Lease, Outcome
from lockcore.retry import RetryPolicy
from lockcore.rounds import ExtendRound, ReleaseRound, Round, SetRound
from lockcore.settings import Settings
from lockcore.turns import Offer, Turn, Wanted
from tests.doubles.keyspace import NIL, OK, ONE, ZERO
from tests.lockcore.by_hand import Killed
from tests.lockcore.reading import quorum
from tests.lockcore.scripted import DELEX, DELIFEQ, EVALSHA, rounds_kept, submit
from tests.lockcore.world import Answer, Link, Server, World

MAX_TTL_MS = 200
CALM_MS = 20_000
NEVER_NS = 1 << 62
ALL_FAULTS = (*["break"] * 8, *["cancel"] * 20, *["stop"] * 3, "restart", "pause", "flush scripts", "full")


@dataclass
class Plan:
    """What a storm is made of. `rate`: of the servers' clocks; `faults`: drawn from these, `faults_per_s` of them;
    `holds`: the longest time a lease is held, as a share of its TTL, drawn from these."""

    seed: int
    instances: int
    clients: int = 2
    callers: int = 12
    resources: int = 8
    batch_ms: float = 0.5
    for_ms: int = 1_000
    faults: tuple[str, ...] = ALL_FAULTS
    faults_per_s: float = 60
    rate: float = 1.009
    dialects: tuple[Any, ...] = (DELIFEQ, DELEX, EVALSHA)
    ttls_ms: tuple[int, ...] = (40, 100, 200)
    holds: tuple[float, ...] = (0.5, 0.1, 0.02)
    settings: dict[str, Any] = field(default_factory=dict)


class Caller:
    """One caller: its steps, and where it waits."""

    def __init__(self, client: Client, steps: Generator[Wanted, int, None]) -> None:
        self.client, self.steps = client, steps
        self.waits_for: object = None
        self.done = False

    def go(self, waited_for: object) -> None:
        """Run until it has to wait again, if it still waits for that."""
        client = self.client
        while self.waits_for is waited_for and not self.done:
            if client.world.now_ns < client.paused_ns:
                client.world.at(client.paused_ns, partial(self.go, waited_for))
                return
            try:
                wanted = self.steps.send(client.world.now_ns) if waited_for is not None else next(self.steps)
            except (StopIteration, Killed):
                self.done = True
                return
            self.waits_for = waited_for = wanted
            if isinstance(wanted, int):
                client.world.at(wanted, partial(self.go, wanted))
                return
            if not isinstance(wanted, Offer):
                client.submit(wanted)
            if wanted.outcome is None:
                wanted.waiter = self
                return

    def cancel(self) -> None:
        """Kill it where it waits; only the round it waited for hears of it."""
        if self.done or not isinstance(self.waits_for, SetRound | Turn):
            return
        self.waits_for.waiter = None
        self.waits_for = None
        self.done = True
        try:
            self.steps.throw(Killed())
        except Killed:
            self.client.storm.callers_lost += 1
            self.client.spawn()


class Client:
    """One engine with its callers, its links and its share of bad luck."""

    def __init__(self, storm: Storm, number: int) -> None:
        self.storm, self.world = storm, storm.world
        self.number = number
        values: dict[str, Any] = {
            "max_ttl_ms": MAX_TTL_MS, "rejoin": "trust-first", "retry": RetryPolicy(window_ms=3, attempts=6),
            "merge_releases": bool(number % 2), "key_prefix": "storm:",
        } | storm.plan.settings  # fmt: skip
        addresses = [f"server:{server.index}" for server in storm.servers]
        self.engine = Engine(addresses, Settings(**values), self.want_flush)
        self.engine.turns.want_wake = lambda: self.world.later(0, self.wake)
        self.links: list[Link | None] = [None] * len(addresses)
        self.callers: list[Caller] = []
        self.paused_ns = 0
        self.ticks_at = NEVER_NS
        self.delivered: dict[bytes, Counter[str]] = {}
        for index in range(len(addresses)):
            self.connect(index)
        for _ in range(storm.plan.callers):
            self.spawn()

    def spawn(self) -> None:
        """A new caller, a little later."""
        caller = Caller(self, self.storm.life_of(self))
        self.callers = [one for one in self.callers if not one.done] + [caller]
        self.world.later(self.world.random.random() * 5, lambda: caller.go(None))

    # -- what a shell does --------------------------------------------------------------------------------------------

    def want_flush(self) -> None:
        if self.world.random.random() < 0.3:
            self.flush()
        else:
            self.world.later(self.world.random.random() * self.storm.plan.batch_ms, self.flush)

    def flush(self) -> None:
        self.engine.flush(self.world.now_ns)
        self.arm()

    def arm(self) -> None:
        next_ns = self.engine.next_tick_ns(self.world.now_ns)
        if next_ns < self.ticks_at:
            self.ticks_at = next_ns
            self.world.at(next_ns, lambda: self.tick(next_ns))

    def tick(self, planned_ns: int) -> None:
        if planned_ns != self.ticks_at:
            return
        if self.world.now_ns < self.paused_ns:
            self.world.at(self.paused_ns, lambda: self.tick(planned_ns))
            return
        for link in self.links:
            if link is not None:
                link.arrive()
        self.ticks_at = NEVER_NS
        self.engine.tick(self.world.now_ns)
        for index in self.engine.due_connects(self.world.now_ns):
            self.world.later(1 + self.world.random.random() * 4, partial(self.connect, index))
        self.flush()
        self.wake()

    def wake(self) -> None:
        for round_ in self.engine.take_ready():
            caller, round_.waiter = round_.waiter, None
            if caller is not None:
                self.world.later(self.world.random.random() * 0.1, partial(caller.go, round_))

    def submit(self, round_: Round | Turn) -> None:
        if isinstance(round_, Turn):
            self.arm()
            return
        if isinstance(round_, ReleaseRound) and not isinstance(round_, ExtendRound):
            self.storm.released(round_)
        submit(self.engine, round_)

    # -- connections --------------------------------------------------------------------------------------------------

    def connect(self, index: int) -> None:
        server = self.storm.servers[index]
        if server.down or server.stopped:
            self.engine.detach(index, "nobody answers", self.world.now_ns)
            self.arm()
            return
        link: Link
        link = Link(server, lambda answers, data: self.heard(link, answers, data), lambda: self.broken(index, link))
        self.links[index] = link

        def transmit(data: bytes) -> int:
            is_gone = link.id not in server.links or self.world.random.random() < self.storm.break_chance
            if is_gone:
                self.broken(index, link)
            else:
                link.send(data)
            return 0

        self.engine.attach(index, server.hello(link.id), server.dialect, transmit, self.world.now_ns)
        self.flush()

    def broken(self, index: int, link: Link) -> None:
        if self.links[index] is link:
            self.links[index] = None
            link.close()
            self.engine.detach(index, "broken", self.world.now_ns)
            self.arm()
            self.world.later(0, self.wake)

    def heard(self, link: Link, answers: list[Answer], data: bytes) -> None:
        if self.world.now_ns < self.paused_ns:
            link.to_client.appendleft((self.paused_ns, answers, data))
            self.world.at(self.paused_ns, link.arrive)
            return
        for kind, token, line in answers:
            said = "yes" if line in (OK, ONE) else "no" if line in (NIL, ZERO) else "error"
            self.delivered.setdefault(token, Counter())[f"{kind} {said}"] += 1
        self.engine.received(link.server.index, data, self.world.now_ns)
        self.wake()


class Storm:
    """The whole of it. `grants`, `names`: what came about, so that a storm in which nothing happened is noticed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        self.servers = [
            Server(self.world, index, self.world.random.choice(plan.dialects), plan.rate)
            for index in range(plan.instances)
        ]
        self.break_chance = 0.0005 if "break" in plan.faults else 0.0
        self.ends_ns = self.world.now_ns + plan.for_ms * NS_PER_MS
        self.holders: dict[str, tuple[bytes, int]] = {}
        self.names: Counter[str] = Counter()
        self.callers_lost = 0
        self.clients = [Client(self, number) for number in range(plan.clients)]
        self._next_fault()

    # -- callers ------------------------------------------------------------------------------------------------------

    def life_of(self, client: Client) -> Generator[Wanted, int, None]:
        """Acquire, hold, perhaps extend, release; again and again."""
        random, engine = self.world.random, client.engine
        now_ns = yield self.world.now_ns
        while now_ns < self.ends_ns:
            resource = f"r{random.randrange(self.plan.resources)}"
            ttl_ms = random.choice(self.plan.ttls_ms)
            acquire = attempt.Acquisition(
                engine, resource, engine.terms(ttl_ms), random.choice((0, 20, 60)), now_ns, random
            )
            result = yield from acquire.steps(now_ns)
            now_ns = self.world.now_ns
            self.names[result.outcome.value] += 1
            if isinstance(result, Lease):
                now_ns = yield from self._hold(client, result, ttl_ms)
            else:
                self._check_votes(client, result)
                pause_ms = 20 if result.outcome is Outcome.UNREACHABLE else 3
                now_ns = yield now_ns + random.randrange(pause_ms * NS_PER_MS)

    def _hold(self, client: Client, lease: Lease, ttl_ms: int) -> Generator[Wanted, int, int]:
        random, engine = self.world.random, client.engine
        self._granted(client, lease)
        now_ns = yield self.world.now_ns + int(random.random() * random.choice(self.plan.holds) * ttl_ms * NS_PER_MS)
        while random.random() < 0.3 and now_ns < lease.valid_until_ns:
            extended = yield from attempt.extend_steps(engine, lease, engine.settings.max_ttl_ms, now_ns)
            self.names[f"extension {extended.outcome.value}"] += 1
            if isinstance(extended, Lease):
                self._extended(client, lease, extended)
                lease = extended
            now_ns = yield self.world.now_ns + random.randrange(20 * NS_PER_MS)
        ended = yield from attempt.release_steps(engine, lease, now_ns)
        self.names[ended.outcome.value] += 1
        if ended.outcome is Outcome.RELEASED:
            came = client.delivered[lease.owner_token]["release yes"]
            assert came >= quorum(self.plan.instances), f"released on {came}"
        return self.world.now_ns

    # -- checks -------------------------------------------------------------------------------------------------------

    def _granted(self, client: Client, lease: Lease) -> None:
        now_ns, came = self.world.now_ns, client.delivered[lease.owner_token]["set yes"]
        assert now_ns == lease.granted_ns < lease.valid_until_ns, "granted without validity"
        assert came >= quorum(self.plan.instances), f"granted on {came} of {self.plan.instances}"
        late = came - lease.tally.granted  # after the timeout, or read when the connection was already broken
        assert 0 <= late <= lease.tally.silent, f"{lease.tally} where {came} granted"
        token, until_ns = self.holders.get(lease.resource, (b"", 0))
        assert until_ns <= now_ns, f"two valid leases on {lease.resource}: {token!r} and {lease.owner_token!r}"
        self.holders[lease.resource] = (lease.owner_token, lease.valid_until_ns)

    def _extended(self, client: Client, old: Lease, new: Lease) -> None:
        assert self.world.now_ns < old.valid_until_ns < new.valid_until_ns
        assert client.delivered[old.owner_token]["extend yes"] >= quorum(self.plan.instances)
        assert self.holders[old.resource][0] == old.owner_token, "extended while another lease was valid"
        self.holders[old.resource] = (old.owner_token, new.valid_until_ns)

    def released(self, round_: ReleaseRound) -> None:
        """A caller is about to release: nobody believes in that lease any more."""
        for resource, (token, _) in self.holders.items():
            if round_.won.claim.endswith(token + b"\r\n"):
                self.holders[resource] = (token, 0)

    def _check_votes(self, client: Client, denied: Denied) -> None:
        tally = denied.tally
        assert sum(tally) == self.plan.instances
        q = quorum(self.plan.instances)
        expected = {
            Outcome.CONTENDED: tally.granted < q <= tally.refused,
            Outcome.SPLIT_VOTE: max(tally.granted, tally.refused) < q <= tally.granted + tally.refused,
            Outcome.UNREACHABLE: tally.granted + tally.refused < q,
            Outcome.TOO_LATE: tally.granted >= q,
        }
        assert expected[denied.outcome], f"{denied.outcome} of {tally}"

    # -- faults -------------------------------------------------------------------------------------------------------

    def _next_fault(self) -> None:
        if self.plan.faults and self.world.now_ns < self.ends_ns:
            self.world.later(self.world.random.expovariate(self.plan.faults_per_s) * 1000, self._strike)

    def _strike(self) -> None:
        random = self.world.random
        server, client = random.choice(self.servers), random.choice(self.clients)
        fault = random.choice(self.plan.faults)
        if self.world.now_ns >= self.ends_ns or server.down or server.stopped:
            fault = "none"
        if fault == "break" and (link := client.links[server.index]) is not None:
            client.broken(server.index, link)
        elif fault == "restart":
            server.restart(random.random() * 20)
        elif fault == "stop":
            server.stop(random.random() * 80)
        elif fault == "pause":
            client.paused_ns = self.world.now_ns + int(random.expovariate(0.02) * NS_PER_MS)
        elif fault == "flush scripts":
            server.data.scripts.clear()
        elif fault == "full":
            server.full = True
            self.world.later(random.random() * 30, lambda: setattr(server, "full", False))
        elif fault == "cancel":
            random.choice(client.callers).cancel()
        self._next_fault()

    def run(self) -> None:
        """Storm, then calm: everybody reconnects and everything is answered; then nothing may be left."""
        self.world.run(self.ends_ns)
        self.break_chance = 0.0
        calm_ns = self.ends_ns + CALM_MS * NS_PER_MS
        while self.world.now_ns < calm_ns and not self._is_calm():
            self.world.run(self.world.now_ns + 5 * NS_PER_MS)
        assert self._is_calm(), "it never became calm"

    def _is_calm(self) -> bool:
        return all(caller.done for client in self.clients for caller in client.callers) and not any(
            status.owed_releases or status.pending or status.state == "down"
            for client in self.clients
            for status in client.engine.status()
        )

    def check_nothing_is_left(self) -> None:
        """No key of ours on any server, no round in any engine."""
        self.world.run(self.world.now_ns + 60 * NS_PER_MS)
        assert [server.data.keys for server in self.servers] == [{}] * self.plan.instances, "keys are left"
        for client in self.clients:
            client.wake()
            assert client.engine.is_idle
            assert not client.engine.turns
            assert rounds_kept(client.engine) == []
