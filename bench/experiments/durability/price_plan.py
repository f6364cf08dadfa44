"""Plans the cells that `lockbench fsync` measures, and their order: *lists of values → cells →
blocks of interleaved cells*.

All functions are pure. The seed determines the order of the blocks. If lockbench compares two
cells, both cells have the same number of instances and the same callers. lockbench measures such
cells one after another. In a block, the policies `no`, `everysec` and `always` alternate on the
same servers, forward and backward (A B C, C B A, …). So other work on the machine affects all
policies equally, and the visits of one pass form pairs. The loads of `waitaof` are longer, because
WAITAOF answers only once a second.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from bench.experiments.durability.policies import AOF_POLICIES, POLICIES, Policy
from bench.experiments.durability.price_result import FsyncCell, FsyncTimes

# The open loop offers this share of the measured maximum.
OPEN_SHARE = 0.8
# The open loop lasts this many times as long as a closed loop, because a p99 needs a thousand
# samples.
OPEN_TIMES = 5
# The time (s) that a block needs to start the servers, connect to them and query them.
OVERHEAD_S = 0.9
# The time (s) that one client needs to connect to one instance.
CONNECT_S = 0.0006

# Clients, pipeline and hold.
CallerShape = tuple[int, int, str]
TTL_MS = 10_000
# The time-out is as long as possible, so that a slow fsync is measured and does not time out.
TIMEOUT_MS = TTL_MS / 4
WAITAOF_MS = 2000
# WAITAOF answers once a second, and then it answers all callers together.
WAITAOF_LEAST_S = 2.2
# These policies can be changed with CONFIG SET appendfsync, so they take turns.
TAKING_TURNS = AOF_POLICIES[1:]
ONE: CallerShape = (1, 1, "0")
SOME: CallerShape = (16, 1, "fixed:5ms")
# The hold is random, because otherwise all callers would come back at the same time.
MANY: CallerShape = (16, 4, "exp:50ms")
SLOW_MS = [2.0]


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """The first message to the load process. The message describes the callers that the load
    process connects."""

    urls: Sequence[str]
    key_prefix: str
    cell: FsyncCell
    seed: int


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of load, which lasts `warmup_s` + `seconds`.

    `rate_per_s` is the rate at which acquires arrive as a Poisson process. If `rate_per_s` is None,
    the phase is a closed loop.
    """

    warmup_s: float
    seconds: float
    rate_per_s: float | None = None


# Cells that alternate on the same servers. The cells differ only in their policy.
Block = tuple[FsyncCell, ...]


class FsyncPlan(FsyncTimes, frozen=True, kw_only=True):
    """The matrix of cells that lockbench will measure."""

    cells: tuple[FsyncCell, ...]
    seed: int

    def blocks(self) -> list[Block]:
        """Return the blocks in the order in which lockbench measures them."""
        places: dict[object, dict[object, list[FsyncCell]]] = {}
        for cell in Random(f"{self.seed} fsync").sample(self.cells, len(self.cells)):
            alone = "" if cell.policy in TAKING_TURNS else cell.policy
            place = places.setdefault((cell.instances, cell.clients, cell.pipeline, cell.hold), {})
            place.setdefault((alone, cell.injected_ms), []).append(cell)
        return [tuple(block) for place in places.values() for block in place.values()]

    def seconds_of(self, cell: FsyncCell) -> float:
        """Return the duration (s) of each closed-loop load of the cell."""
        return max(self.seconds, WAITAOF_LEAST_S) if cell.policy == "waitaof" else self.seconds

    def block_s(self, block: Block) -> float:
        """Return an estimate of how long (s) the block will take."""
        cell = block[0]
        loads_s = self.repeats * (self.warmup_s + self.seconds_of(cell))
        loads_s += self.warmup_s + OPEN_TIMES * self.seconds_of(cell)
        return len(block) * loads_s + OVERHEAD_S + CONNECT_S * cell.connections * cell.instances


def product_cells(
    policies: Sequence[Policy],
    instances: Sequence[int],
    shapes: Sequence[CallerShape],
    injected_ms: Sequence[float],
) -> list[FsyncCell]:
    """Return a cell for each combination of these values. There are no cells that combine the
    policy `none` with an added delay, because `none` makes no fsync."""
    return [
        FsyncCell(
            policy=policy,
            instances=count,
            clients=clients,
            pipeline=pipeline,
            injected_ms=delay_ms,
            hold=hold,
        )
        for policy, count, (clients, pipeline, hold) in itertools.product(
            policies, instances, shapes
        )
        for delay_ms in (injected_ms if policy != "none" else (0.0,))
    ]


def full_cells(cores: int) -> list[FsyncCell]:
    """Return the cells of the full matrix. The function chooses cells whose load a machine with
    `cores` cores can make. The matrix has four disks and three loads. The loads are one caller, 16
    callers that hold locks for 5 ms, and 64 callers that hold locks for 50 ms. On a machine with at
    most two cores, lockbench measures fleets of five instances only with 64 callers. It measures
    `waitaof` only on one slow disk, and never with only one caller."""
    counts = driven(cores)
    delays_ms = (0.0, 0.5, 2.0, 10.0)
    cells = product_cells(AOF_POLICIES, counts, [ONE], delays_ms)
    for of_it, shape in ((counts, SOME), ((1, 3, 5), MANY)):
        cells += product_cells(AOF_POLICIES, of_it, [shape], delays_ms) + product_cells(
            ["waitaof"], of_it, [shape], SLOW_MS
        )
    return cells


def quick_cells(cores: int) -> list[FsyncCell]:
    """Return the cells of the short matrix (`--quick`). The function chooses cells whose load a
    machine with `cores` cores can make. The first cells have one caller and one instance. Some of
    these cells have a slow disk. The other cells have 16 callers and a slow disk. The 16 callers
    hold each lock for some time. Without this hold time, the load process would be the limit."""
    return [
        *product_cells(AOF_POLICIES, (1,), [ONE], (0.0, 2.0)),
        *product_cells(POLICIES, driven(cores), [SOME], SLOW_MS),
    ]


def driven(cores: int) -> tuple[int, ...]:
    """Return the numbers of instances for which a machine with `cores` cores can make the load.
    This is true only if each caller waits a few milliseconds before its next acquire."""
    return (1, 3, 5) if cores > 2 else (1, 3)
