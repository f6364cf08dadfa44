"""Explores recipes with several processes, judges the broken rules, and stores the result.

The experiment sends blocks of schedules to the search processes, and begins with the lowest
schedule numbers. The search ends as soon as the received answers contain enough schedules that
broke a rule. So two searches with the same seed find the same schedule, even if they use different
numbers of processes. If no schedule breaks a rule, a time budget only limits the number of played
schedules. If a schedule broke a recipe and can be forced on real servers, the exploration plays
this schedule again on servers that lockbench starts. This replay does not change the verdict. If a
search process ends or hangs, the exploration keeps the results that it has already received. The
verdict on this recipe is then "not known", and the next recipe gets new processes.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import inf

from msgspec import structs

from bench.errors import EnvironmentNotReadyError
from bench.experiments.explore import search
from bench.experiments.explore.judge import judge_explored, word_of_row
from bench.experiments.explore.result import (
    Broken,
    ExploredRow,
    ExplorePlan,
    ExploreResult,
    Replayed,
)
from bench.experiments.explore.search import BLOCK, Hunt, SearchOrder, kind_of, setting_of
from bench.measure.expectation import NOT_KNOWN, unmet
from bench.measure.verdict import TESTED_LEAST
from bench.recipes.protocol import About
from bench.recipes.registry import find_recipe
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.topology.child import Child
from bench.topology.fleet import start_fleet
from bench.topology.server import find_server

REPLAYS = 3
# An exhaustive search is divided into this many parts.
PARTS = 400
# The time limits (s) of one block and of one part, on a busy machine.
_PATIENCE_S = 120.0
_PART_S = 3600.0


def run_explore(order: ExperimentOrder[ExplorePlan], show: Show) -> Done[ExploreResult]:
    """Explore every recipe of `order`, show progress, and store the result if possible.

    Raises BenchError if no recipe can be explored here. Raises KeyboardInterrupt if the user
    interrupts the exploration before the end of the first row.
    """
    plan = order.plan
    rows = list[ExploredRow]()
    with Experiment(order) as experiment, ExitStack() as children, experiment.cuttable():
        searchers = list[Child]()
        for recipe in plan.recipes:
            if not searchers or any(searcher.ended for searcher in searchers):
                searchers = _searchers(plan.processes, children)
            total = Hunt()
            try:
                row = explored(recipe, plan, searchers, show, total)
                if row.broken:
                    replayed = _on_servers(row, row.broken, order.server, searchers[0], show)
                    row = structs.replace(
                        row, broken=structs.replace(row.broken, replayed=replayed)
                    )
            except KeyboardInterrupt:
                # The search may have taken hours, so its results so far are kept.
                if total.played:
                    rows.append(row_of(recipe, find_recipe(recipe).about, total, cut="it was cut"))
                raise
            except EnvironmentNotReadyError as lost:
                if not (total.played or rows):
                    raise
                row = row_of(recipe, find_recipe(recipe).about, total, cut=str(lost))
                searchers = []
            rows.append(row)
    experiment.require(rows)
    cut = experiment.cut
    result = ExploreResult(
        **experiment.header(seed=plan.seed, interrupted=cut),
        conditions=plan,
        rows=tuple(rows),
        verdict=judge_explored(rows, len(plan.recipes), is_cut=cut),
    )
    return experiment.store(result)


def _searchers(processes: int, children: ExitStack) -> list[Child]:
    """End the old search processes, and return new ones. Late answers of the old processes are
    lost.
    """
    children.close()
    return [
        children.enter_context(Child("a search process", search.__name__)) for _ in range(processes)
    ]


def _on_servers(
    row: ExploredRow, broken: Broken, server: str | None, searcher: Child, show: Show
) -> Replayed:
    """Play a row's smallest schedule on real servers, and return the result."""
    show(f"{row.recipe}: a schedule broke the recipe; lockbench now plays it on real servers")
    if find_recipe(row.recipe).about.replicated:
        return Replayed(reason="lockbench cannot force replication on real servers")
    if any(change.what == "full" for change in broken.changes):
        return Replayed(reason="lockbench cannot force a full disk on real servers")
    try:
        binary = find_server(server)
        with start_fleet(row.instances, "none", server=binary) as fleet:
            ports = tuple(instance.port for instance in fleet.instances)
            again = SearchOrder(row.recipe, broken.seed, 0, 0, again=broken, ports=ports)
            answers = list[Hunt]()
            for _ in range(REPLAYS):
                searcher.tell(again)
                answers.append(searcher.hear(Hunt, _PATIENCE_S))
    except EnvironmentNotReadyError as error:
        # Close the process. Otherwise a late answer would be taken for the answer to the next
        # order.
        searcher.close()
        return Replayed(reason=str(error))
    same = sum(kind_of(one.rule) == kind_of(broken.rule) for one in answers if one.rule)
    why = next((one.raised for one in answers if one.raised), "")
    return Replayed(server=f"{binary.name} {binary.version}", plays=REPLAYS, same=same, reason=why)


def _orders(recipe: str, plan: ExplorePlan) -> Iterator[SearchOrder]:
    """Yield the orders for the search processes. Each order requests the play of one block of
    schedules, or of one part of an exhaustive search.
    """
    if plan.exhaustive is not None:
        for part in range(PARTS):
            yield SearchOrder(recipe, plan.seed, part, PARTS, plan.exhaustive)
        return
    most = plan.schedules or sys.maxsize
    for first in range(0, most, BLOCK):
        yield SearchOrder(recipe, plan.seed, first, min(BLOCK, most - first))


def explored(
    recipe: str, plan: ExplorePlan, searchers: Sequence[Child], show: Show, total: Hunt
) -> ExploredRow:
    """Explore one recipe with the processes in `searchers`, and return its row.

    `plan` has the limits of the search. The function also adds the results to `total`.

    Raises BenchError if a search process ends early.
    """
    orders = _orders(recipe, plan)
    for answer in _answers(orders, searchers, plan):
        total.add(answer)
        rate = total.played / total.took_s if total.took_s else 0
        show(
            f"{recipe}: {total.played:,} schedules played, {rate:,.0f} schedules per second and "
            "core"
        )
        if total.raised or total.outside or total.is_enough:
            break
    ended = total.raised or total.outside
    whole = plan.exhaustive is not None and not ended and next(orders, None) is None
    cut = "" if whole or plan.exhaustive is None else "it was cut"
    return row_of(recipe, find_recipe(recipe).about, total, whole=whole, cut=cut)


def _answers(
    orders: Iterator[SearchOrder], searchers: Sequence[Child], plan: ExplorePlan
) -> Iterator[Hunt]:
    """Yield one answer for each order. The answers have the same sequence as the orders.

    The function stops when there are no more orders. When the plan's time ends, the function
    finishes the current block and then stops.
    """
    patience_s = _PATIENCE_S if plan.exhaustive is None else _PART_S
    until_s = inf if plan.schedules or plan.budget_s is None else time.monotonic() + plan.budget_s
    while time.monotonic() < until_s and (block := list(zip(searchers, orders, strict=False))):
        for searcher, order in block:
            searcher.tell(order)
        yield from [searcher.hear(Hunt, patience_s) for searcher, _ in block]


def row_of(
    recipe: str, about: About, total: Hunt, *, whole: bool = False, cut: str = ""
) -> ExploredRow:
    """Return the judged row of a recipe. `cut` is the reason why the search ended early, or "".

    If no schedule broke a rule, a good verdict on the recipe has two conditions. The first
    condition is that the search played all requested schedules. The second condition is that enough
    schedules tested the recipe. A schedule counts as a test if a client requests a lock while
    another client holds the lock.
    """
    # If a part of the recipe ran in real time, this part may keep the recipe safe. So no broken
    # rule counts.
    broken = None if total.outside else total.broken
    needs = _preconditions(about, total, whole=whole, cut=cut)
    setting = setting_of(recipe, about)
    row = ExploredRow(
        recipe=recipe,
        safe=about.safe,
        clients=setting.clients,
        instances=setting.instances,
        may=setting.may,
        schedules=total.played,
        tested=total.tested,
        took_s=total.took_s,
        whole=whole,
        broken=broken,
        verdict=NOT_KNOWN,
        reason=unmet(needs),
    )
    return structs.replace(row, verdict=word_of_row(row))


def _preconditions(about: About, total: Hunt, *, whole: bool, cut: str) -> Mapping[str, bool]:
    """Return the preconditions of the verdict on a recipe. Each value says whether the precondition
    was met.

    A search that did not play every schedule can show a flaw, but it cannot prove that there is no
    flaw. To find the flaw of `set-nx-get-del`, a search needs 150 schedules on average. About one
    of a thousand searches needs 1,000 schedules or more. So if the search does not find a known
    flaw, the verdict on the recipe is "not known". A search that played every schedule within the
    bound is an exception to this rule.
    """
    if total.outside:
        return {f"the whole recipe ran in virtual time ({total.outside})": False}
    if total.raised:
        return {f"the recipe raises no exception (it raised {total.raised})": False}
    if total.broken:
        return {}
    if cut:
        return {
            (
                f"all requested schedules were played ({cut} after {total.played:,} schedules, "
                "and none of these schedules broke the recipe)"
            ): False
        }
    if whole:
        return {"a client requested a lock while another client held it": total.tested > 0}
    if not about.safe:
        return {
            f"a schedule shows the flaw (the search ended after {total.played:,} schedules)": False
        }
    return {
        f"at least {TESTED_LEAST} schedules requested a held lock": total.tested >= TESTED_LEAST
    }
