"""The search: *a recipe and a number → the schedule of that number, played; a broken one made as small as it gets*.

Rules: schedule `n` of a seed is the same on every machine and in every process, so a search may be shared out. Number 0
is the usual course; then random schedules and those by priorities take turns. What is broken is made smaller until no
simpler schedule breaks the same rule: fewer steps first, then fewer changes, then shorter times.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from time import process_time
from typing import Any

from bench.experiments.explore.diagram import steps_of
from bench.experiments.explore.play import ENGINE, Played, play
from bench.experiments.explore.result import Step
from bench.experiments.explore.schedule import (
    ANY,
    TTL_MS,
    Change,
    Place,
    Schedule,
    Setting,
    at_random,
    by_priorities,
    follow,
    one_more,
    simpler,
)
from bench.recipes.protocol import About
from lockcore.clock import NS_PER_MS

ENGINE_MAY = {**ANY, "step": ("pause", "kill"), "serve": ("restart", "stop", "flush", "full")}
BLOCK = 50  # schedules that are shared out together
ENOUGH, SHORT = 5, 12  # broken schedules that are made smaller, unless one has so few steps
CROWD = 4  # every so many schedules of lockcore have several callers in each client, and more than one lock


def setting_of(recipe: str, about: About) -> Setting:
    """What `recipe` is explored in: what it must bear by what it claims."""
    if recipe == ENGINE:
        small = Setting(recipe, {place: may for place, may in ENGINE_MAY.items() if place != "skew"}, 2, 3)
        return replace(small, hold_ns=TTL_MS * NS_PER_MS // 25)
    instances = 3 if about.most is None and not about.replicated else about.usual
    may = {**ANY, "serve": ("die",) if about.replicated else ("stop", "flush")}
    return Setting(recipe, may, 3, instances, rounds=2, is_replicated=about.replicated)


def numbered(setting: Setting, number: int, seed: int) -> tuple[Schedule, Played]:
    """Schedule `number` (from 0) of a seed, and what came of it."""
    random = Random(f"{seed} {setting.recipe} {number}")
    told: dict[str, Any] = {"seed": number + seed}
    if setting.recipe == ENGINE:
        told["extends"] = number % 3 == 1
        if number % CROWD == CROWD - 1:
            callers, shared = random.choice(((4, 4), (4, 2), (8, 1), (12, 2)))
            told |= {"callers": callers, "resources": 2 * callers - shared, "rounds": random.choice((1, 2))}
        if number % 5 == 4:
            told["hold_ns"] = TTL_MS * NS_PER_MS
    setting = replace(setting, **told)
    kept: dict[Place, Change] = {}
    if number == 0:
        return Schedule(setting, kept), play(setting, follow(kept))
    if number % 2:
        return Schedule(setting, kept), play(setting, at_random(setting, random, kept))
    usual = play(setting, follow({})) if number % CROWD == CROWD - 1 else _usual(setting)
    return Schedule(setting, kept), play(setting, by_priorities(setting, random, usual.passed, kept))


_USUAL: dict[str, Played] = {}


def _usual(setting: Setting) -> Played:
    if setting.recipe not in _USUAL:
        _USUAL[setting.recipe] = play(setting, follow({}))
    return _USUAL[setting.recipe]


def every(setting: Setting, most: int, first: int = 0, step: int = 1) -> Iterator[tuple[Schedule, Played]]:
    """Every schedule with at most `most` changes, each once; of those with one or more, every `step`-th branch from
    `first` on."""
    whole = Schedule(setting, {})
    played = play(setting, follow({}))
    if first == 0:
        yield whole, played
    if most:
        for number, branch in enumerate(one_more(whole, played.passed)):
            if number % step == first:
                yield from _branch(branch, most - 1)


def _branch(schedule: Schedule, most: int) -> Iterator[tuple[Schedule, Played]]:
    played = play(schedule.setting, follow(schedule.changes))
    yield schedule, played
    if most and not played.broken:
        for longer in one_more(schedule, played.passed):
            yield from _branch(longer, most - 1)


@dataclass(slots=True)
class Hunt:
    """What came of some schedules. `small`: of one caller per client, in `small_s` of processor time; `seen`: how often
    what came about, of lockcore; `best`: the smallest that breaks a rule, its steps, which of them it is made from;
    `usual`: what the usual course passed, if it was among them."""

    played: int = 0
    tested: int = 0
    small: int = 0
    small_s: float = 0.0
    raised: str = ""
    broken: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    best: tuple[Schedule, list[Step], int] | None = None
    usual: Mapping[Place, int] = field(default_factory=dict)


def hunt(schedules: Iterable[tuple[Schedule, Played]]) -> Hunt:
    """Play them until enough of them broke a rule; the smallest that was made of those counts."""
    found, began_s = Hunt(), process_time()
    for number, (schedule, played) in enumerate(schedules):
        found.played, found.tested = found.played + 1, found.tested + played.tested
        found.raised = found.raised or played.raised
        if schedule.setting.recipe == ENGINE:
            played.count_in(found.seen)
        if not schedule.changes:
            found.usual = played.passed
        if played.broken:
            found.broken += 1
            less, steps = smallest(schedule, played)
            if found.best is None or len(steps) < len(found.best[1]):
                found.best = less, steps, number
            if is_enough(found.broken, len(found.best[1])):
                break
        elif schedule.setting.callers == 1:
            found.small, found.small_s = found.small + 1, found.small_s + process_time() - began_s
        began_s = process_time()
    return found


def is_enough(broken: int, steps: int, block: int = 0, first: int = 0) -> bool:
    """Whether to look no further: enough broken ones, or a short one, or far behind the `first` block that had one."""
    return broken >= ENOUGH or steps <= SHORT + 1 or block > 4 * first + 8


def kind_of(rule: str) -> str:
    """Which rule it is, whoever broke it."""
    return " ".join(rule.split()[:3])


def smallest(schedule: Schedule, played: Played) -> tuple[Schedule, list[Step]]:
    """The smallest schedule that breaks the same rule, found greedily, and its steps."""
    rule, steps = kind_of(played.broken), steps_of(played.seen, schedule.setting.instances)
    best, cost = Schedule(schedule.setting, _passed(schedule, played)), _cost(schedule, steps)
    while True:
        for one in simpler(best, played.later_begins()):
            tried = play(one.setting, follow(one.changes))
            if kind_of(tried.broken) != rule:
                continue
            less, tried_steps = Schedule(one.setting, _passed(one, tried)), steps_of(tried.seen, one.setting.instances)
            if (tried_cost := _cost(less, tried_steps)) < cost:
                best, played, steps, cost = less, tried, tried_steps, tried_cost
                break
        else:
            return best, steps


def _passed(schedule: Schedule, played: Played) -> dict[Place, Change]:
    """The changes that came about before it was over."""
    return {place: change for place, change in schedule.changes.items() if place in played.passed}


def _cost(schedule: Schedule, steps: list[Step]) -> tuple[int, int, int, int]:
    setting = schedule.setting
    size = setting.clients * setting.callers * setting.rounds * setting.resources + setting.extends
    held_up_ns = sum(change.for_ns for change in schedule.changes.values())
    return len(steps), len(schedule.changes), size, held_up_ns
