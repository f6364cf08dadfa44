"""Measures the price of each fsync policy: *a matrix of cells → interleaved visits in random order
→ a judged and stored result*.

The experiment writes a finished block to the journal before the next block begins. So a later
session can continue an interrupted matrix, but only with the same servers. In a block the policies
alternate, forward and backward, so the visits of each pass form pairs. After these passes, the
experiment runs an open-loop load for each policy. The rate of this load is 80 % of the policy's
maximum *in this block*. The figures of the open-loop load have no visit of their own. The journal
stores these figures in the first visit of the policy. The servers' counters include the warm-up and
the drain of a load. So to get the work per lease, the experiment divides these counters by the
number of all leases, including the leases of the warm-up and the drain.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import redis
from msgspec import structs

from bench.errors import EnvironmentNotReadyError
from bench.experiments.durability.answers import PRICES
from bench.experiments.durability.planner import judged
from bench.experiments.durability.price_judge import rows_of, warnings_of
from bench.experiments.durability.price_plan import (
    OPEN_SHARE,
    OPEN_TIMES,
    Block,
    FsyncPlan,
    LoadOrder,
    Phase,
)
from bench.experiments.durability.price_result import (
    FsyncCell,
    FsyncConditions,
    FsyncResult,
    FsyncTimes,
    LoadName,
    LoadSeen,
    PhaseFigures,
    VisitSeen,
    known_sum,
)
from bench.experiments.durability.servers import CellServers, FsyncServers, lent
from bench.experiments.durability.sitting import Pace, sit
from bench.measure.environment import describe_environment
from bench.measure.fleet_facts import InfoDelta
from bench.measure.section import builtins_of
from bench.run.experiment import Done, Experiment, ExperimentOrder, Header, Show
from bench.run.journal import Journal
from bench.topology.child import Child
from bench.topology.fleet import require_descriptors
from bench.topology.probe import InfoSnapshot, delta, info_snapshot

# The load process must answer within this time, plus the time of the phase itself.
PATIENCE_S = 60.0
# Blocks without a grant may outnumber the measured visits by this many. If there are more,
# something else is wrong.
MOST_BARREN = 3


def run_fsync(
    order: ExperimentOrder[FsyncPlan], show: Show, open_servers: Callable[[], FsyncServers]
) -> Done[FsyncResult]:
    """Make the visits of `order` that are still missing. Store the result when no visit is missing
    any more. Raises BenchError if this machine cannot make the visits. Raises KeyboardInterrupt if
    the user presses Ctrl-C before the first block is finished."""
    with Experiment(order) as experiment, lent(open_servers()) as servers:
        machine = describe_environment()
        place = f"{machine.cpu_model}, {machine.cores_text} of {machine.cores}"
        plan = {
            "experiment": "fsync",
            **builtins_of(order.plan),
            "servers": servers.identity,
            "machine": place,
        }
        visits = partial(_Visits, order, servers, show)
        done = sit(experiment, order, plan, VisitSeen, visits, check=lambda visit: rows_of([visit]))
    return replace(done, exit_code=EnvironmentNotReadyError.exit_code) if servers.trouble else done


class _Visits:
    """The visits of a matrix, which are made block after block."""

    def __init__(
        self,
        order: ExperimentOrder[FsyncPlan],
        servers: FsyncServers,
        show: Show,
        journal: Journal[VisitSeen],
    ) -> None:
        self._results = order.folder.absolute().parent
        self._run_id = order.run_id
        self._plan = order.plan
        self._servers = servers
        self._journal = journal
        self._show = show
        policies = dict.fromkeys(cell.policy for cell in self._plan.cells)
        self._skipped = {
            policy: reason for policy in policies if (reason := servers.why_not(policy))
        }
        self._blocks = [
            block for block in self._plan.blocks() if block[0].policy not in self._skipped
        ]
        if self._skipped and {*policies} - {*self._skipped} <= {"none"}:
            reasons = "; ".join(dict.fromkeys(self._skipped.values()))
            raise EnvironmentNotReadyError(f"no policies can be compared here: {reasons}")
        for block in self._blocks:
            require_descriptors(block[0].instances, block[0].connections)
        self._barren: list[str] = []

    def measure(self, _is_over: Callable[[], bool]) -> None:
        """Make the missing visits, in the plan's order. Ctrl-C raises KeyboardInterrupt here."""
        plan = self._plan
        measured = {(piece.repeat, piece.cell) for piece in self._journal.pieces}
        missing = [
            block
            for block in self._blocks
            if not all((plan.repeats - 1, cell) in measured for cell in block)
        ]
        pace = Pace(sum(map(plan.block_s, missing)))
        for number, block in enumerate(missing, 1 + len(self._blocks) - len(missing)):
            policies = "/".join(cell.policy for cell in block)
            what = f"{policies}, {block[0].place}"
            self._show(f"block {number} of {len(self._blocks)}, {pace.left}: {what}")
            for piece in self._visited(block):
                if (piece.repeat, piece.cell) not in measured:
                    self._journal.add(piece)
            pace.did(plan.block_s(block))

    def _visited(self, block: Block) -> Sequence[VisitSeen]:
        """Measure a block, and return its visits. If no lock was granted in the block, the list is
        empty. If there are too many such blocks, the method raises NothingGrantedError."""
        prefix = f"lockbench:{self._run_id}:"
        cell = block[0]
        keys = [f"{prefix}r{caller}" for caller in range(cell.callers)]
        with self._servers.serving(cell, keys) as serving:
            try:
                return measure_block(self._plan, block, serving, prefix)
            except (redis.RedisError, OSError) as error:
                raise EnvironmentNotReadyError(
                    f"{cell}: a server did not answer: {error}"
                ) from None
            except NothingGrantedError as error:
                self._barren.append(str(error))
                if len(self._barren) > len(self._journal.pieces) + min(
                    MOST_BARREN, len(self._blocks) - 1
                ):
                    raise
                return ()

    def result(self, header: Header) -> FsyncResult:
        """Restore the settings of the user's servers, and return the result of all visits so far.
        The planner's page of this result also shows the losses from the newest crash result."""
        rows = rows_of(self._journal.pieces)
        plan = self._plan
        conditions = FsyncConditions(
            **{name: getattr(plan, name) for name in FsyncTimes.__struct_fields__},
            visits_planned=plan.repeats * sum(map(len, self._blocks)),
            visits_done=len(self._journal.pieces),
        )
        judgement = judged(rows, conditions, interrupted=header["interrupted"])
        result = FsyncResult(
            **header,
            **judgement,
            fleet=self._servers.fleet,
            conditions=conditions,
            rows=tuple(rows),
            warnings=(*self._limits(), *warnings_of(rows, judgement["findings"])),
        )
        result = PRICES.beside(result, self._results)
        # The user must see this problem, but it must not discard any measured block.
        if trouble := self._servers.close():
            result = structs.replace(result, warnings=(*result.warnings, trouble))
        return result

    def _limits(self) -> Iterator[str]:
        yield from (
            f"{policy} is not measured: {reason}" for policy, reason in self._skipped.items()
        )
        yield from self._servers.warnings
        if self._plan.scenario:
            yield self._plan.scenario
        if self._barren:
            yield (
                f"{len(self._barren)} blocks have no measurement, because no lock was "
                f"granted; the first of these blocks is {self._barren[0]}"
            )


class NothingGrantedError(EnvironmentNotReadyError):
    """An error for a cell in which no lock was granted during all loads. The cell then has no
    figures."""


def measure_block(
    plan: FsyncPlan, block: Block, servers: CellServers, key_prefix: str
) -> list[VisitSeen]:
    """Measure all loads of the block, and return one visit for each repeat of each cell.

    Raises NothingGrantedError if no lock was granted in a cell. Raises RedisError or
    EnvironmentNotReadyError if a server or the load process ended.
    """
    cell = block[0]
    maxima_of: dict[FsyncCell, list[LoadSeen]] = {cell: [] for cell in block}
    with load_process(LoadOrder(servers.urls, key_prefix, cell, plan.seed)) as child:
        for number in range(plan.repeats):
            # The policies are measured alternately, and every second pass goes backwards (A B C, C
            # B A). So a machine that slowly becomes faster or slower favours no policy. If the
            # order were always the same, the first policy of the block would always have the
            # earlier half of the drift.
            for cell in block if number % 2 == 0 else block[::-1]:
                maxima_of[cell].append(_loaded(plan, servers, child, cell))
        rates_per_s = {cell: _open_rate(cell, loads) for cell, loads in maxima_of.items()}
        open_loads = {
            cell: _loaded(plan, servers, child, cell, rate_per_s)
            for cell, rate_per_s in rates_per_s.items()
        }
    pieces = []
    for cell, maxima in maxima_of.items():
        for number, most in enumerate(maxima):
            loads: dict[LoadName, LoadSeen] = (
                {"max": most} if number else {"max": most, "80%": open_loads[cell]}
            )
            pieces.append(VisitSeen(repeat=number, cell=cell, disk=servers.disk, loads=loads))
    return pieces


def _open_rate(cell: FsyncCell, loads: Sequence[LoadSeen]) -> float:
    if granted := sum(load.granted for load in loads):
        return OPEN_SHARE * granted / sum(load.seconds for load in loads)
    denied = sum((Counter(load.denied) for load in loads), Counter())
    reasons = ", ".join(f"{outcome} {count:,}" for outcome, count in denied.items())
    raise NothingGrantedError(
        f"{cell}: no lock was granted in {len(loads)} loads ({reasons or 'no answer'})"
    )


def _loaded(
    plan: FsyncPlan,
    servers: CellServers,
    child: Child,
    cell: FsyncCell,
    rate_per_s: float | None = None,
) -> LoadSeen:
    seconds = plan.seconds_of(cell) * (OPEN_TIMES if rate_per_s else 1)
    servers.become(cell.policy)
    before = info_snapshot(servers.urls)
    syncs = servers.syncs
    child.tell(Phase(plan.warmup_s, seconds, rate_per_s))
    figures = child.hear(PhaseFigures, plan.warmup_s + seconds + PATIENCE_S)
    after = info_snapshot(servers.urls)
    fsyncs = servers.syncs_since(syncs)
    did = servers_did(before, after)
    return LoadSeen(
        **structs.asdict(figures),
        rate_per_s=rate_per_s,
        fsyncs=fsyncs,
        elapsed_s=max(one.elapsed_s for one in did),
        server_cpu_s=known_sum(one.cpu_s for one in did),
        aof_delayed_fsync=known_sum(one.delayed_fsyncs for one in did),
    )


@contextmanager
def load_process(order: LoadOrder) -> Iterator[Child]:
    """Start a load process, and yield it when its callers are connected. For each Phase that it
    receives, the process answers with PhaseFigures.

    Raises EnvironmentNotReadyError.
    """
    with Child("the load process", f"{__package__}.load_process") as child:
        child.tell(order)
        child.hear(str, PATIENCE_S)
        yield child


def servers_did(before: Sequence[InfoSnapshot], after: Sequence[InfoSnapshot]) -> list[InfoDelta]:
    """Return the work that each server did between the snapshot `before` and the snapshot `after`.

    Raises EnvironmentNotReadyError if a server did not survive the load.
    """
    deltas = [delta(old, new) for old, new in zip(before, after, strict=True)]
    for old, change in zip(before, deltas, strict=True):
        # The server answered before the load. So the server has ended, or another server has taken
        # its place.
        if change.warning and old.values is not None:
            raise EnvironmentNotReadyError(
                f"{change.address} did not survive the load ({change.warning}); find the cause, "
                "and measure again"
            )
    return deltas
