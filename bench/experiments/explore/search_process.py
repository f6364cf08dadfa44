"""A process that searches: *numbers of schedules → how many were played, and the smallest that broke a rule*.

Started by name (bench.topology.child); it sees virtual time from its first import of a recipe on.
"""

import gc
from time import process_time
from typing import TYPE_CHECKING

from msgspec import Struct

from bench.experiments.explore.result import Broken, Deviation, Step

if TYPE_CHECKING:
    from bench.experiments.explore.schedule import Schedule


class SearchOrder(Struct):
    """Play schedules `first` … `first + count` of `seed`; `most`: else those with at most so many changes, the branch
    number `first` of `count` (0: the usual course alone); `again`: else that one, on the real servers at `ports`."""

    recipe: str
    seed: int
    first: int
    count: int
    most: int | None = None
    again: Broken | None = None
    ports: tuple[int, ...] = ()


class SearchAnswer(Struct):
    """What came of an order. `took_s`, `small_s`: processor time, of all and of the `small` ones (search.py);
    `branches`: how many there are behind the usual course; `raised`: by a recipe; `found`: how many broke a rule, the
    smallest made of them is `broken`; `seen`: how often what came about, of lockcore; `rule`: that one broken again
    broke."""

    played: int = 0
    tested: int = 0
    took_s: float = 0.0
    small: int = 0
    small_s: float = 0.0
    branches: int = 0
    raised: str = ""
    found: int = 0
    seen: dict[str, int] = {}
    broken: Broken | None = None
    rule: str = ""


def main() -> None:
    """Obey until there are no more orders."""
    from bench.experiments.explore.sockets import take_over
    from bench.topology.child import orders, say

    take_over()
    gc.freeze()
    gc.set_threshold(50_000)  # play.py collects what a schedule leaves
    for order in orders(SearchOrder):
        say(_answer(order) if order.again is None else _replayed(order, order.again))


def _replayed(order: SearchOrder, broken: Broken) -> SearchAnswer:
    from bench.experiments.explore.replay import replay

    try:
        played = replay(order.recipe, broken, order.ports)
    except OSError as error:
        return SearchAnswer(raised=f"{type(error).__name__}: {error}")
    return SearchAnswer(played=1, raised=played.raised, rule=played.broken)


def _answer(order: SearchOrder) -> SearchAnswer:
    from bench.experiments.explore.schedule import Schedule, one_more
    from bench.experiments.explore.search import every, hunt, numbered, setting_of
    from bench.recipes.registry import find_recipe

    began_s, first, count = process_time(), order.first, order.count
    setting = setting_of(order.recipe, find_recipe(order.recipe).about)
    if order.most is None:
        found = hunt(numbered(setting, number, order.seed) for number in range(first, first + count))
    else:
        found = hunt(every(setting, order.most, first, count))
    return SearchAnswer(
        played=found.played,
        tested=found.tested,
        small=found.small,
        small_s=found.small_s,
        branches=sum(1 for _ in one_more(Schedule(setting, {}), found.usual)),
        raised=found.raised,
        found=found.broken,
        seen=found.seen,
        broken=_told(found.best[0], found.best[1], first + found.best[2]) if found.best else None,
        took_s=process_time() - began_s,
    )


def _told(schedule: "Schedule", steps: list[Step], number: int) -> Broken:
    setting = schedule.setting
    changes = (
        Deviation(place.where, place.who, place.visit, change.what, change.for_ns / 1e6)
        for place, change in schedule.changes.items()
    )
    return Broken(
        rule=steps[-1].text,
        number=number,
        clients=setting.clients,
        callers=setting.callers,
        resources=setting.resources,
        rounds=setting.rounds,
        hold_ms=setting.hold_ns / 1e6,
        extends=setting.extends,
        starts_ms=tuple(setting.start_ns(client) / 1e6 for client in range(setting.clients)),
        seed=setting.seed,
        changes=tuple(changes),
        steps=tuple(steps),
    )


if __name__ == "__main__":
    main()
