"""Searches for schedules that break a recipe, and makes such a schedule as small as possible.

Schedule `n` of a seed is the same on every machine and in every process. So several processes can
share a search. Schedule 0 is the usual course. The random search makes the schedules with odd
numbers. The search by priorities makes the schedules with even numbers, except schedule 0. If a
schedule breaks a rule, the search makes this schedule smaller until no simpler schedule breaks the
same rule. A schedule with fewer steps is smaller. If two schedules have the same number of steps,
the schedule with fewer changes is smaller. If the numbers of changes are also equal, the schedule
with fewer clients and requests is smaller. The last criterion is the total duration of the changes.

The experiment starts a search process by the name of this module (bench.topology.child). The
process switches to virtual time before it imports a recipe. A search process also replays a broken
schedule on real servers. A replay still simulates the clients, their connections and all changes.
However, this simulation runs in real time. A real server executes each command when the command is
due. A replay cannot force faults inside a server, such as a fast clock, a full disk or a lagging
replica.
"""

import gc
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from bench.errors import UsageError
from bench.experiments.explore.diagram import steps_of
from bench.experiments.explore.keyspace import RealKeyspace
from bench.experiments.explore.outside import Outside, watch
from bench.experiments.explore.play import ENGINE, Play, Played, play
from bench.experiments.explore.result import Broken, Deviation, Size, Step
from bench.experiments.explore.schedule import (
    ANY,
    TTL_MS,
    Change,
    Choose,
    Place,
    Schedule,
    Setting,
    at_random,
    by_priorities,
    one_more,
    simpler,
)
from bench.experiments.explore.sockets import take_over
from bench.experiments.explore.world import START_NS
from bench.recipes.protocol import About
from bench.topology.child import orders, say
from lockcore.clock import NS_PER_MS, NS_PER_S

ENGINE_MAY = {place: may for place, may in ANY.items() if place != "skew"}
ENGINE_MAY |= {"step": ("pause", "kill"), "serve": ("restart", "stop", "flush", "full")}
# A search process gets this many schedules at once.
BLOCK = 50
# The search makes at most this many broken schedules smaller. It stops earlier if one smaller
# schedule has at most `SHORT` steps.
ENOUGH = 5
SHORT = 12
# One in this many schedules of lockcore has several callers in each client, and more than one lock.
CROWD = 4


def setting_of(recipe: str, about: About) -> Setting:
    """Return the setting of all schedules for `recipe`.

    The setting allows only changes that the recipe claims to survive.
    """
    if recipe == ENGINE:
        return Setting(recipe=recipe, may=ENGINE_MAY, clients=2, instances=3, hold_ms=TTL_MS / 25)
    instances = 3 if about.most is None and not about.replicated else about.usual
    may = {**ANY, "serve": ("die",) if about.replicated else ("stop", "flush")}
    return Setting(
        recipe=recipe,
        may=may,
        clients=3,
        instances=instances,
        rounds=2,
        is_replicated=about.replicated,
    )


def numbered(setting: Setting, number: int, seed: int) -> tuple[Schedule, Played]:
    """Play schedule `number` (from 0) of a seed. Return the schedule and its result."""
    random = Random(f"{seed} {setting.recipe} {number}")
    settings: dict[str, object] = {"seed": number + seed}
    if setting.recipe == ENGINE:
        settings["extends"] = number % 3 == 1
        if number % CROWD == CROWD - 1:
            callers, shared = random.choice(((4, 4), (4, 2), (8, 1), (12, 2)))
            settings |= {
                "callers": callers,
                "resources": 2 * callers - shared,
                "rounds": random.choice((1, 2)),
            }
        if number % 5 == 4:
            settings["hold_ms"] = TTL_MS
    usual = setting
    setting = replace(setting, **settings)
    changes: dict[Place, Change] = {}
    choose: Choose = changes.get
    if number % 2:
        choose = at_random(setting, random, changes)
    elif number:
        if setting.recipe not in _USUAL:
            # Each process begins with another number. So a process plays the usual course when it
            # first needs it.
            _USUAL[setting.recipe] = play(usual, changes.get)
        choose = by_priorities(setting, random, _USUAL[setting.recipe].passed, changes)
    return Schedule(setting, changes), play(setting, choose)


_USUAL: dict[str, Played] = {}


def every(
    schedule: Schedule, most: int, first: int = 0, step: int = 1
) -> Iterator[tuple[Schedule, Played]]:
    """Play `schedule`, and play each schedule with up to `most` additional changes.

    Each schedule is played once. If a schedule breaks a rule, no changes are added to this
    schedule. Several processes can share the work. For this purpose, the function starts with
    branch `first`, and plays only every `step`-th branch. The function yields `schedule` itself
    only if `first` is 0.
    """
    played = play(schedule.setting, schedule.changes.get)
    if first == 0:
        yield schedule, played
    if most and not played.broken:
        for longer in islice(one_more(schedule, played.passed), first, None, step):
            yield from every(longer, most - 1)


class Hunt(Struct):
    """The combined results of several schedules.

    `took_s` is the processor time. `raised` is the exception that a recipe raised, or "". `outside`
    describes a part of the recipe that did not run in virtual time, or is "". If `outside` is not
    "", the verdict on the recipe is "not known". `broken_count` is the number of schedules that
    broke a rule. `broken` is the smallest known schedule that breaks a rule. `counts` holds the
    number of observations of each kind, but only for lockcore. `rule` is the rule that a schedule
    broke when it was played again.
    """

    played: int = 0
    tested: int = 0
    took_s: float = 0.0
    raised: str = ""
    outside: str = ""
    broken_count: int = 0
    counts: dict[str, int] = {}
    broken: Broken | None = None
    rule: str = ""

    def add(self, more: "Hunt") -> None:
        """Add the results of more schedules."""
        self.played = self.played + more.played
        self.tested = self.tested + more.tested
        self.took_s = self.took_s + more.took_s
        self.broken_count = self.broken_count + more.broken_count
        self.counts = Counter(self.counts) + Counter(more.counts)
        self.raised = self.raised or more.raised
        self.outside = self.outside or more.outside
        self.keep(more.broken)

    def keep(self, broken: Broken | None) -> None:
        """Store `broken` if no schedule is stored, or if `broken` has fewer steps than the stored
        schedule."""
        if broken and (self.broken is None or len(broken.steps) < len(self.broken.steps)):
            self.broken = broken

    @property
    def is_enough(self) -> bool:
        """True if the search may stop. The search may stop if it has found enough schedules that
        break the recipe. A single schedule is enough if it is short.
        """
        return self.broken_count >= ENOUGH or (
            self.broken is not None and len(self.broken.steps) <= SHORT + 1
        )


def hunt(schedules: Iterable[tuple[Schedule, Played]], first: int = 0) -> Hunt:
    """Combine the results of `schedules`, and stop when enough schedules have broken a rule. The
    numbers of the schedules begin with `first`.
    """
    result = Hunt()
    counts = Counter[str]()
    began_s = time.process_time()
    for number, (schedule, played) in enumerate(schedules, first):
        result.played = result.played + 1
        result.tested = result.tested + played.tested
        result.raised = result.raised or played.raised
        result.outside = Outside.take()
        if result.outside:
            break
        if schedule.setting.recipe == ENGINE:
            played.count_in(counts)
        if played.broken:
            result.broken_count += 1
            result.keep(_told(*smallest(schedule, played), number))
            if result.is_enough:
                break
    result.counts = counts
    result.took_s = time.process_time() - began_s
    return result


def _told(schedule: Schedule, steps: Sequence[Step], number: int) -> Broken:
    changes = (
        Deviation(*place, what, for_ns / NS_PER_MS)
        for place, (what, for_ns) in schedule.changes.items()
    )
    setting = replace(schedule.setting, starts_ms=schedule.setting.begins_ms)
    return Broken(
        rule=steps[-1].text,
        number=number,
        changes=tuple(changes),
        steps=tuple(steps),
        **_size(setting),
    )


def _size(of: Size) -> dict[str, Any]:
    return {name: getattr(of, name) for name in Size.__struct_fields__}


def schedule_of(usual: Setting, broken: Broken) -> Schedule:
    """Return the schedule of a stored result. `usual` is the setting of all schedules for the
    recipe.
    """
    changes = {
        Place(one.where, one.who, one.visit): Change(one.what, int(one.for_ms * NS_PER_MS))
        for one in broken.changes
    }
    return Schedule(replace(usual, **_size(broken)), changes)


def kind_of(rule: str) -> str:
    """Return the kind of a broken rule, without the names of the clients that broke the rule."""
    return " ".join(rule.split()[:3])


def smallest(schedule: Schedule, played: Played) -> tuple[Schedule, list[Step]]:
    """Search greedily for the smallest schedule that breaks the same rule.

    Return the smallest schedule, and the steps of this schedule.
    """
    rule = kind_of(played.broken)
    steps = steps_of(played.seen, schedule.setting.instances)
    best = Schedule(schedule.setting, _passed(schedule, played))
    cost = _cost(schedule, steps)
    while True:
        for one in simpler(best, played.later_begins(best)):
            tried = play(one.setting, one.changes.get)
            if kind_of(tried.broken) != rule:
                continue
            less = Schedule(one.setting, _passed(one, tried))
            tried_steps = steps_of(tried.seen, one.setting.instances)
            if (tried_cost := _cost(less, tried_steps)) < cost:
                best = less
                played = tried
                steps = tried_steps
                cost = tried_cost
                break
        else:
            return best, steps


def _passed(schedule: Schedule, played: Played) -> dict[Place, Change]:
    """Return the changes of `schedule` that happened in the play, and leave out all other
    changes."""
    return {place: change for place, change in schedule.changes.items() if place in played.passed}


def _cost(schedule: Schedule, steps: list[Step]) -> tuple[int, int, int, int]:
    setting = schedule.setting
    size = setting.clients * setting.callers * setting.rounds * setting.resources + setting.extends
    held_up_ns = sum(change.for_ns for change in schedule.changes.values())
    return len(steps), len(schedule.changes), size, held_up_ns


# -- the process that searches ---------------------------------------------------------------------


class SearchOrder(Struct):
    """An order to play `count` schedules of `seed`, starting with schedule number `first`.

    If `most` is a number, the order requests an exhaustive search for schedules with at most `most`
    changes. The process then starts with branch `first`, and from there plays every `count`-th
    branch. If `again` is a schedule, the process only replays this schedule on the empty real
    servers at `ports`.
    """

    recipe: str
    seed: int
    first: int
    count: int
    most: int | None = None
    again: Broken | None = None
    ports: tuple[int, ...] = ()


def main() -> None:
    """Read orders on stdin, and answer each order on stdout. The function ends when stdin ends."""
    take_over()
    watch()
    # All objects that exist now live as long as this process. So these objects are frozen, and no
    # collection walks through them again. With the high threshold the collector hardly ever runs by
    # itself. `play` collects the remains of each schedule afterwards. With the usual threshold, the
    # collector would walk through a running world again and again, although most of the world is
    # still in use.
    gc.freeze()
    gc.set_threshold(50_000)
    for order in orders(SearchOrder):
        say(answer(order))


def answer(order: SearchOrder) -> Hunt:
    """Return the result of an order."""
    from bench.recipes.registry import find_recipe

    try:
        about = find_recipe(order.recipe).about
    except UsageError as error:
        # The recipe could be loaded in another process, where time is real, but not in this one.
        return Hunt(raised=str(error), outside=Outside.take())
    setting = setting_of(order.recipe, about)
    first = order.first
    if order.again is not None:
        return _replayed(schedule_of(setting, order.again), order.ports)
    if order.most is not None:
        return hunt(every(Schedule(setting, {}), order.most, first, order.count), first)
    return hunt(
        (numbered(setting, number, order.seed) for number in range(first, first + order.count)),
        first,
    )


def _replayed(schedule: Schedule, ports: Sequence[int]) -> Hunt:
    """Play the schedule in real time, and return its result."""
    began_ns = list[int]()

    def until(now_ns: int) -> None:
        """Wait until the real clock reaches the simulated time `now_ns`. If `now_ns` is before
        START_NS, the function does not wait.
        """
        if now_ns >= START_NS:
            began_ns.append(time.monotonic_ns() - now_ns)
            time.sleep(max(began_ns[0] + now_ns - time.monotonic_ns(), 0) / NS_PER_S)

    play = Play(schedule.setting, schedule.changes.get)
    play.world.until = until
    try:
        with ExitStack() as stack:
            for server, port in zip(play.servers, ports, strict=True):
                data = stack.enter_context(closing(RealKeyspace(port)))
                server.data = data  # type: ignore[assignment]
                server.is_old = schedule.setting.recipe == ENGINE
                data.clear()
            played = play.run()
    except OSError as error:
        return Hunt(raised=f"{type(error).__name__}: {error}")
    return Hunt(played=1, raised=played.raised, rule=played.broken)


if __name__ == "__main__":
    main()
