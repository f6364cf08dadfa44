"""Defines schedules, and chooses the next schedules to play. A schedule is a set of changes to the
usual course of events. The functions are pure.

In the usual course every message takes LATENCY_NS, no client pauses and no part breaks. A schedule
lists only the places where the course changes, so a schedule is short. A search can remove any
single change from a schedule, to see whether this change matters. Each client and each server
numbers its own places. So a change at one client rarely shifts the numbers of another client's
places.

There are three searches. The *random* search makes a change at each place with a small probability.
This probability differs between schedules, as in swarm testing. The search *by priorities* (PCT)
pauses clients at a few random places. All places are equally likely. If a fault needs d ordered
steps, this search finds the fault with a probability of at least 1/(n·kᵈ⁻¹). The *exhaustive*
search plays every set of changes, up to a maximum number of changes. The exhaustive search adds a
change only after the last change of a schedule. So the exhaustive search plays each set of changes
only once.

Sources: Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs",
ASPLOS 2010. Groce et al., "Swarm Testing", ISSTA 2012. Emmi, Qadeer and Rakamarić, "Delay-Bounded
Scheduling", POPL 2011.
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
# A delay lasts for one of these shares of the TTL.
SHARES = (0.001, 0.02, 0.1, 0.5, 0.994, 1.2, 2.2)
EXHAUSTIVE_SHARES = (0.02, 0.994, 1.2)
HELD_UP = ("pause", "late")


class Place(NamedTuple):
    """A place at which a schedule may change the course of a client or server.

    `where` is the kind of the place, which is start, step, send, reply, serve or skew. `who` is the
    number of the client or server. `visit` is the number of the visit. Each client or server counts
    its visits to places of one kind from 1.
    """

    where: str
    who: int
    visit: int


class Change(NamedTuple):
    """A change to the usual course of events. `what` is the kind of the change, and `for_ns` is the
    duration of the change.
    """

    what: str
    for_ns: int


Choose = Callable[[Place], Change | None]
Changes = Mapping[Place, Change]
# The changes that may happen at each place. `lose`: a message is lost with its connection. `cut`:
# the message arrives, but its reply is lost.
ANY = {
    "start": ("late",),
    "step": ("pause",),
    "send": ("late", "lose", "cut"),
    "reply": ("late",),
    "skew": ("ahead",),
}


class Setting(Size, frozen=True, kw_only=True):
    """The setting of a schedule. The setting consists of the recipe, the clients, the instances and
    the possible changes.

    `may` lists the possible changes for each kind of place. `rate` is the speed of the servers'
    clocks, which is within the drift that locks must tolerate. `is_replicated` is true if the other
    instances are replicas of the first instance.
    """

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
        """Return the time (ms) at which each client begins.

        If `starts_ms` is empty, each client begins shortly after the client before it.
        """
        return self.starts_ms or tuple(
            client * LATENCY_NS / 4 / NS_PER_MS for client in range(self.clients)
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """A setting, and the changes to the usual course in this setting."""

    setting: Setting
    changes: Changes


def lasting(what: str, share: float) -> Change:
    """Return a change of the kind `what`. The duration of the change is the TTL multiplied by
    `share`."""
    return Change(what, int(share * TTL_MS * NS_PER_MS))


def at_random(setting: Setting, random: Random, changes: dict[Place, Change]) -> Choose:
    """Return a function that chooses a change at a place with a small probability.

    The returned function adds each chosen change to `changes`.
    """
    chance = random.choice((0.02, 0.05, 0.15))
    draw = random.random
    first = max(chance, 0.1)
    may = setting.may

    def choose(place: Place) -> Change | None:
        drew = draw()
        # Nearly every draw ends here. So this test comes first, before the slower tests.
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
    """Return a function that pauses clients at 1 to 4 places, and makes some clients start later.

    `passed` holds the places that were passed in the usual course of events. The returned function
    adds each chosen change to `changes`.
    """
    steps = [place for place in passed if place.where == "step"]
    at = set(random.sample(steps, min(random.choice((1, 2, 3, 4)), len(steps))))

    def choose(place: Place) -> Change | None:
        if place in at or (place.where == "start" and random.random() < 0.5):
            changes[place] = change = lasting(setting.may[place.where][0], random.choice(SHARES))
            return change
        return None

    return choose


def one_more(schedule: Schedule, passed: Mapping[Place, int]) -> Iterator[Schedule]:
    """Yield every schedule that adds one change after the last change of `schedule`.

    `passed` holds the places that clients and servers passed when `schedule` was played. The place
    that was passed first is the first key.
    """
    places = list(passed)
    last = max((places.index(place) for place in schedule.changes if place in passed), default=-1)
    for place in places[last + 1 :]:
        for what in schedule.setting.may.get(place.where, ()):
            for share in EXHAUSTIVE_SHARES if what in HELD_UP else EXHAUSTIVE_SHARES[:1]:
                yield Schedule(schedule.setting, {**schedule.changes, place: lasting(what, share)})


def simpler(schedule: Schedule, later: Iterable[Schedule]) -> Iterator[Schedule]:
    """Yield simpler schedules.

    A schedule is simpler if it has fewer changes or fewer clients, if its setting is simpler, or if
    its times are shorter. The function also yields the schedules in `later`. In each of these
    schedules, one client begins later than it does in `schedule`.
    """
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
    """Yield simpler settings.

    A setting is simpler if it has fewer rounds, callers or resources. It is also simpler if it has
    no extensions, or if its seed is 1.
    """
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
    """Return the schedule in which `client` begins at `begin_ms`.

    If a client begins later, some visits of places are omitted. `skipped` maps (where, who) to the
    number of omitted visits.
    """
    begins_ms = schedule.setting.begins_ms
    moved = (*begins_ms[:client], begin_ms, *begins_ms[client + 1 :])
    changes = {
        place._replace(visit=place.visit - skipped.get((place.where, place.who), 0)): change
        for place, change in schedule.changes.items()
    }
    left = {place: change for place, change in changes.items() if place.visit > 0}
    return Schedule(replace(schedule.setting, starts_ms=moved), left)


def _without(schedule: Schedule, gone: int) -> Schedule:
    """Return a copy of `schedule` without client number `gone`. Each client with a higher number
    gets the next lower number.
    """
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
