"""One cut: *a fleet, a crash, rng → who knew which lock before and after, and who got it a second time*.

    load        first clients take locks and never give them back, one client per vote margin
    cut         the victims end while the load runs; their ledgers are read, their files cut
    back        at once, or when every lease has ended; which locks does each of them still know?
    contention  second clients, one that trusts and one that lets restarted instances abstain, ask for the same locks

Rules: a first client of margin m reaches q + m instances, all victims first: the worst case. Times are CLOCK_MONOTONIC
of this process; locks count by what its clients were told. A second client knew the servers before they ended, and the
two ask for different locks.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from bench.errors import EnvironmentNotReadyError
from bench.experiments.crash.crashing_fleet import CrashPlace
from bench.experiments.crash.judge import AskedAgain, CutFacts, Loss
from bench.experiments.crash.plan import TTL_MS, Crash, load_range_s, sync_delay_s
from lockcore import AsyncRedlock, AttemptRecord, Lease, Outcome, Vote
from lockcore.clock import NS_PER_MS, NS_PER_S, drift_ns, monotonic_ns
from lockcore.quorum import quorum_of

TICK_S = 0.01
MOST_OUTSTANDING = 200  # acquires of one fleet: a slow disk must not pile them up
ASKED = 20  # the youngest locks of a margin that each second client asks for
ASK_EVERY_S = 0.2
AT_ONCE_ROUNDS = 3
RECONNECTED_S = 1.5
INSTANCE_TIMEOUT_MS = TTL_MS / 4
_PROBE_EVERY_S = 0.01
_NAMES = {False: "trusting", True: "abstaining"}

Found = TypeVar("Found")


async def finish(work: Callable[..., Found], *arguments: object) -> Found:
    """Run what blocks in a thread; when cancelled, first let it end: nothing must be half started."""
    job = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        if not job.cancelled():
            job.exception()  # it is known
        raise


@dataclass(slots=True)
class _First:
    """A first client and what it was told: every attempt that gave a lease of exactly its margin."""

    margin: int
    quorum: int
    lock: AsyncRedlock | None = None
    leases: list[AttemptRecord] = field(default_factory=list)

    def observe(self, record: AttemptRecord) -> None:
        """Keep what counts: a lock that got the wrong number of votes is of another margin."""
        if record.outcome is Outcome.ACQUIRED and record.tally.granted == self.quorum + self.margin:
            self.leases.append(record)

    def granted_by(self, index: int) -> list[AttemptRecord]:
        """The leases that this instance had acknowledged."""
        return [lease for lease in self.leases if lease.votes[index] is Vote.GRANTED]


def valid_until_ns(record: AttemptRecord) -> int:
    """When the lease of this attempt ends."""
    return record.decided_ns + record.validity_ns


@dataclass(slots=True)
class OneCut:
    """One cut to come. `prefix`: of its keys; `rng`: every random choice of it; `locks_per_s` over all margins."""

    place: CrashPlace
    crash: Crash
    number: int
    prefix: str
    rng: Random
    locks_per_s: int
    victims: list[int] = field(init=False)
    load_s: float = field(init=False)
    _dead_ns: int = field(init=False, default=0)
    _ended_ns: dict[int, int] = field(init=False, default_factory=dict)
    _firsts: list[_First] = field(init=False, default_factory=list)
    _seconds: dict[bool, AsyncRedlock] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Throw the rng."""
        self.victims = sorted(self.rng.sample(range(self.crash.instances), self.crash.crashed))
        self.load_s = self.rng.uniform(*load_range_s(self.crash))

    async def run(self) -> CutFacts:
        """Do it. Raises BenchError or LockcoreError when a server or a client does not do its part."""
        async with AsyncExitStack() as stack:
            await self._connect(stack)
            await self._end_under_load()
            ledgers = await finish(self.place.examine, self.crash, self._ended_ns, self.rng)
            probes = {
                name: asyncio.ensure_future(self._until_available(self._seconds[abstention], name))
                for abstention, name in _NAMES.items()
                if abstention in self._seconds
            }
            stack.callback(_cancel, probes.values())
            back = self._back_at_once if self.crash.restart == "at-once" else self._back_delayed
            losses, asked = await back()
            if not any(loss.at_stake for loss in losses) or not any(one.asked for one in asked):
                raise EnvironmentNotReadyError("this machine is too slow: no lock was valid any more after the crash")
            unavailable_s = {name: await probe for name, probe in probes.items()}
            found = tuple(ledgers), tuple(losses), tuple(asked)
            return CutFacts(self.crash, self.number, self.load_s, *found, unavailable_s)

    # -- the clients --------------------------------------------------------------------------------------------------

    async def _connect(self, stack: AsyncExitStack) -> None:
        quorum = quorum_of(self.crash.instances)
        others = [index for index in range(self.crash.instances) if index not in self.victims]
        order = [*self.victims, *self.rng.sample(others, len(others))]
        for margin in self.crash.margins:
            first = _First(margin, quorum)
            urls = self.place.urls(order[: quorum + margin])
            first.lock = await stack.enter_async_context(await self._client(urls, "trust", observer=first))
            self._firsts.append(first)
        delayed = self.crash.restart == "delayed"
        for abstention in (False,) if delayed else (False, True):
            rejoin = "trust-first" if abstention else "trust"
            lock = await self._client(self.place.fleet.urls, rejoin)
            self._seconds[abstention] = await stack.enter_async_context(lock)

    async def _client(self, urls: Sequence[str], rejoin: str, **settings: object) -> AsyncRedlock:
        return await AsyncRedlock.connect(
            urls,
            key_prefix=self.prefix,
            max_ttl_ms=TTL_MS,
            instance_timeout_ms=INSTANCE_TIMEOUT_MS,
            rejoin=rejoin,
            **settings,
        )

    # -- load and cut -------------------------------------------------------------------------------------------------

    async def _end_under_load(self) -> None:
        """Take locks, end the victims meanwhile, and wait for the last answers."""
        if delay_s := sync_delay_s(self.crash):
            self.place.slow_syncs(delay_s)
        stop = asyncio.Event()
        load = asyncio.ensure_future(self._load(stop))
        try:
            await asyncio.sleep(self.load_s)
            self._ended_ns = await finish(self.place.end, self.victims, self.crash.kind)
            self._dead_ns = monotonic_ns()
        finally:
            stop.set()
            if delay_s:
                self.place.slow_syncs(0)
            await load

    async def _load(self, stop: asyncio.Event) -> None:
        """Open loop: each tick so many locks, by turns of every margin."""
        asking: set[asyncio.Task[object]] = set()
        taken, began_ns = 0, monotonic_ns()
        try:
            while not stop.is_set():
                due = int((monotonic_ns() - began_ns) / NS_PER_S * self.locks_per_s)
                for number in range(taken, min(due, taken + MOST_OUTSTANDING - len(asking))):
                    task = asyncio.ensure_future(self._take(number))
                    asking.add(task)
                    task.add_done_callback(asking.discard)
                taken = due
                await asyncio.sleep(TICK_S)
        finally:
            if asking:
                await asyncio.wait(asking)

    async def _take(self, number: int) -> None:
        first = self._firsts[number % len(self._firsts)]
        assert first.lock is not None
        await first.lock.try_acquire(str(number), TTL_MS)

    # -- back ---------------------------------------------------------------------------------------------------------

    async def _back_at_once(self) -> tuple[list[Loss], list[AskedAgain]]:
        await self._bring_back()
        losses = self._losses(await self._known(self.place.known_to), monotonic_ns())
        await asyncio.gather(*(self._until_seen(second) for second in self._seconds.values()))
        asked = await asyncio.gather(
            *(
                self._contend(first, abstention, None if abstention else AT_ONCE_ROUNDS)
                for abstention in self._seconds
                for first in self._firsts
            )
        )
        return losses, list(asked)

    async def _back_delayed(self) -> tuple[list[Loss], list[AskedAgain]]:
        """Every lease has ended by the time they are back; meanwhile the second client asks all the time."""
        known = await self._known(self.place.kept_by)
        losses = self._losses(known, self._dead_ns)  # what ended before may be deleted there
        asking = [asyncio.ensure_future(self._contend(first, False, None)) for first in self._firsts]
        try:
            safe_ns = max(self._ended_ns.values()) + TTL_MS * NS_PER_MS + drift_ns(TTL_MS, 0.01)
            await asyncio.sleep(max(0, safe_ns - monotonic_ns()) / NS_PER_S)
            await self._bring_back()
            return losses, [await one for one in asking]
        finally:
            _cancel(asking)

    async def _bring_back(self) -> None:
        await finish(self.place.fleet.restart, *self.victims)

    async def _known(self, ask: Callable[[int, Sequence[str]], set[str]]) -> dict[int, set[str]]:
        """Which of the locks that it had acknowledged each victim still knows, as `ask` finds out."""
        leases = {index: [lease for one in self._firsts for lease in one.granted_by(index)] for index in self.victims}
        keys = {index: [self.prefix + lease.resource for lease in leases[index]] for index in self.victims}
        found = await asyncio.gather(*(finish(ask, index, keys[index]) for index in self.victims))
        return dict(zip(self.victims, found, strict=True))

    def _losses(self, known: Mapping[int, set[str]], looked_ns: int) -> list[Loss]:
        """What is gone of each margin's locks that are valid at `looked_ns`: by instance, then each lock once."""
        found = []
        for first in self._firsts:
            told = [(index, lease) for index in self.victims for lease in first.granted_by(index)]
            valid = [(index, lease) for index, lease in told if valid_until_ns(lease) > looked_ns]
            gone = [(index, lease) for index, lease in valid if self.prefix + lease.resource not in known[index]]
            for instance in (*self.victims, None):
                at_stake, lost = (
                    len({lease.resource for index, lease in some if instance in (None, index)})
                    for some in (valid, gone)
                )
                ages_ns = [self._ended_ns[i] - lease.replied_ns[i] for i, lease in gone if instance in (None, i)]
                oldest_s = max(0, *ages_ns) / NS_PER_S if ages_ns else None
                found.append(Loss(first.margin, instance, at_stake, lost, oldest_s))
        return found

    # -- the second clients -------------------------------------------------------------------------------------------

    async def _until_seen(self, second: AsyncRedlock) -> None:
        """Return when the client is connected to every victim again, or after a while."""
        deadline_ns = monotonic_ns() + round(RECONNECTED_S * NS_PER_S)
        while monotonic_ns() < deadline_ns:
            states = {second.instances[index].state for index in self.victims}
            if states <= {"voting", "abstaining"}:
                return
            await asyncio.sleep(TICK_S)

    async def _contend(self, first: _First, abstention: bool, rounds: int | None) -> AskedAgain:
        """Ask for the youngest of the first's locks again and again, as long as one of them is valid."""
        second = self._seconds[abstention]
        parity = [lease for place, lease in enumerate(first.leases) if place % 2 == abstention]
        ends_ns = {lease.resource: valid_until_ns(lease) for lease in parity[-ASKED:]}
        asked: set[str] = set()
        doubled = done = 0
        while ends_ns and (rounds is None or done < rounds):
            now_ns = monotonic_ns()
            ends_ns = {name: end_ns for name, end_ns in ends_ns.items() if end_ns > now_ns}
            asked |= set(ends_ns)
            results = await asyncio.gather(*(second.try_acquire(name, TTL_MS) for name in ends_ns))
            for result in results:
                if isinstance(result, Lease) and result.granted_ns < ends_ns.pop(result.resource):
                    doubled += 1
            done += 1
            await asyncio.sleep(ASK_EVERY_S)
        return AskedAgain(first.margin, abstention, len(asked), doubled)

    async def _until_available(self, second: AsyncRedlock, name: str) -> float:
        """Seconds from the end of the victims to the first grant of a lock that nobody has."""
        number = 0
        while True:
            result = await second.try_acquire(f"free-{name}-{number}", TTL_MS)
            if isinstance(result, Lease):
                return (result.granted_ns - max(self._ended_ns.values())) / NS_PER_S
            number += 1
            await asyncio.sleep(_PROBE_EVERY_S)


def _cancel(tasks: Iterable[asyncio.Future[float] | asyncio.Future[AskedAgain]]) -> None:
    for task in tasks:
        task.cancel()
