"""A schedule is a set of changes from the usual course: *places and changes → the next schedules to
play*. Pure.

In the usual course every message takes LATENCY_NS, no client pauses and no part breaks. A schedule
lists the places where the course changes, and the rest follows from this list. So a schedule is
short. A search can leave out any part of a schedule to see whether this part matters. Each client
and each server counts its own places. So a change at one client hardly moves the places of another
client.

There are three searches. The *random* search makes a change at each place with a small probability,
and uses only some kinds of changes (swarm). The search *by priorities* (PCT) makes a few pauses at
places that are drawn uniformly. If a fault needs d ordered steps, this search finds the fault with
a probability of at least 1/(n·kᵈ⁻¹). The *exhaustive* search plays every set of changes up to a
limit. The search adds a change only after the last change of a schedule. So it plays each set once.

Sources: S. Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding
Bugs", ASPLOS 2010; A. Groce et al., "Swarm Testing", ISSTA 2012; M. Emmi, S. Qadeer, Z. Rakamarić,
"Delay-Bounded Scheduling", POPL 2011.
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
    """The `visit`-th time (from 1) at which the client or server `who` passes a point.

    `where`: the kind of the point: start, step, send, reply, serve or skew.
    """

    where: str
    who: int
    visit: int


class Change(NamedTuple):
    """A deviation from the usual course. `what`: its kind. `for_ns`: its duration."""

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
    """The setting of a schedule: clients of `recipe` on `instances`.

    `may`: the possible changes, by place. `rate`: the speed of the servers' clocks, within the
    drift that locks must tolerate. `is_replicated`: whether the other instances are replicas of the
    first instance.
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
        """When each client begins.

        If `starts_ms` is empty, each client begins shortly after the client before it.
        """
        return self.starts_ms or tuple(
            client * LATENCY_NS / 4 / NS_PER_MS for client in range(self.clients)
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """A setting, and the changes from its usual course."""

    setting: Setting
    changes: Changes


def lasting(what: str, share: float) -> Change:
    """Return a change of the kind `what` that lasts for a share of the TTL."""
    return Change(what, int(share * TTL_MS * NS_PER_MS))


def at_random(setting: Setting, random: Random, changes: dict[Place, Change]) -> Choose:
    """Return a function that sometimes, with a small probability, chooses a change at a place.

    The function adds the chosen changes to `changes`.
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
    """Return a function that chooses pauses at 1 to 4 places, and makes some clients start later.

    `passed`: the places of the usual course. The function adds the chosen changes to `changes`.
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
    """Yield every schedule with one more change. The new change comes after the last change.

    `passed`: the places in the order in which the schedule passes them.
    """
    places = list(passed)
    last = max((places.index(place) for place in schedule.changes if place in passed), default=-1)
    for place in places[last + 1 :]:
        for what in schedule.setting.may.get(place.where, ()):
            for share in EXHAUSTIVE_SHARES if what in HELD_UP else EXHAUSTIVE_SHARES[:1]:
                yield Schedule(schedule.setting, {**schedule.changes, place: lasting(what, share)})


def simpler(schedule: Schedule, later: Iterable[Schedule]) -> Iterator[Schedule]:
    """Yield simpler schedules.

    A simpler schedule lacks one change, client, round or caller, or it has shorter times. `later`:
    schedules in which a client begins later.
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

    A simpler setting has fewer rounds, callers or resources, no extensions, or the first seed.
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

    `skipped`: the number of omitted visits, by (where, who).
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
    """Return the schedule without one client. The numbers of the later clients decrease by one."""
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
