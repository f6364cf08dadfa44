"""Which cells `lockbench fsync` measures, and in which order: *lists of values → cells → visits*.

    policy      none · no · everysec · always · waitaof (acquire waits for WAITAOF, under everysec)
    clients     connections per instance              pipeline   callers that share one connection
    injected    what the shim adds to every fsync (ms); 0 = the disk as it is
    rewrite     off · on: BGREWRITEAOF in the middle · on-no-sync: the same under no-appendfsync-on-rewrite

Rules: pure. A repeat visits every cell, in an order of its own that the seed decides; what is compared (one N and
callers) in a row. no, everysec and always of one cell take turns on the same servers, there and back (A B C, C B A, …):
what else the machine does hits all alike, and each turn is a pair. As WAITAOF answers once a second, its loads are
longer.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from bench.experiments.fsync.result import REWRITES, FsyncCell, FsyncTimes, Policy, Rewrite

OPEN_SHARE = 0.8  # of the maximum found, in open loop
OPEN_TIMES = 2  # as long as a closed loop: a p99 needs a thousand
PASSES = 6  # closed loops of each policy on one fleet: the fewest pairs that give an interval of 95 % (Wilcoxon)
OVERHEAD_S = 0.9  # per fleet: servers, connections, questions
CONNECT_S = 0.0006  # per client and instance

CallerShape = tuple[int, int]  # clients and pipeline
TTL_MS = 10_000
TIMEOUT_MS = TTL_MS / 4  # the longest there is: a slow fsync is measured, not given up on
WAITAOF_MS = 2000
WAITAOF_LEAST_S = 2.2  # it answers once a second, so all callers at once
TAKING_TURNS = ("no", "everysec", "always")  # CONFIG SET appendfsync
CONNECTED = "connected"
QUICK_CALLERS, QUICK_HOLD = (16, 1), "fixed:5ms"


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What the load process is told first. `clients`: connections per instance; `pipeline`: callers that share one.

    `waitaof`: acquire by SET and WAITAOF, not by lockcore.
    """

    urls: Sequence[str]
    key_prefix: str
    clients: int
    pipeline: int
    waitaof: bool
    seed: int
    hold: str = "0"

    @property
    def resources(self) -> list[str]:
        """One per caller: nobody contends, so that only durability is waited for."""
        return [f"r{caller}" for caller in range(self.clients * self.pipeline)]


@dataclass(frozen=True, slots=True)
class Phase:
    """Load for `warmup_s` + `seconds`. `rate_per_s`: of acquires, as a Poisson process; None = closed loop."""

    warmup_s: float
    seconds: float
    rate_per_s: float | None = None


Block = tuple[FsyncCell, ...]  # what takes turns on the same servers: cells that differ in their policy only


class FsyncPlan(FsyncTimes, frozen=True, kw_only=True):
    """The matrix. No block begins when it would end after `budget_s`, a first one in twice the time; None = all."""

    cells: tuple[FsyncCell, ...]
    seed: int

    def blocks(self) -> list[tuple[int, Block]]:
        """Repeat and block, in the order of measuring."""
        found: list[tuple[int, Block]] = []
        for repeat in range(self.repeats):
            rng = Random(f"{self.seed} fsync {repeat}")
            places: dict[object, dict[object, list[FsyncCell]]] = {}
            for cell in rng.sample(self.cells, len(self.cells)):
                alone = "" if cell.policy in TAKING_TURNS else cell.policy
                place = places.setdefault((cell.instances, cell.clients, cell.pipeline, cell.hold), {})
                place.setdefault((alone, cell.injected_ms, cell.rewrite), []).append(cell)
            found += [(repeat, tuple(block)) for place in places.values() for block in place.values()]
        return found

    def seconds_of(self, cell: FsyncCell) -> float:
        """How long each load of it is measured."""
        return max(self.seconds, WAITAOF_LEAST_S) if cell.policy == "waitaof" else self.seconds

    def block_s(self, block: Block) -> float:
        """About how long it takes."""
        cell = block[0]
        loads_s = PASSES * (self.warmup_s + self.seconds_of(cell))
        loads_s += self.warmup_s + OPEN_TIMES * self.seconds_of(cell)
        return len(block) * loads_s + OVERHEAD_S + CONNECT_S * cell.clients * cell.instances


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


def full_cells(policies: Iterable[Policy]) -> tuple[FsyncCell, ...]:
    """The whole matrix: about three hours. Who are many hold their locks, else the load process is the limit."""
    policies, counts, delays_ms = list(policies), (1, 3, 5), (0.0, 0.5, 2.0, 10.0)
    loads: tuple[tuple[CallerShape, str], ...] = (((1, 1), "0"), (QUICK_CALLERS, QUICK_HOLD), ((64, 4), "fixed:50ms"))
    everything = [
        cell for shape, hold in loads for cell in product_cells(policies, counts, [shape], delays_ms, hold=hold)
    ]
    rewritten = [policy for policy in policies if policy in TAKING_TURNS]
    rewrites = product_cells(rewritten, counts, [QUICK_CALLERS], delays_ms, REWRITES[1:], hold=QUICK_HOLD)
    return tuple(dict.fromkeys([*everything, *rewrites]))


def quick_cells(policies: Iterable[Policy], cores: int) -> tuple[FsyncCell, ...]:
    """A glance that this many cores can drive: one caller without and with a slow disk, callers that hold their locks
    (else the load process is the limit) at N = 1, 3 and, from 3 cores on, 5; rewrites where they matter most."""
    policies = list(policies)
    one = product_cells([policy for policy in policies if policy != "waitaof"], (1,), [(1, 1)], (0.0, 2.0))
    counts = (1, 3, 5) if cores > 2 else (1, 3)
    planner = product_cells(policies, counts, [QUICK_CALLERS], (2.0,), hold=QUICK_HOLD)
    always = [policy for policy in policies if policy == "always"]
    rewrites = product_cells(always, (1,), [QUICK_CALLERS], (2.0,), REWRITES[1:], hold=QUICK_HOLD)
    return tuple(dict.fromkeys([*one, *planner, *rewrites]))
