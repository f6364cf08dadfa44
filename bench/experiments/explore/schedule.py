"""A schedule is what comes differently from the usual course: *places and changes → the next
schedules to play*. Pure.

In the usual course every message takes LATENCY, nobody is paused, nothing breaks. A schedule names
the places where something else happens; all else follows. So few words say all of it, and any part
can be left out to see whether it matters. Places are counted for each client and server alone, so a
change of one hardly moves the places of another.

Three searches: *random*: at each place with a small chance, of some kinds only (swarm); *by
priorities* (PCT): a few pauses at places drawn uniformly, which finds a fault that takes d ordered
steps with a chance of at least 1/(n·kᵈ⁻¹); *exhaustive*: every set of at most so many changes, each
once, by extending a schedule only behind its last change. Sources: S. Burckhardt et al., "A
Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010; A. Groce et al.,
"Swarm Testing", ISSTA 2012; M. Emmi, S. Qadeer, Z. Rakamarić, "Delay-Bounded Scheduling", POPL
2011.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from bench.experiments.explore.result import Size
from lockcore.clock import NS_PER_MS

LATENCY_NS = NS_PER_MS // 5
TTL_MS = 500
# Something is held up for one of these shares of the TTL.
SHARES = (0.001, 0.02, 0.1, 0.5, 0.994, 1.2, 2.2)
EXHAUSTIVE_SHARES = (0.02, 0.994, 1.2)
HELD_UP = ("pause", "late")


class Place(NamedTuple):
    """The `visit`-th time (from 1) that client or server `who` passes `where`: start, step, …"""

    where: str
    who: int
    visit: int


class Change(NamedTuple):
    """What comes differently: `what` it is, and for how long."""

    what: str
    for_ns: int


Choose = Callable[[Place], Change | None]
Changes = Mapping[Place, Change]
# What may come at each place. `lose`: a message is lost with its connection; `cut`: it arrives, but
# the reply is lost.
ANY = {
    "start": ("late",),
    "step": ("pause",),
    "send": ("late", "lose", "cut"),
    "reply": ("late",),
    "skew": ("ahead",),
}


class Setting(Size, frozen=True, kw_only=True):
    """What a schedule is played with: clients of `recipe` on `instances`. `may`: the changes to
    expect, by place. `rate` of the servers' clocks: within what locks must bear. `is_replicated`:
    the instances after the first are its replicas."""

    recipe: str
    may: Mapping[str, tuple[str, ...]]
    instances: int
    callers: int = 1
    resources: int = 1
    rounds: int = 1
    hold_ms: float = 0.3 * TTL_MS
    extends: bool = False
    starts_ms: tuple[float, ...] = ()
    seed: int = 1
    is_replicated: bool = False
    rate: float = 1.009

    @property
    def begins_ms(self) -> tuple[float, ...]:
        """When each client begins: one shortly after the other, unless `starts_ms` says when."""
        return self.starts_ms or tuple(
            client * LATENCY_NS / 4 / NS_PER_MS for client in range(self.clients)
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """A setting and what comes differently in it."""

    setting: Setting
    changes: Changes


def lasting(what: str, share: float) -> Change:
    """A change of that kind, for a share of the TTL."""
    return Change(what, int(share * TTL_MS * NS_PER_MS))


def at_random(setting: Setting, random: Random, changes: dict[Place, Change]) -> Choose:
    """At each place something with a small chance; what was chosen is put into `changes`."""
    chance = random.choice((0.02, 0.05, 0.15))
    draw = random.random
    first = max(chance, 0.1)
    may = setting.may

    def choose(place: Place) -> Change | None:
        drew = draw()
        # This is so nearly always, and then nothing else need be looked at.
        if drew >= first:
            return None
        where, _, visit = place
        if (visit > 1 and drew >= chance) or where not in may:
            return None
        changes[place] = change = lasting(random.choice(may[where]), random.choice(SHARES))
        return change

    return choose


def by_priorities(
    setting: Setting, random: Random, passed: Iterable[Place], changes: dict[Place, Change]
) -> Choose:
    """Pauses at 1 to 4 of the places that the usual course has `passed`, and starts in an order of
    their own."""
    steps = [place for place in passed if place.where == "step"]
    at = set(random.sample(steps, min(random.choice((1, 2, 3, 4)), len(steps))))

    def choose(place: Place) -> Change | None:
        if place in at or (place.where == "start" and random.random() < 0.5):
            changes[place] = change = lasting(setting.may[place.where][0], random.choice(SHARES))
            return change
        return None

    return choose


def one_more(schedule: Schedule, passed: Mapping[Place, int]) -> Iterator[Schedule]:
    """Every schedule with one change more, behind the last one; `passed`: the places in the order
    it passes them."""
    places = list(passed)
    last = max((places.index(place) for place in schedule.changes if place in passed), default=-1)
    for place in places[last + 1 :]:
        for what in schedule.setting.may.get(place.where, ()):
            for share in EXHAUSTIVE_SHARES if what in HELD_UP else EXHAUSTIVE_SHARES[:1]:
                yield Schedule(schedule.setting, {**schedule.changes, place: lasting(what, share)})


def simpler(schedule: Schedule, later: Iterable[Schedule]) -> Iterator[Schedule]:
    """Schedules with less in them: without a change, a client, a round, a caller; with shorter
    times; those of clients that begin `later`."""
    setting = schedule.setting
    changes = schedule.changes
    for place in changes:
        yield Schedule(
            setting, {other: change for other, change in changes.items() if other != place}
        )
    yield from (Schedule(less, changes) for less in _less(setting))
    if late := {
        place.who: change.for_ns / NS_PER_MS
        for place, change in changes.items()
        if place.where == "start"
    }:
        moved = tuple(
            start_ms + late.get(client, 0) for client, start_ms in enumerate(setting.begins_ms)
        )
        left = {place: change for place, change in changes.items() if place.where != "start"}
        yield Schedule(replace(setting, starts_ms=moved), left)
    for gone in range(setting.clients if setting.clients > 1 else 0):
        yield _without(schedule, gone)
    yield from later
    for place, change in changes.items():
        for share in SHARES:
            shorter = lasting(change.what, share)
            if shorter.for_ns < change.for_ns:
                yield Schedule(setting, {**changes, place: shorter})


def _less(setting: Setting) -> Iterator[Setting]:
    """Settings with less in them."""
    for name in ("rounds", "callers", "resources"):
        now = getattr(setting, name)
        for fewer in sorted({1, now - 1} - {0, now}):
            yield replace(setting, **{name: fewer})
    if setting.seed > 1:
        yield replace(setting, seed=1)
    if setting.extends:
        yield replace(setting, extends=False)


def begun_later(
    schedule: Schedule, client: int, begin_ms: float, skipped: Mapping[tuple[str, int], int]
) -> Schedule:
    """The schedule where `client` begins then, and so many visits are not made by (where, who)."""
    begins_ms = schedule.setting.begins_ms
    moved = (*begins_ms[:client], begin_ms, *begins_ms[client + 1 :])
    changes = {
        place._replace(visit=place.visit - skipped.get((place.where, place.who), 0)): change
        for place, change in schedule.changes.items()
    }
    left = {place: change for place, change in changes.items() if place.visit > 0}
    return Schedule(replace(schedule.setting, starts_ms=moved), left)


def _without(schedule: Schedule, gone: int) -> Schedule:
    """The schedule without one client; those behind it move up."""
    moved = {
        (
            place._replace(who=place.who - (place.who > gone)) if place.where != "serve" else place
        ): change
        for place, change in schedule.changes.items()
        if place.where == "serve" or place.who != gone
    }
    setting = schedule.setting
    starts_ms = schedule.setting.begins_ms
    left = starts_ms[:gone] + starts_ms[gone + 1 :]
    return Schedule(replace(setting, clients=setting.clients - 1, starts_ms=left), moved)
