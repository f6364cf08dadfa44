"""The stored result of `lockbench explore`: *recipes, counts of schedules, the smallest schedule
that broke each recipe → a typed result*."""

from collections.abc import Mapping
from typing import Annotated, Literal

from bench.measure.expectation import NOT_KNOWN, RowWord
from bench.measure.result import Document
from bench.measure.section import Amount, Count, Section, says


class Step(Section, frozen=True):
    """One step of a schedule."""

    ms: Annotated[float, says("when, since the start")]
    who: Annotated[int, says("number of the client, from 0; -1 for a server")]
    text: Annotated[str, says("what happened")]


class Deviation(Section, frozen=True):
    """One change from the usual course of a schedule."""

    where: Annotated[str, says("start, step, send, reply, serve or skew")]
    who: Annotated[
        Count, says("number of the client, or of the server if `where` is serve; from 0")
    ]
    visit: Annotated[Count, says("how often this place had been reached, from 1")]
    what: Annotated[
        str, says("pause, late, lose, cut, kill, ahead, restart, stop, flush, forget, full or die")
    ]
    for_ms: Annotated[Amount, says("for how long")]


class Replayed(Section, frozen=True, kw_only=True):
    """The replay of a schedule on real servers, in real time."""

    server: Annotated[str, says("name and version of the server; empty if there was none")] = ""
    plays: Annotated[Count, says("how often it was played")] = 0
    same: Annotated[Count, says("how often the schedule broke the same rule again")] = 0
    reason: Annotated[str, says("why it was not played")] = ""


class Size(Section, frozen=True, kw_only=True):
    """The clients of a schedule, their requests and their times."""

    clients: Annotated[Count, says("clients in it")]
    callers: Annotated[Count, says("callers in each client")]
    resources: Annotated[Count, says("locks they want")]
    rounds: Annotated[Count, says("times each caller locks")]
    hold_ms: Annotated[Amount, says("how long each lock is held")]
    extends: Annotated[bool, says("the first client extends its lease")]
    starts_ms: Annotated[tuple[float, ...], says("when each client begins")]
    seed: Annotated[Count, says("of the retries")]


class Broken(Size, frozen=True, kw_only=True):
    """The smallest known schedule that breaks a rule. These fields suffice to play the schedule
    again.
    """

    rule: Annotated[str, says("which rule, and by whom")]
    number: Annotated[Count, says("number of the original schedule")]
    changes: Annotated[tuple[Deviation, ...], says("what comes differently")]
    steps: Annotated[tuple[Step, ...], says("the events in order; the broken rule is last")]
    replayed: Annotated[
        Replayed | None, says("the result on real servers; null if it was not tried there")
    ] = None


class ExploredRow(Section, frozen=True, kw_only=True):
    """The exploration of one recipe."""

    recipe: Annotated[str, says("the lock", shown="table")]
    safe: Annotated[bool, says("true if no schedule may break the recipe")]
    clients: Annotated[Count, says("clients, at most")]
    instances: Annotated[Count, says("simulated servers")]
    may: Annotated[
        Mapping[str, tuple[str, ...]], says("the deviations that were allowed, by place")
    ]
    schedules: Annotated[Count, says("played", label="played", shown="table")]
    tested: Annotated[
        Count,
        says("schedules in which a client sent a command while another held a lock", shown="table"),
    ]
    took_s: Annotated[Amount, says("processor time of all processes together")]
    whole: Annotated[bool, says("true if every schedule within the bound was played")] = False
    broken: Annotated[
        Broken | None, says("the schedule that broke the recipe; null if none did")
    ] = None
    verdict: Annotated[RowWord, says("as of lockbench safety", shown="table")]
    reason: Annotated[str | None, says("why it is not known")] = None

    @property
    def outcome(self) -> Annotated[str, says("whether it held", shown="table")]:
        """One word that says whether the recipe held."""
        if self.broken:
            return "broken"
        if self.verdict == NOT_KNOWN:
            return NOT_KNOWN
        return "held, all of them" if self.whole else "held"

    @property
    def schedules_per_s(
        self,
    ) -> Annotated[
        float | None, says("by processor time; null if unknown", label="schedules", shown="table")
    ]:
        """How many schedules one core played per second."""
        return self.schedules / self.took_s if self.took_s else None

    @property
    def size(self) -> Annotated[str, says("clients × simulated servers", shown="table")]:
        """How many clients and servers there are."""
        return f"{self.clients} × {self.instances}"

    @property
    def steps(
        self,
    ) -> Annotated[
        int | None, says("steps of the smallest schedule that breaks the recipe", shown="table")
    ]:
        """How many steps break the recipe. The last entry of a schedule's steps is the broken rule,
        so it does not count.
        """
        return len(self.broken.steps) - 1 if self.broken else None


class ExplorePlan(Section, frozen=True):
    """The recipes to explore, and the limits of the search."""

    recipes: Annotated[tuple[str, ...], says("only these recipes; empty: all")]
    budget_s: Annotated[Amount | None, says("for each recipe; null means no time limit")]
    schedules: Annotated[
        Count | None, says("for each recipe; null means as many as the budget allows")
    ]
    exhaustive: Annotated[
        Count | None, says("every schedule with at most this many changes; null: random schedules")
    ]
    processes: Annotated[Count, says("that search at once")]
    seed: Annotated[int, says("of every schedule")] = 1


class ExploreResult(Document, frozen=True, kw_only=True):
    """Simulated schedules of locks, and the smallest schedule that breaks each lock.

    null means not applicable.
    """

    kind: Annotated[Literal["explore"], says("the command that made it")] = "explore"
    conditions: Annotated[ExplorePlan, says("what was asked for")]
    rows: Annotated[tuple[ExploredRow, ...], says("the recipes, in order")]
