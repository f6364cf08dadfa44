"""One cut: *N, AOF policy → a fleet under the shim; a crash, rng → who knew which lock, and who got
it a second time*.

    load        first clients take locks and never give them back, one client per vote margin
    cut         the victims end while the load runs; their ledgers are read, their files cut
    back        at once, or when every lease has ended; which locks does each of them still know?
    contention  second clients, one that trusts and one that lets restarted instances abstain, ask
                for the same locks

Rules: a first client of margin m reaches q + m instances, all victims first: the worst case. Locks
count by what its clients were told. A second client knew the servers before they ended, and the two
ask for different locks. What an instance still knows is asked of the server itself, or read from
its append-only file as a server would: whole commands only. That a power cut keeps what the ledger
calls durable is shown by tests/integration/test_shim_on_ext4.py.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeVar

import hiredis
from redis import Redis

from bench.errors import EnvironmentNotReadyError
from bench.experiments.durability.loss_judge import AskedAgain, CutFacts, Loss, LossLedger
from bench.experiments.durability.loss_plan import TTL_MS, CrashPlan, load_range_s, sync_delay_s
from bench.experiments.durability.loss_result import Crash
from bench.experiments.durability.policies import AofPolicy
from bench.experiments.durability.servers import shimmed_fleet
from bench.measure.server_facts import ServerBinary
from bench.topology.faults.machine import cut_power
from bench.topology.fleet import HOST, Fleet, KeptPort
from bench.topology.shim import Control
from lockcore import AsyncRedlock, AttemptRecord, Lease, Observer, Outcome, Vote
from lockcore.bench import Rejoin, quorum_of
from lockcore.clock import NS_PER_MS, NS_PER_S, drift_ns, monotonic_ns

TICK_S = 0.01
# The most acquires of one fleet under way at once. A slow disk must not pile them up.
MOST_OUTSTANDING = 200
# Each second client asks for so many of a margin's locks, the youngest ones.
ASKED = 20
ASK_EVERY_S = 0.2
AT_ONCE_ROUNDS = 3
RECONNECTED_S = 1.5
INSTANCE_TIMEOUT_MS = TTL_MS / 4
_ANSWER_S = 10.0

Found = TypeVar("Found")


class CrashPlace:
    """Where one fleet at a time stands, for whoever holds it alone.

    All of it blocks, for one thread at a time.
    """

    def __init__(self, server: ServerBinary) -> None:
        self._server = server
        self._started = ExitStack()
        self._fleet: Fleet | None = None
        self._controls: Sequence[Control] = ()
        self._dead: list[KeptPort] = []

    def open(self, instances: int, policy: AofPolicy) -> None:
        """Have `instances` servers with this AOF policy.

        Raises BenchError: they do not start, or take the shim.
        """
        if self._fleet is not None and (len(self._fleet.instances), self._fleet.fsync) == (
            instances,
            policy,
        ):
            return
        self.close()
        self._fleet, self._controls = self._started.enter_context(
            shimmed_fleet(instances, policy, self._server)
        )
        self._dead = [KeptPort() for _ in range(instances)]
        for port in self._dead:
            self._started.callback(port.release)
        for control in self._controls:
            control.words.note_writes = 1

    def close(self) -> None:
        """End it; more than once is fine."""
        self._fleet = None
        self._started.close()

    @property
    def fleet(self) -> Fleet:
        """The servers."""
        assert self._fleet is not None
        return self._fleet

    def urls(self, voters: Sequence[int]) -> list[str]:
        """One URL per instance; where one is no voter, of a port on which nobody listens."""
        return [
            url if index in voters else f"redis://{HOST}:{self._dead[index].number}"
            for index, url in enumerate(self.fleet.urls)
        ]

    def slow_syncs(self, delay_s: float) -> None:
        """Let every sync of every instance take so much longer from now on."""
        for control in self._controls:
            control.words.sync_delay_ns = round(delay_s * NS_PER_S)

    def end(self, victims: Sequence[int], kind: str) -> dict[int, int]:
        """End the victims, one right after the other; when (ns) each was told to."""
        ended_ns = {}
        for index in victims:
            ended_ns[index] = monotonic_ns()
            self.fleet.kill(index, signal.SIGTERM if kind == "shutdown" else signal.SIGKILL)
        return ended_ns

    def examine(self, index: int, ended_ns: int, crash: Crash, torn: Random) -> LossLedger:
        """Read the ledger of a dead instance, cutting its files if the power went."""
        control = self._controls[index]
        instance = self.fleet.instances[index]
        files = [control.synced(path) for path in append_only_files(instance.folder)]
        if crash.kind.startswith("power-cut"):
            cut_power(instance, control, torn if crash.kind == "power-cut-torn" else None)
        written_ns = max((file.written_ns for file in files), default=0)
        return LossLedger(
            index,
            in_flight=sum(file.in_flight for file in files),
            synced_after_write=any(file.synced_ns > file.written_ns > 0 for file in files),
            since_write_s=max(0, ended_ns - written_ns) / NS_PER_S if written_ns else None,
        )

    def known_to(self, index: int, keys: Sequence[str]) -> set[str]:
        """Which of `keys` this living instance knows. Raises RedisError."""
        with Redis.from_url(self.fleet.urls[index], socket_timeout=_ANSWER_S) as server:
            values = server.mget(keys) if keys else []
        return {key for key, value in zip(keys, values, strict=True) if value is not None}

    def kept_by(self, index: int, keys: Sequence[str]) -> set[str]:
        """Which of `keys` stand in the append-only file of this dead instance."""
        files = append_only_files(self.fleet.instances[index].folder)
        return keys_in(path.read_bytes() for path in files).intersection(keys)


def append_only_files(folder: Path) -> list[Path]:
    """The increments of an instance's append-only file, in order of name."""
    return sorted(path for path in folder.rglob("*.aof") if ".base." not in path.name)


def keys_in(contents: Iterable[bytes]) -> set[str]:
    """The keys that are set when these append-only files are read like a server does: a command cut
    short is none."""
    keys: set[str] = set()
    for content in contents:
        reader = hiredis.Reader()
        reader.feed(content)
        with suppress(hiredis.ProtocolError):
            while isinstance(command := reader.gets(), list):
                name = command[0].upper()
                if name == b"SET":
                    keys.add(command[1].decode())
                elif name in (b"DEL", b"UNLINK"):
                    keys.difference_update(key.decode() for key in command[1:])
    return keys


async def finish(work: Callable[..., Found], *arguments: object) -> Found:
    """Run what blocks in a thread; when cancelled, first let it end: nothing must be half
    started."""
    job = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        if not job.cancelled():
            # The exception is fetched, so that asyncio does not log it as never retrieved.
            job.exception()
        raise


@dataclass(eq=False, slots=True)
class _First(Observer):
    """A first client and what it was told: every attempt that gave a lease of exactly its
    margin."""

    margin: int
    quorum: int
    leases: list[AttemptRecord] = field(default_factory=list)

    def observe(self, record: AttemptRecord) -> None:
        """Keep what counts: a lock that got the wrong number of votes is of another margin."""
        if record.outcome is Outcome.ACQUIRED and record.tally.granted == self.quorum + self.margin:
            self.leases.append(record)

    def granted_by(self, index: int) -> list[AttemptRecord]:
        """What this instance had acknowledged."""
        return [lease for lease in self.leases if lease.votes[index] is Vote.GRANTED]


def valid_until_ns(record: AttemptRecord) -> int:
    """When the lease of this attempt ends."""
    return record.decided_ns + record.validity_ns


class OneCut:
    """One cut to come. `prefix`: of its keys. Every random choice of it depends on the plan's seed,
    the crash and its number alone."""

    def __init__(
        self, place: CrashPlace, plan: CrashPlan, crash: Crash, number: int, prefix: str
    ) -> None:
        self._place = place
        self._plan = plan
        self._crash = crash
        self._number = number
        self._prefix = prefix
        self._rng = Random(f"{plan.seed} {crash.key} {number}")
        self._victims = sorted(self._rng.sample(range(crash.instances), crash.crashed))
        self._load_s = self._rng.uniform(*load_range_s(crash))
        self._dead_ns = 0
        self._ended_ns = dict[int, int]()
        self._firsts: dict[_First, AsyncRedlock] = {}
        # The first of them trusts restarted instances, the second lets them abstain.
        self._seconds: list[AsyncRedlock] = []

    async def run(self) -> CutFacts:
        """Do it.

        Raises BenchError, LockcoreError or RedisError when a server or a client does not do its
        part.
        """
        async with AsyncExitStack() as stack:
            await self._connect(stack)
            await self._end_under_load()
            ledgers = [
                await finish(self._place.examine, index, ended_ns, self._crash, self._rng)
                for index, ended_ns in self._ended_ns.items()
            ]
            probes = [_task(stack, self._until_available(second)) for second in self._seconds]
            losses, contests = await self._back(stack)
            if not any(loss.at_stake for loss in losses) or not any(one.asked for one in contests):
                raise EnvironmentNotReadyError(
                    "this machine is too slow: no lock was valid any more after the crash"
                )
            return CutFacts(
                self._crash,
                self._number,
                self._load_s,
                tuple(ledgers),
                tuple(losses),
                tuple(contests),
                tuple(await asyncio.gather(*probes)),
            )

    async def _connect(self, stack: AsyncExitStack) -> None:
        quorum = quorum_of(self._crash.instances)
        others = [index for index in range(self._crash.instances) if index not in self._victims]
        order = [*self._victims, *self._rng.sample(others, len(others))]
        for margin in self._crash.margins:
            first = _First(margin, quorum)
            lock = await self._client(
                self._place.urls(order[: quorum + margin]), "trust", observer=first
            )
            self._firsts[first] = await stack.enter_async_context(lock)
        policies: tuple[Rejoin, ...] = ("trust", "trust-first")
        if self._crash.restart == "delayed":
            policies = ("trust",)
        for rejoin in policies:
            lock = await self._client(self._place.fleet.urls, rejoin)
            self._seconds.append(await stack.enter_async_context(lock))

    async def _client(
        self, urls: Sequence[str], rejoin: Rejoin, observer: Observer | None = None
    ) -> AsyncRedlock:
        return await AsyncRedlock.connect(
            urls,
            key_prefix=self._prefix,
            max_ttl_ms=TTL_MS,
            instance_timeout_ms=INSTANCE_TIMEOUT_MS,
            rejoin=rejoin,
            observer=observer,
        )

    async def _end_under_load(self) -> None:
        """Take locks, end the victims meanwhile, and wait for the last answers."""
        self._place.slow_syncs(sync_delay_s(self._crash, self._plan.latency_ms))
        stop = asyncio.Event()
        load = asyncio.ensure_future(self._load(stop))
        try:
            await asyncio.sleep(self._load_s)
            self._ended_ns = await finish(self._place.end, self._victims, self._crash.kind)
            self._dead_ns = monotonic_ns()
        finally:
            stop.set()
            self._place.slow_syncs(0)
            await load

    async def _load(self, stop: asyncio.Event) -> None:
        """Open loop: each tick so many locks, by turns of every margin."""
        locks = [*self._firsts.values()]
        asking = set[asyncio.Task[object]]()
        started = 0
        began_ns = monotonic_ns()
        try:
            while not stop.is_set():
                due = int((monotonic_ns() - began_ns) / NS_PER_S * self._plan.locks_per_s)
                for number in range(started, min(due, started + MOST_OUTSTANDING - len(asking))):
                    task = asyncio.create_task(
                        locks[number % len(locks)].try_acquire(str(number), TTL_MS)
                    )
                    asking.add(task)
                    task.add_done_callback(asking.discard)
                started = due
                await asyncio.sleep(TICK_S)
        finally:
            if asking:
                await asyncio.wait(asking)

    async def _back(self, stack: AsyncExitStack) -> tuple[list[Loss], list[AskedAgain]]:
        """Start the victims again.

        Delayed, every lease has ended by then, and the second client asks all the time.
        """
        pairs = [(first, way) for way in range(len(self._seconds)) for first in self._firsts]
        if self._crash.restart == "at-once":
            await finish(self._place.fleet.restart, *self._victims)
            losses = self._losses(await self._known(self._place.known_to), monotonic_ns())
            await asyncio.gather(*map(self._until_seen, self._seconds))
            asking = [
                _task(stack, self._contend(first, way, None if way else AT_ONCE_ROUNDS))
                for first, way in pairs
            ]
        else:
            # The losses are read from the files now, because a key may expire before the instance
            # is back.
            losses = self._losses(await self._known(self._place.kept_by), self._dead_ns)
            asking = [_task(stack, self._contend(first, way, None)) for first, way in pairs]
            safe_ns = max(self._ended_ns.values()) + TTL_MS * NS_PER_MS + drift_ns(TTL_MS, 0.01)
            await asyncio.sleep(max(0, safe_ns - monotonic_ns()) / NS_PER_S)
            await finish(self._place.fleet.restart, *self._victims)
        return losses, await asyncio.gather(*asking)

    async def _known(self, ask: Callable[[int, Sequence[str]], set[str]]) -> dict[int, set[str]]:
        """Which of the locks that it had acknowledged each victim still knows, as `ask` finds
        out."""
        remembered = {}
        for index in self._victims:
            leases = [lease for first in self._firsts for lease in first.granted_by(index)]
            remembered[index] = await finish(
                ask, index, [self._prefix + lease.resource for lease in leases]
            )
        return remembered

    def _losses(self, remembered: Mapping[int, set[str]], looked_ns: int) -> list[Loss]:
        """What is gone of each margin's locks that are valid at `looked_ns`: by instance, then each
        lock once."""
        losses = []
        for first in self._firsts:
            grants = [
                (index, lease) for index in self._victims for lease in first.granted_by(index)
            ]
            valid = [(index, lease) for index, lease in grants if valid_until_ns(lease) > looked_ns]
            gone = [
                (index, lease)
                for index, lease in valid
                if self._prefix + lease.resource not in remembered[index]
            ]
            for instance in (*self._victims, None):
                at_stake, lost = (
                    len({lease.resource for index, lease in some if instance in (None, index)})
                    for some in (valid, gone)
                )
                ages_ns = [
                    self._ended_ns[i] - lease.replied_ns[i]
                    for i, lease in gone
                    if instance in (None, i)
                ]
                oldest_s = max(0, *ages_ns) / NS_PER_S if ages_ns else None
                losses.append(Loss(first.margin, instance, at_stake, lost, oldest_s))
        return losses

    async def _until_seen(self, second: AsyncRedlock) -> None:
        """Return when the client is connected to every victim again, or after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RECONNECTED_S):
                while not {second.instances[index].state for index in self._victims} <= {
                    "voting",
                    "abstaining",
                }:
                    await asyncio.sleep(TICK_S)

    async def _contend(self, first: _First, way: int, rounds: int | None) -> AskedAgain:
        """Ask for the youngest of the first's locks again and again, as long as one of them is
        valid."""
        second = self._seconds[way]
        ends_ns = {lease.resource: valid_until_ns(lease) for lease in first.leases[way::2][-ASKED:]}
        requested: set[str] = set()
        doubled = 0
        for _ in range(rounds) if rounds else count():
            now_ns = monotonic_ns()
            ends_ns = {name: end_ns for name, end_ns in ends_ns.items() if end_ns > now_ns}
            if not ends_ns:
                break
            requested |= set(ends_ns)
            for result in await asyncio.gather(
                *(second.try_acquire(name, TTL_MS) for name in ends_ns)
            ):
                if isinstance(result, Lease) and result.granted_ns < ends_ns.pop(result.resource):
                    doubled += 1
            await asyncio.sleep(ASK_EVERY_S)
        return AskedAgain(first.margin, bool(way), len(requested), doubled)

    async def _until_available(self, second: AsyncRedlock) -> float:
        """Seconds from the end of the victims to the first grant of a lock that nobody has."""
        while not isinstance(
            result := await second.try_acquire(f"free-{monotonic_ns()}", TTL_MS), Lease
        ):
            await asyncio.sleep(TICK_S)
        return (result.granted_ns - max(self._ended_ns.values())) / NS_PER_S


def _task(stack: AsyncExitStack, work: Coroutine[object, object, Found]) -> asyncio.Task[Found]:
    """It goes on meanwhile, to the end of `stack` at most."""
    task = asyncio.create_task(work)
    stack.callback(task.cancel)
    return task
