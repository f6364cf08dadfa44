"""Defines the data types of the stored result of `lockbench safety`."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import field

from bench.measure.expectation import RowWord
from bench.measure.fleet_facts import OwnFleet
from bench.measure.result import Document
from bench.measure.section import Section, says

MatrixPart = Literal["schedule", "load", "claim"]
MatrixWord = RowWord | Literal["skipped", "not measured here"]
Figures = Mapping[str, int | float | None]


class Finding(Section, frozen=True):
    """The result of the test of one row."""

    seen: Annotated[str, says("the row's result, in the same words as `expected`", label="result")]
    verdict: Annotated[
        MatrixWord,
        says(
            "verdict of the row; `not shown` means that the expected flaw did not appear; `not "
            "known` means that a precondition failed; `violated` means that the rule was broken"
        ),
    ]
    figures: Annotated[
        Figures,
        says(
            "measured values of the row; the name of a value ends with its unit; a value is "
            "null if its event did not happen"
        ),
    ] = field(default_factory=dict)
    reason: Annotated[
        str | None, says("an explanation of the result, such as the reason for a skipped row")
    ] = None
    preconditions: Annotated[
        Mapping[str, bool],
        says("the preconditions of the row; true means that the precondition was met"),
    ] = field(default_factory=dict)


class SafetyRow(Finding, frozen=True, kw_only=True):
    """One row of the safety matrix."""

    part: Annotated[
        MatrixPart,
        says(
            "kind of the row: schedule (simulated schedules), claim (a claim about "
            "Redlock), or load (a short load, only in older results)"
        ),
    ]
    recipe: Annotated[str, says("the recipe under test")]
    fault: Annotated[str, says("explored, or the claim")]
    expected: Annotated[
        str, says("the expected result: the name of a flaw, `no flaw` or `confirmed`")
    ]
    about: Annotated[str, says("description of the row's test")] = ""


class SafetyPlan(Section, frozen=True):
    """The selection of rows to test."""

    recipes: Annotated[
        tuple[str, ...],
        says("the selected recipes; empty means all recipes, unless claims were selected"),
    ]
    claims: Annotated[
        tuple[str, ...],
        says("the selected claims; empty means all claims, unless recipes were selected"),
    ]
    quick: Annotated[bool, says("run a shorter search with fewer schedules and shorter TTLs")]
    seed: Annotated[int, says("seed of every random choice")] = 1


class SafetyResult(Document, frozen=True, kw_only=True):
    """The results for the recipes and for the claims about Redlock. Each recipe is tested under the
    faults that are known to break the recipe. The value null means that a field is not applicable.
    """

    kind: Annotated[Literal["safety"], says("the command that made it")] = "safety"
    fleet: Annotated[OwnFleet, says("the servers")]
    conditions: Annotated[SafetyPlan, says("what was asked for")]
    rows: Annotated[tuple[SafetyRow, ...], says("the tested rows, in order")]
