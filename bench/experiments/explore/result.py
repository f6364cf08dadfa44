"""Defines the data types of the stored result of `lockbench explore`."""

from collections.abc import Mapping
from typing import Annotated, Literal

from bench.measure.expectation import NOT_KNOWN, RowWord
from bench.measure.result import Document
from bench.measure.section import Amount, Count, Section, says


class Step(Section, frozen=True):
    """One step of a schedule."""

    ms: Annotated[float, says("when, since the start")]
    who: Annotated[int, says("number of the client, counted from 0; -1 means a server")]
    text: Annotated[str, says("what happened")]


class Deviation(Section, frozen=True):
    """One deviation of a schedule from the usual course of events."""

    where: Annotated[
        str, says("place at which the schedule deviates: start, step, send, reply, serve or skew")
    ]
    who: Annotated[
        Count,
        says("number of the client, counted from 0; if `where` is serve, the number of the server"),
    ]
    visit: Annotated[Count, says("number of the visit to this place, counted from 1")]
    what: Annotated[
        str,
        says(
            "kind of the deviation: pause, late, lose, cut, kill, ahead, restart, stop, flush, "
            "forget, full or die"
        ),
    ]
    for_ms: Annotated[Amount, says("for how long")]


class Replayed(Section, frozen=True, kw_only=True):
    """The replay of a schedule on real servers, in real time."""

    server: Annotated[str, says("name and version of the server; empty if there was no server")] = (
        ""
    )
    plays: Annotated[Count, says("how often it was played")] = 0
    same: Annotated[
        Count, says("number of plays on real servers in which the schedule broke the same rule")
    ] = 0
    reason: Annotated[str, says("why it was not played")] = ""


class Size(Section, frozen=True, kw_only=True):
    """The size of a schedule. The fields describe the clients, their requests and the times of
    these requests.
    """

    clients: Annotated[Count, says("clients in it")]
    callers: Annotated[Count, says("callers in each client")]
    resources: Annotated[Count, says("locks they want")]
    rounds: Annotated[Count, says("times each caller locks")]
    hold_ms: Annotated[Amount, says("time for which each caller holds a lock")]
    extends: Annotated[bool, says("true if the first client extends its lease")]
    starts_ms: Annotated[tuple[float, ...], says("when each client begins")]
    seed: Annotated[Count, says("of the retries")]


class Broken(Size, frozen=True, kw_only=True):
    """The smallest known schedule that breaks a rule.

    The fields contain everything that a replay of the schedule needs.
    """

    rule: Annotated[str, says("which rule, and by whom")]
    number: Annotated[Count, says("number of the original schedule")]
    changes: Annotated[tuple[Deviation, ...], says("what comes differently")]
    steps: Annotated[
        tuple[Step, ...], says("the events in order; the last entry names the broken rule")
    ]
    replayed: Annotated[
        Replayed | None,
        says("result of the schedule on real servers; null if the schedule was not played there"),
    ] = None


class ExploredRow(Section, frozen=True, kw_only=True):
    """The exploration of one recipe."""

    recipe: Annotated[str, says("the lock", shown="table")]
    safe: Annotated[bool, says("true if no schedule may break the recipe")]
    clients: Annotated[Count, says("clients, at most")]
    instances: Annotated[Count, says("simulated servers")]
    may: Annotated[
        Mapping[str, tuple[str, ...]],
        says("kinds of deviation that the search could use, listed for each place"),
    ]
    schedules: Annotated[Count, says("played", label="played", shown="table")]
    tested: Annotated[
        Count,
        says(
            "schedules in which a client sent a command while another client held a lock",
            shown="table",
        ),
    ]
    took_s: Annotated[Amount, says("processor time of all search processes, in seconds")]
    whole: Annotated[bool, says("true if every schedule within the bound was played")] = False
    broken: Annotated[
        Broken | None,
        says("the smallest schedule that broke the recipe; null if no schedule broke it"),
    ] = None
    verdict: Annotated[RowWord, says("as of lockbench safety", shown="table")]
    reason: Annotated[str | None, says("why it is not known")] = None

    @property
    def outcome(self) -> Annotated[str, says("whether it held", shown="table")]:
        """Return a short text that says whether a schedule broke the recipe."""
        if self.broken:
            return "broken"
        if self.verdict == NOT_KNOWN:
            return NOT_KNOWN
        return "held, all of them" if self.whole else "held"

    @property
    def schedules_per_s(
        self,
    ) -> Annotated[
        float | None,
        says(
            "schedules per second of processor time; null if unknown",
            label="schedules",
            shown="table",
        ),
    ]:
        """Return the number of schedules that one core played per second, or None if this is
        unknown.
        """
        return self.schedules / self.took_s if self.took_s else None

    @property
    def size(self) -> Annotated[str, says("clients × simulated servers", shown="table")]:
        """Return a text with the number of clients and the number of simulated servers."""
        return f"{self.clients} × {self.instances}"

    @property
    def steps(
        self,
    ) -> Annotated[
        int | None, says("steps of the smallest schedule that breaks the recipe", shown="table")
    ]:
        """Return the number of steps in the smallest schedule that breaks the recipe, or None.

        The last entry in the list of steps only names the broken rule, so this entry does not
        count.
        """
        return len(self.broken.steps) - 1 if self.broken else None


class ExplorePlan(Section, frozen=True):
    """The recipes to explore, and the limits of the search."""

    recipes: Annotated[tuple[str, ...], says("only these recipes; empty: all")]
    budget_s: Annotated[
        Amount | None, says("search time for each recipe; null means no time limit")
    ]
    schedules: Annotated[
        Count | None,
        says("number of schedules for each recipe; null means as many as the time budget allows"),
    ]
    exhaustive: Annotated[
        Count | None,
        says(
            "largest number of changes per schedule in a search that plays every schedule; "
            "null if the search plays random schedules"
        ),
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
