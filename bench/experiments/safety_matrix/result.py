"""The stored result of `lockbench safety`: *rows of the matrix, each with its preconditions → a
typed result*."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import field

from bench.measure.expectation import RowWord
from bench.measure.result import Document
from bench.measure.run_result import OwnFleet
from bench.measure.section import Section, says

MatrixPart = Literal["schedule", "load", "claim"]
MatrixWord = RowWord | Literal["skipped", "not measured here"]
Figures = Mapping[str, int | float | None]


class Finding(Section, frozen=True):
    """The finding of one row."""

    seen: Annotated[str, says("the result, in the same words as `expected`")]
    verdict: Annotated[
        MatrixWord,
        says(
            "not shown: the expected flaw did not appear; not known: a precondition failed; "
            "violated: the rule was broken"
        ),
    ]
    figures: Annotated[
        Figures, says("figures by name, with the unit in the name; null if it never happened")
    ] = field(default_factory=dict)
    reason: Annotated[
        str | None, says("further facts, such as why the row was skipped or what failed")
    ] = None
    preconditions: Annotated[
        Mapping[str, bool], says("the preconditions of the row; true if one was met")
    ] = field(default_factory=dict)


class SafetyRow(Finding, frozen=True, kw_only=True):
    """One row of the matrix."""

    part: Annotated[
        MatrixPart,
        says("simulated schedules, or a claim about Redlock; older results have short loads, too"),
    ]
    recipe: Annotated[str, says("the recipe under test")]
    fault: Annotated[str, says("explored, or the claim")]
    expected: Annotated[str, says("the flaw, no flaw or confirmed")]
    about: Annotated[str, says("what the row tests, in words")] = ""


class SafetyPlan(Section, frozen=True):
    """The selection of rows to test."""

    recipes: Annotated[
        tuple[str, ...], says("only these recipes; empty means all, unless claims were named")
    ]
    claims: Annotated[
        tuple[str, ...], says("only these claims; empty means all, unless recipes were named")
    ]
    quick: Annotated[bool, says("a shorter search with fewer schedules and short TTLs")]
    seed: Annotated[int, says("seed of every random choice")] = 1


class SafetyResult(Document, frozen=True, kw_only=True):
    """Each recipe under the faults that are known to break it, and the claims about Redlock. null:
    not applicable."""

    kind: Annotated[Literal["safety"], says("the command that made it")] = "safety"
    fleet: Annotated[OwnFleet, says("the servers")]
    conditions: Annotated[SafetyPlan, says("what was asked for")]
    rows: Annotated[tuple[SafetyRow, ...], says("the tested rows, in order")]
