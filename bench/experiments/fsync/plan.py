"""Which cells `lockbench fsync` measures, and in which order: *lists of values → cells → visits*.

    policy      none · no · everysec · always · waitaof (acquire waits for WAITAOF, under everysec)
    clients     connections per instance              pipeline   callers that share one connection
    injected    what the shim adds to every fsync (ms); 0 = the disk as it is
    rewrite     off · on: BGREWRITEAOF in the middle · on-no-sync: the same under no-appendfsync-on-rewrite

Rules: pure. A repeat visits every cell once, in an order of its own that the seed decides: what is compared (one N and
shape) is visited in a row, shuffled, so that what else the machine does hits all policies alike.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from bench.experiments.fsync.result import REWRITES, FsyncCell, FsyncTimes, Policy, Rewrite

OPEN_SHARE = 0.8  # of the maximum found, in open loop
OVERHEAD_S = 0.9  # per visit: servers, connections, questions
CONNECT_S = 0.0006  # per client and instance

CallerShape = tuple[int, int]  # clients and pipeline
TTL_MS = 10_000
TIMEOUT_MS = TTL_MS / 4  # the longest there is: a slow fsync is measured, not given up on
WAITAOF_MS = 2000
CONNECTED = "connected"


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


class FsyncPlan(FsyncTimes, frozen=True, kw_only=True):
    """The matrix. No visit begins when it would end after `budget_s`, a cell's first in twice the time; None = all."""

    cells: tuple[FsyncCell, ...]
    seed: int

    def visits(self) -> list[tuple[int, FsyncCell]]:
        """Repeat and cell, in the order of measuring."""
        found = []
        for repeat in range(self.repeats):
            rng = Random(f"{self.seed} fsync {repeat}")
            blocks: dict[tuple[int, int, int], list[FsyncCell]] = {}
            for cell in rng.sample(self.cells, len(self.cells)):
                blocks.setdefault((cell.instances, cell.clients, cell.pipeline), []).append(cell)
            found += [(repeat, cell) for block in blocks.values() for cell in block]
        return found

    def visit_s(self, cell: FsyncCell) -> float:
        """About how long one visit takes."""
        return 2 * (self.warmup_s + self.seconds) + OVERHEAD_S + CONNECT_S * cell.clients * cell.instances


def product_cells(
    policies: Iterable[Policy],
    instances: Iterable[int],
    shapes: Iterable[CallerShape],
    injected_ms: Iterable[float],
    rewrites: Iterable[Rewrite] = ("off",),
) -> Iterator[FsyncCell]:
    """All combinations that make sense: without an append-only file there is no fsync to delay and no rewrite."""
    counts, shapes, delays_ms, rewrites = list(instances), list(shapes), list(injected_ms), list(rewrites)
    for policy in policies:
        aof = policy != "none"
        for count, (clients, pipeline) in itertools.product(counts, shapes):
            for delay_ms, rewrite in itertools.product(delays_ms if aof else [0.0], rewrites if aof else REWRITES[:1]):
                yield FsyncCell(
                    policy=policy, instances=count, clients=clients, pipeline=pipeline, injected_ms=delay_ms,
                    rewrite=rewrite,
                )  # fmt: skip


def full_cells(policies: Iterable[Policy]) -> tuple[FsyncCell, ...]:
    """The whole matrix: hours."""
    policies = list(policies)
    clients = (1, 16, 256)
    shapes = [(count, pipeline) for count in clients for pipeline in (1, 16)]
    rewritten = [policy for policy in policies if policy in ("no", "everysec", "always")]
    everything = product_cells(policies, (1, 3, 5), shapes, (0.0, 0.5, 2.0, 10.0))
    rewrites = product_cells(rewritten, (1, 3, 5), [(16, 16)], (0.0, 0.5, 2.0, 10.0), REWRITES[1:])
    return tuple(dict.fromkeys([*everything, *rewrites]))


def quick_cells(policies: Iterable[Policy]) -> tuple[FsyncCell, ...]:
    """A glance: the extremes at N=1, the planner's N = 1, 3, 5 in the middle, rewrites where they matter most."""
    policies = list(policies)
    rewritten = [policy for policy in policies if policy in ("everysec", "always")]
    extremes = product_cells(policies, (1,), [(1, 1), (256, 16)], (0.0, 2.0))
    planner = product_cells(policies, (1, 3, 5), [(16, 4)], (2.0,))
    rewrites = product_cells(rewritten, (1,), [(16, 4)], (2.0,), REWRITES[1:])
    return tuple(dict.fromkeys([*extremes, *planner, *rewrites]))
