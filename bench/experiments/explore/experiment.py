"""The exploration: *recipes and a budget for each → schedules shared out among processes → broken
rules, judged and stored*.

Rules: schedule numbers are handed out in order, in blocks. The first blocks that broke a rule
decide. So the same seed finds the same schedule, however many processes search. If nothing breaks,
a time budget decides how many schedules are played, and nothing else. A schedule that broke a
recipe is played again on real servers of lockbench, if it can be forced there. That replay decides
nothing. If a search process ends or stands still, the schedules played so far are kept. The recipe
is then not known, and the next recipe gets new processes.
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
# The time limit of one block on a busy machine. A part may be long, too.
_PATIENCE_S = 120.0
_PART_S = 3600.0


def run_explore(order: ExperimentOrder[ExplorePlan], show: Show) -> Done[ExploreResult]:
    """Explore every recipe of `order` and show progress. The result is stored on return, if it can
    be stored.

    Raises BenchError if nothing can be explored here, and KeyboardInterrupt if it comes before the
    end of the first row.
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
    """New search processes. Late answers of the old ones are ignored."""
    children.close()
    return [
        children.enter_context(Child("a search process", search.__name__)) for _ in range(processes)
    ]


def _on_servers(
    row: ExploredRow, broken: Broken, server: str | None, searcher: Child, show: Show
) -> Replayed:
    """Return the result of a row's smallest schedule on real servers."""
    show(f"{row.recipe}: broken; again on real servers")
    if find_recipe(row.recipe).about.replicated:
        return Replayed(reason="replication cannot be forced")
    if any(change.what == "full" for change in broken.changes):
        return Replayed(reason="a full disk cannot be forced")
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
        # The process is closed, because a late answer would be mistaken for the answer to the next
        # order.
        searcher.close()
        return Replayed(reason=str(error))
    same = sum(kind_of(one.rule) == kind_of(broken.rule) for one in answers if one.rule)
    why = next((one.raised for one in answers if one.raised), "")
    return Replayed(server=f"{binary.name} {binary.version}", plays=REPLAYS, same=same, reason=why)


def _orders(recipe: str, plan: ExplorePlan) -> Iterator[SearchOrder]:
    """Yield the orders for the search processes, in blocks."""
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
    """Explore one recipe according to `plan` with the processes in `searchers`, and add the results
    to `total`.

    Raises BenchError if one of the processes ends early.
    """
    orders = _orders(recipe, plan)
    for answer in _answers(orders, searchers, plan):
        total.add(answer)
        rate = total.played / total.took_s if total.took_s else 0
        show(f"{recipe}: {total.played:,} schedules played, {rate:,.0f}/s and core")
        if total.raised or total.outside or total.is_enough:
            break
    ended = total.raised or total.outside
    whole = plan.exhaustive is not None and not ended and next(orders, None) is None
    cut = "" if whole or plan.exhaustive is None else "it was cut"
    return row_of(recipe, find_recipe(recipe).about, total, whole=whole, cut=cut)


def _answers(
    orders: Iterator[SearchOrder], searchers: Sequence[Child], plan: ExplorePlan
) -> Iterator[Hunt]:
    """Yield the answers to the orders, in the order of the orders, until there are no more or the
    time is up."""
    patience_s = _PATIENCE_S if plan.exhaustive is None else _PART_S
    until_s = inf if plan.schedules or plan.budget_s is None else time.monotonic() + plan.budget_s
    while time.monotonic() < until_s and (block := list(zip(searchers, orders, strict=False))):
        for searcher, order in block:
            searcher.tell(order)
        yield from [searcher.hear(Hunt, patience_s) for searcher, _ in block]


def row_of(
    recipe: str, about: About, total: Hunt, *, whole: bool = False, cut: str = ""
) -> ExploredRow:
    """Return the row of a recipe, judged. If no rule was broken, a good word needs enough schedules
    that could have broken the recipe, and all requested schedules. `cut`: the reason why the search
    ended early."""
    # A part that ran in real time may be the part that keeps the recipe safe. So nothing counts as
    # broken.
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
    """Return the preconditions of a recipe's word, each with whether it was met.

    A search that ended before every schedule was played can show a flaw. It cannot show that there
    is none. The flaw of `set-nx-get-del` needs 150 schedules on average, and one seed in a thousand
    needs 1,000. So a known flaw that stays away is "not known", unless every schedule within the
    bound was played.
    """
    if total.outside:
        return {f"all of the recipe ran in virtual time ({total.outside})": False}
    if total.raised:
        return {f"the recipe's own code ran ({total.raised})": False}
    if total.broken:
        return {}
    if cut:
        return {
            f"all that were asked for ({cut} after {total.played:,} schedules, of which "
            "none broke it)": False
        }
    if whole:
        return {"a lock was asked for while it was held": total.tested > 0}
    if not about.safe:
        return {
            f"a schedule that shows the flaw (the search ended after {total.played:,} "
            "schedules)": False
        }
    return {
        f"at least {TESTED_LEAST} schedules asked for a lock that was held": total.tested
        >= TESTED_LEAST
    }
