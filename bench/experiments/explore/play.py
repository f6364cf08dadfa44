"""Plays one schedule, and returns the observations and the first broken rule.

One rule applies to every recipe. No two leases of a resource may be valid at the same time. Further
rules apply to lockcore. A lease must be granted before its end, and a quorum of instances must
really have voted for the lease. A lease must be extended before its end. If an acquire is denied,
its outcome must match the votes of the instances. No key may remain after the last operation.
"""

import gc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import seed
from typing import Any

from bench.experiments.explore.engine_client import EngineClient
from bench.experiments.explore.network import SimulatedServer
from bench.experiments.explore.schedule import (
    LATENCY_NS,
    TTL_MS,
    Choose,
    Place,
    Schedule,
    Setting,
    begun_later,
)
from bench.experiments.explore.sockets import connect
from bench.experiments.explore.world import START_NS, Actor, Event, Process, World, here, places
from lockcore import Denied, Lease, Outcome
from lockcore.bench import outcome_of, quorum_of
from lockcore.clock import NS_PER_MS

WAIT_MS = 2 * TTL_MS
# A denied caller tries this many more times.
MORE_TRIES = 2
ENDS_NS = START_NS + 20 * TTL_MS * NS_PER_MS
CALM_NS = START_NS + 40 * TTL_MS * NS_PER_MS
# The instance time-out (ns). A SET that takes longer may leave an orphan key.
ORPHAN_NS = TTL_MS * NS_PER_MS // 10
# If the recipe has this name, the engine is played without a shell.
ENGINE = "redlock"


@dataclass(slots=True)
class Holding:
    """A lease that a client got.

    `given_back_ns` is the time at which the client began to release the lease, or 0 before the
    release.
    """

    client: int
    lease: Lease
    given_back_ns: int = 0


@dataclass(slots=True)
class Played:
    """The result of one play of a schedule.

    `broken` is the broken rule, or "". `raised` is the exception that ended a client's program, or
    "". `seen` holds the observations. `passed` maps each place to the time (ns) at which a client
    or server passed the place. The keys of `passed` are sorted by this time.
    """

    broken: str = ""
    raised: str = ""
    seen: list[Event] = field(default_factory=list)
    passed: dict[Place, int] = field(default_factory=dict)

    @property
    def tested(self) -> bool:
        """True if a command was sent while another client held a lock."""
        holding = Counter[int]()
        for _, what, who, *_ in self.seen:
            if what == "call" and holding.total() > holding[who]:
                return True
            holding[who] += {"granted": 1, "gives back": -1}.get(what, 0)
        return False

    def count_in(self, counts: Counter[str]) -> None:
        """Count the observations of each kind, and add the counts to `counts`.

        The count `late votes` is the number of SETs that an instance granted later than usual.
        """
        counts.update([event[1] for event in self.seen])
        late = [
            event
            for event in self.seen
            if event[1] == "call" and event[0] - event[4] > 2 * LATENCY_NS
        ]
        counts["late votes"] += sum(
            event[6] == b"+OK\r\n" and event[5][0] == b"SET" for event in late
        )

    def later_begins(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield variants of `schedule`. In each variant one client begins later and omits its first
        attempts.

        For each client, the variant that omits the most attempts comes first.
        """
        calls = [event for event in self.seen if event[1] == "call"]
        for client in {event[2] for event in calls}:
            sent = sorted({(event[4], event[3]) for event in calls if event[2] == client})
            for (before_ns, _), (begin_ns, _) in list(pairwise(sent))[::-1]:
                if begin_ns - before_ns > NS_PER_MS:
                    skipped = Counter(
                        (where, client)
                        for (where, who, _), at_ns in self.passed.items()
                        # These visits belong to the step that began the attempt.
                        if who == client
                        and where != "serve"
                        and at_ns < begin_ns + (where == "step")
                    )
                    skipped.update(
                        ("serve", server) for sent_ns, server in sent if sent_ns < begin_ns
                    )
                    yield begun_later(schedule, client, (begin_ns - START_NS) / NS_PER_MS, skipped)


class Play:
    """A world with its servers, its clients and the checks of the rules."""

    def __init__(self, setting: Setting, choose: Choose) -> None:
        self.setting = setting
        self.world = World(choose)
        self.servers = tuple(
            SimulatedServer(
                self.world,
                index,
                setting.rate,
                is_old=setting.seed % 3 == 2 and setting.recipe == ENGINE,
            )
            for index in range(setting.instances)
        )
        if setting.is_replicated:
            for replica in self.servers[1:]:
                replica.follow(self.servers[0])
        self.held: dict[str, list[Holding]] = {}
        self.played = Played(seen=self.world.seen, passed=self.world.passed)
        # Each client's process and locker, by the client's number.
        self.lockers: dict[int, tuple[Process, Any]] = {}
        # The actors that are not done yet.
        self.busy = set[Actor]()
        self.acquiring: dict[Actor, Process] = {}

    def run(self) -> Played:
        """Run the simulated world to its end or to the first broken rule, and return the result."""
        world = self.world
        setting = self.setting
        try:
            for number in range(setting.clients):
                process = Process(world, number)
                process.start(partial(self._connect, process))
            world.run(START_NS)
            world.seen.clear()
            world.is_begun = True
            for number in self.lockers:
                self._begin(number)
            world.run(ENDS_NS, self.busy)
            if setting.recipe == ENGINE:
                self._calm_down()
        finally:
            world.end()
            for _, locker in self.lockers.values():
                locker.close()
            # This line drops the references. So objects outside of reference circles are freed
            # without the collector.
            world.seen = []
            world.passed = {}
        return self.played

    def broken(self, rule: str) -> None:
        """Record the broken rule, and end the play. Only the first broken rule is recorded."""
        if not self.played.broken:
            self.played.broken = rule
            self.world.note("broken", rule)
            self.world.is_over = True

    # -- clients -----------------------------------------------------------------------------------

    def _connect(self, process: Process) -> None:
        setting = self.setting
        number = process.number
        process.on_kill = partial(self._kill, process)
        locker: object
        try:
            if setting.recipe == ENGINE:
                locker = EngineClient(process, self.servers, setting.seed * 100 + number)
            else:
                seed(setting.seed)
                locker = connect(setting.recipe, self.servers)
        except Exception as error:  # noqa: BLE001 - as below
            self._raised(error)
        else:
            self.lockers[number] = process, locker

    def _begin(self, number: int) -> None:
        world = self.world
        (process, locker) = self.lockers[number]
        late = world.change(places("start", number))
        ahead = world.change(places("skew", number))
        if ahead is not None:
            process.ahead_ns = ahead.for_ns
            world.note("ahead", number, ahead.for_ns)
        start_ns = round(self.setting.begins_ms[number] * NS_PER_MS) + (late.for_ns if late else 0)
        for caller in range(self.setting.callers):
            live = partial(self._whole_life, number, caller, locker)
            self.busy.add(process.start(live, start_ns))

    def _whole_life(self, client: int, caller: int, locker: object) -> None:
        try:
            self._live(client, caller, locker)
        except Exception as error:  # noqa: BLE001 - of a recipe; whoever judges is told
            self._raised(error)
        finally:
            self.busy.discard(here())

    def _raised(self, error: Exception) -> None:
        self.played.raised = f"{type(error).__name__}: {error}"
        self.world.is_over = True

    def _live(self, client: int, caller: int, locker: Any) -> None:
        setting = self.setting
        granted = 0
        for turn in range(setting.rounds + MORE_TRIES):
            # Clients share some of the resources. Each client begins with another resource.
            first = caller + client * (setting.resources - setting.callers)
            resource = f"r{(first + turn) % setting.resources}"
            self.acquiring[here()] = here().process
            result = locker.acquire(resource, TTL_MS, WAIT_MS)
            del self.acquiring[here()]
            if isinstance(result, Denied):
                self._denied(client, result)
                self._wait(20 * NS_PER_MS)
                continue
            held = self._granted(client, result)
            self._wait(int(setting.hold_ms / 2 * NS_PER_MS))
            if setting.extends and client == 0:
                self._extend(locker, held)
            self._wait(int(setting.hold_ms / 2 * NS_PER_MS))
            self._check(resource)
            held.given_back_ns = self.world.now_ns
            self.world.note("gives back", client)
            locker.release(held.lease)
            granted += 1
            if granted == setting.rounds:
                return

    def _extend(self, locker: Any, held: Holding) -> None:
        until_ns = held.lease.valid_until_ns
        extended = locker.extend(held.lease, TTL_MS)
        if not isinstance(extended, Lease):
            self.world.note("not extended", held.client)
            return
        held.lease = extended
        self.world.note("extended", held.client, extended.valid_until_ns)
        if self.world.now_ns >= until_ns:
            self.broken("a lease was extended after its end")
        self._check(extended.resource)

    def _wait(self, for_ns: int) -> None:
        here().wait(self.world.now_ns + for_ns)

    def _kill(self, process: Process) -> None:
        course = next((course for course, of in self.acquiring.items() if of is process), None)
        if course is not None:
            self.world.note("kill", process.number, 0)
            del self.acquiring[course]
            course.kill()

    # -- the referee -------------------------------------------------------------------------------

    def _granted(self, client: int, lease: Lease) -> Holding:
        self.world.note("granted", client, lease.valid_until_ns)
        held = Holding(client, lease)
        self.held.setdefault(lease.resource, []).append(held)
        if self.setting.recipe == ENGINE:
            if self.world.now_ns >= lease.valid_until_ns:
                self.broken("a lease was granted after its end")
            token = lease.owner_token
            took = len(
                {
                    event[3]
                    for event in self._sets()
                    if event[5][2] == token and event[6] == b"+OK\r\n"
                }
            )
            if took < quorum_of(self.setting.instances):
                self.broken(f"a lease was granted on {took} of {self.setting.instances} instances")
        self._check(lease.resource)
        return held

    def _denied(self, client: int, denied: Denied) -> None:
        """Check that the outcome of a denied acquire follows from its votes (lockcore only)."""
        if denied.outcome is Outcome.TOO_LATE:
            self.world.note("too late", client)
        elif self.setting.recipe == ENGINE:
            tally = denied.tally
            instances = self.setting.instances
            named = outcome_of(tally.granted, tally.refused, quorum_of(instances))
            if sum(tally) != instances or named is not denied.outcome:
                self.broken(f"{denied.outcome.value} was told of {tally}")

    def _sets(self) -> Iterator[Event]:
        return (event for event in self.world.seen if event[1] == "call" and event[5][0] == b"SET")

    def _check(self, resource: str) -> None:
        """Check that no two leases are valid now."""
        now_ns = self.world.now_ns
        valid = [
            one
            for one in self.held[resource]
            if not one.given_back_ns and now_ns < one.lease.valid_until_ns
        ]
        if len(valid) > 1:
            self.broken(
                "two leases were valid at the same time: the leases of "
                f"C{valid[0].client + 1} and C{valid[1].client + 1}"
            )

    def _calm_down(self) -> None:
        """After all clients are done and all replies have arrived, check that no key is left."""
        world = self.world
        while not all(locker.is_calm for _, locker in self.lockers.values()):
            if world.is_over or world.now_ns >= CALM_NS:
                return
            world.run(world.now_ns + 50 * NS_PER_MS)
        if not world.is_over and not self.busy:
            # A SET may reach an instance after its client has stopped waiting. The key of this SET
            # stays until the TTL ends, and that is allowed.
            orphans = {event[5][2] for event in self._sets() if event[0] - event[4] > ORPHAN_NS}
            if left := sum(
                bool(set(server.data.keys.values()) - orphans) for server in self.servers
            ):
                self.broken(f"a key was left on {left} of {self.setting.instances} instances")


def play(setting: Setting, choose: Choose) -> Played:
    """Play one schedule, and return its result."""
    played = Play(setting, choose).run()
    # A world is full of reference circles, because servers, links and actors refer to each other.
    # Reference counts alone never free a world, and `search` has nearly switched off the collector.
    # So the youngest generation is collected here, while the world is still in the processor's
    # caches. Without this line a search process would grow with every schedule.
    gc.collect(0)
    return played
