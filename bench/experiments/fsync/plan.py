"""Which cells `lockbench fsync` measures, and in which order: *lists of values → cells → visits*.

    policy      none · no · everysec · always · waitaof (acquire waits for WAITAOF, under everysec)
    clients     connections per instance              pipeline   callers that share one connection
    injected    what the shim adds to every fsync (ms); 0 = the disk as it is
    rewrite     off · on: BGREWRITEAOF in the middle · on-no-sync: the same under no-appendfsync-on-rewrite

Rules: pure. The seed decides the order; what is compared (one N and callers) comes in a row. no, everysec and always of
one cell take turns on the same servers, there and back (A B C, C B A, …): what else the machine does hits all alike,
and each turn is a pair. As WAITAOF answers once a second, its loads are longer.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from bench.experiments.fsync.result import REWRITES, FsyncCell, FsyncTimes, Policy, Rewrite

OPEN_SHARE = 0.8  # of the maximum found, in open loop
OPEN_TIMES = 5  # as long as a closed loop: a p99 needs a thousand
OVERHEAD_S = 0.9  # per block: servers, connections, questions
CONNECT_S = 0.0006  # per client and instance

CallerShape = tuple[int, int]  # clients and pipeline
TTL_MS = 10_000
TIMEOUT_MS = TTL_MS / 4  # the longest there is: a slow fsync is measured, not given up on
WAITAOF_MS = 2000
WAITAOF_LEAST_S = 2.2  # it answers once a second, so all callers at once
TAKING_TURNS = ("no", "everysec", "always")  # CONFIG SET appendfsync
CONNECTED = "connected"
FEW_CORES = 2  # do not drive five servers with callers that come back within milliseconds
ONE_CALLER: CallerShape = (1, 1)
QUICK_CALLERS, QUICK_HOLD = (16, 1), "fixed:5ms"
MANY: tuple[CallerShape, str] = ((16, 4), "exp:50ms")  # drawn, else all come back together


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What the load process is told first."""

    urls: Sequence[str]
    key_prefix: str
    cell: FsyncCell
    seed: int


@dataclass(frozen=True, slots=True)
class Phase:
    """Load for `warmup_s` + `seconds`. `rate_per_s`: of acquires, as a Poisson process; None = closed loop."""

    warmup_s: float
    seconds: float
    rate_per_s: float | None = None


Block = tuple[FsyncCell, ...]  # what takes turns on the same servers: cells that differ in their policy only


class FsyncPlan(FsyncTimes, frozen=True, kw_only=True):
    """The matrix."""

    cells: tuple[FsyncCell, ...]
    seed: int

    def blocks(self) -> list[Block]:
        """In the order of measuring."""
        places: dict[object, dict[object, list[FsyncCell]]] = {}
        for cell in Random(f"{self.seed} fsync").sample(self.cells, len(self.cells)):
            alone = "" if cell.policy in TAKING_TURNS else cell.policy
            place = places.setdefault((cell.instances, cell.clients, cell.pipeline, cell.hold), {})
            place.setdefault((alone, cell.injected_ms, cell.rewrite), []).append(cell)
        return [tuple(block) for place in places.values() for block in place.values()]

    def seconds_of(self, cell: FsyncCell) -> float:
        """How long each load of it is measured."""
        return max(self.seconds, WAITAOF_LEAST_S) if cell.policy == "waitaof" else self.seconds

    def block_s(self, block: Block) -> float:
        """About how long it takes."""
        cell = block[0]
        loads_s = self.repeats * (self.warmup_s + self.seconds_of(cell))
        loads_s += self.warmup_s + OPEN_TIMES * self.seconds_of(cell)
        return len(block) * loads_s + OVERHEAD_S + CONNECT_S * cell.connections * cell.instances


def product_cells(  # noqa: PLR0917 - the dimensions of the matrix
    policies: Iterable[Policy],
    instances: Iterable[int],
    shapes: Iterable[CallerShape],
    injected_ms: Iterable[float],
    rewrites: Iterable[Rewrite] = ("off",),
    hold: str = "0",
) -> Iterator[FsyncCell]:
    """All combinations that make sense: without an append-only file there is no fsync to delay and no rewrite."""
    counts, shapes, delays_ms, rewrites = list(instances), list(shapes), list(injected_ms), list(rewrites)
    for policy in policies:
        aof = policy != "none"
        for count, (clients, pipeline) in itertools.product(counts, shapes):
            for delay_ms, rewrite in itertools.product(delays_ms if aof else [0.0], rewrites if aof else REWRITES[:1]):
                yield FsyncCell(
                    policy=policy, instances=count, clients=clients, pipeline=pipeline, injected_ms=delay_ms,
                    rewrite=rewrite, hold=hold,
                )  # fmt: skip


def full_cells(policies: Iterable[Policy], cores: int) -> tuple[FsyncCell, ...]:
    """All that so many cores can drive: one caller, 16 that hold their locks for 5 ms and 64 that hold them for 50,
    on four disks; five servers on two cores under the last of these only. Rewrites and WAITAOF on one slow disk."""
    policies, delays_ms, slow_ms = list(policies), (0.0, 0.5, 2.0, 10.0), (2.0,)
    plain = [policy for policy in policies if policy != "waitaof"]
    waiting = [policy for policy in policies if policy == "waitaof"]
    cells = list(product_cells(plain, (1, 3, 5) if cores > FEW_CORES else (1, 3), [ONE_CALLER], delays_ms))
    for shape, hold in ((QUICK_CALLERS, QUICK_HOLD), MANY):
        counts = (1, 3, 5) if cores > FEW_CORES or (shape, hold) == MANY else (1, 3)
        cells += product_cells(plain, counts, [shape], delays_ms, hold=hold)
        cells += product_cells(waiting, counts, [shape], slow_ms, hold=hold)
    rewritten = [policy for policy in policies if policy in TAKING_TURNS]
    cells += product_cells(rewritten, (1, 3), [QUICK_CALLERS], slow_ms, REWRITES[1:], hold=QUICK_HOLD)
    return tuple(cells)


def quick_cells(policies: Iterable[Policy], cores: int) -> tuple[FsyncCell, ...]:
    """A glance that this many cores can drive: one caller without and with a slow disk, callers that hold their locks
    (else the load process is the limit) at N = 1, 3 and, from 3 cores on, 5; rewrites where they matter most."""
    policies = list(policies)
    one = product_cells([policy for policy in policies if policy != "waitaof"], (1,), [ONE_CALLER], (0.0, 2.0))
    counts = (1, 3, 5) if cores > FEW_CORES else (1, 3)
    planner = product_cells(policies, counts, [QUICK_CALLERS], (2.0,), hold=QUICK_HOLD)
    always = [policy for policy in policies if policy == "always"]
    rewrites = product_cells(always, (1,), [QUICK_CALLERS], (2.0,), REWRITES[1:], hold=QUICK_HOLD)
    return tuple(dict.fromkeys([*one, *planner, *rewrites]))
