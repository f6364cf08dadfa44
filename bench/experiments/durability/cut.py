"""Makes one cut, which crashes some servers of a fleet under load: *a planned crash → the lost
locks and the locks that were granted twice*.

    load        The first clients acquire locks and never release them. Each vote margin has one
                first client.
    cut         The victims end under this load. The experiment then reads the ledgers of the
                victims and shortens their files.
    back        The victims start again, at once or when all leases have ended. The experiment finds
                out which locks each victim still knows.
    contention  The second clients ask for locks of the first clients. One second client trusts
                restarted instances. The other second client lets restarted instances abstain. This
                other client is missing if the restart is delayed.

A first client of margin m connects to only q + m instances. These instances include as many victims
as possible, which is the worst case. A lock counts only if its client received a lease. The second
clients connect before the crash. The second clients never request the same lock.

If a victim is running, the experiment asks this server for its locks. If a victim is dead, the
experiment reads the server's append-only file instead. A server ignores an incomplete command at
the end of this file, and the experiment does the same. A power cut removes all data that the shim's
ledger does not report as durable. A power cut with a torn tail leaves a part of this data in the
file. The test tests/integration/test_shim_on_ext4.py shows that the ledger is right.
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
# One fleet has at most this many concurrent acquires. Without this limit, acquires would pile up on
# a slow disk.
MOST_OUTSTANDING = 200
# Of each margin, a second client asks for this many locks. It chooses the youngest locks.
ASKED = 20
ASK_EVERY_S = 0.2
AT_ONCE_ROUNDS = 3
RECONNECTED_S = 1.5
INSTANCE_TIMEOUT_MS = TTL_MS / 4
_ANSWER_S = 10.0

Found = TypeVar("Found")


class CrashPlace:
    """A slot for one running fleet. Each lane has a slot of its own. So several cuts in a row can
    use the same fleet.

    All methods block and serve one thread at a time.
    """

    def __init__(self, server: ServerBinary) -> None:
        self._server = server
        self._started = ExitStack()
        self._fleet: Fleet | None = None
        self._controls: Sequence[Control] = ()
        self._dead: list[KeptPort] = []

    def open(self, instances: int, policy: AofPolicy) -> None:
        """Make sure that a fleet of `instances` servers runs under this AOF policy.

        Raises BenchError if the servers do not start, or if they do not load the shim.
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
        """End the fleet. A second call does nothing."""
        self._fleet = None
        self._started.close()

    @property
    def fleet(self) -> Fleet:
        """The running servers."""
        assert self._fleet is not None
        return self._fleet

    def urls(self, voters: Sequence[int]) -> list[str]:
        """Return one URL per instance. The URL of an instance in `voters` is its real URL. The URL
        of any other instance has a port on which no server listens."""
        return [
            url if index in voters else f"redis://{HOST}:{self._dead[index].number}"
            for index, url in enumerate(self.fleet.urls)
        ]

    def slow_syncs(self, delay_s: float) -> None:
        """Delay each sync of each instance by `delay_s` seconds from now on."""
        for control in self._controls:
            control.words.sync_delay_ns = round(delay_s * NS_PER_S)

    def end(self, victims: Sequence[int], kind: str) -> dict[int, int]:
        """End one victim after another, without a pause. Return the time (ns) at which each victim
        got its signal."""
        ended_ns = {}
        for index in victims:
            ended_ns[index] = monotonic_ns()
            self.fleet.kill(index, signal.SIGTERM if kind == "shutdown" else signal.SIGKILL)
        return ended_ns

    def examine(self, index: int, ended_ns: int, crash: Crash, torn: Random) -> LossLedger:
        """Read the shim's ledger of an instance that has ended, and return its entries. If the
        crash is a power cut, also cut off the data in the instance's files that was not yet
        durable."""
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
        """Ask a running instance for `keys`, and return the keys that exist there. Raises
        RedisError."""
        with Redis.from_url(self.fleet.urls[index], socket_timeout=_ANSWER_S) as server:
            values = server.mget(keys) if keys else []
        return {key for key, value in zip(keys, values, strict=True) if value is not None}

    def kept_by(self, index: int, keys: Sequence[str]) -> set[str]:
        """Read the append-only file of an instance that has ended. Return the keys that are both in
        `keys` and in this file."""
        files = append_only_files(self.fleet.instances[index].folder)
        return keys_in(path.read_bytes() for path in files).intersection(keys)


def append_only_files(folder: Path) -> list[Path]:
    """Return the paths of the incremental parts of an instance's append-only file, sorted by
    name."""
    return sorted(path for path in folder.rglob("*.aof") if ".base." not in path.name)


def keys_in(contents: Iterable[bytes]) -> set[str]:
    """Return the keys that a server has in memory after it has read these append-only files. The
    function ignores an incomplete command at the end of a file."""
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
    """Run blocking work in a thread, and return the result of the work. If the caller is cancelled,
    the function waits until the work has ended. So the caller never ends before the work ends."""
    job = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        if not job.cancelled():
            # This line reads the exception. Otherwise asyncio would log that the exception was
            # never retrieved.
            job.exception()
        raise


@dataclass(eq=False, slots=True)
class _First(Observer):
    """An observer of one first client. The observer collects the attempts in which the client got a
    lease with the vote margin `margin`."""

    margin: int
    quorum: int
    leases: list[AttemptRecord] = field(default_factory=list)

    def observe(self, record: AttemptRecord) -> None:
        """Remember the attempt if the client got a lease with exactly `quorum` + `margin` votes.
        Ignore the attempt if the client got no lease or a different number of votes."""
        if record.outcome is Outcome.ACQUIRED and record.tally.granted == self.quorum + self.margin:
            self.leases.append(record)

    def granted_by(self, index: int) -> list[AttemptRecord]:
        """Return the attempts in which the instance `index` granted its vote."""
        return [lease for lease in self.leases if lease.votes[index] is Vote.GRANTED]


def valid_until_ns(record: AttemptRecord) -> int:
    """Return the time (ns) at which the lease of this attempt ends."""
    return record.decided_ns + record.validity_ns


class OneCut:
    """One planned cut. All keys of the cut begin with `prefix`. The random choices of the cut
    depend only on the plan's seed, the crash and the cut's number."""

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
        # The first of these clients trusts restarted instances. The second client lets restarted
        # instances abstain.
        self._seconds: list[AsyncRedlock] = []

    async def run(self) -> CutFacts:
        """Make the cut.

        Raises BenchError, LockcoreError or RedisError if a server or a client fails.
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
                    "this machine is too slow, because every lock had ended before the "
                    "crashed server was back"
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
        """Start a load of acquires, end the victims under this load, and wait for the last
        replies."""
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
        """Make an open-loop load of acquires until `stop` is set. At each tick, the method starts
        the acquires that are due. There are never more than MOST_OUTSTANDING acquires at the same
        time. The method gives the acquires to the first clients one after another, so each margin
        gets the same number of acquires."""
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
        """Start the victims again, and let the second clients ask for the locks of the first
        clients. Return two lists: the losses of the victims, and the results of the second clients.

        A delayed restart happens only after all leases have ended. The second client asks for the
        locks again and again until this restart.
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
            # This code reads the losses from the files now. Later, a key may expire before the
            # instance is back.
            losses = self._losses(await self._known(self._place.kept_by), self._dead_ns)
            asking = [_task(stack, self._contend(first, way, None)) for first, way in pairs]
            safe_ns = max(self._ended_ns.values()) + TTL_MS * NS_PER_MS + drift_ns(TTL_MS, 0.01)
            await asyncio.sleep(max(0, safe_ns - monotonic_ns()) / NS_PER_S)
            await finish(self._place.fleet.restart, *self._victims)
        return losses, await asyncio.gather(*asking)

    async def _known(self, ask: Callable[[int, Sequence[str]], set[str]]) -> dict[int, set[str]]:
        """Return, for each victim, the locks that the victim acknowledged and still knows. The
        method calls `ask` for each victim. `ask` returns the locks that the victim knows."""
        remembered = {}
        for index in self._victims:
            leases = [lease for first in self._firsts for lease in first.granted_by(index)]
            remembered[index] = await finish(
                ask, index, [self._prefix + lease.resource for lease in leases]
            )
        return remembered

    def _losses(self, remembered: Mapping[int, set[str]], looked_ns: int) -> list[Loss]:
        """Return a list with the losses for each margin. A lock counts only if it was still valid
        at the time `looked_ns`. For each margin, the list has one entry per victim, and then one
        entry for all victims together. If several victims lost the same lock, the entry for all
        victims counts this lock once.
        """
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
        """Wait until the client is connected to all victims again. Stop waiting after RECONNECTED_S
        seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RECONNECTED_S):
                while not {second.instances[index].state for index in self._victims} <= {
                    "voting",
                    "abstaining",
                }:
                    await asyncio.sleep(TICK_S)

    async def _contend(self, first: _First, way: int, rounds: int | None) -> AskedAgain:
        """Ask repeatedly for the youngest locks of the first client. Stop as soon as the leases of
        all these locks have ended. If `rounds` is a number, stop after this number of rounds at the
        latest."""
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
        """Return the time (s) from the end of the last victim until a client gets a lock that
        nobody holds."""
        while not isinstance(
            result := await second.try_acquire(f"free-{monotonic_ns()}", TTL_MS), Lease
        ):
            await asyncio.sleep(TICK_S)
        return (result.granted_ns - max(self._ended_ns.values())) / NS_PER_S


def _task(stack: AsyncExitStack, work: Coroutine[object, object, Found]) -> asyncio.Task[Found]:
    """Start a task. When `stack` closes, the stack cancels the task if the task is still
    running."""
    task = asyncio.create_task(work)
    stack.callback(task.cancel)
    return task
