"""What `lockbench audit` stores: *a cell per library and schedule, each with what happened → a
typed result*."""

from typing import Annotated, Literal

from bench.experiments.judge.library import Library
from bench.experiments.judge.result import AuditedSchedule, CourseStep
from bench.measure.result import Document
from bench.measure.run_result import OwnFleet
from bench.measure.section import Count, Section, says

CellWord = Literal["holds", "does not", "not applicable", "not known"]
# A control's name is this prefix and the planted fault.
CONTROL = "control: "
NO_FAULT = "none"


class Cell(Section, frozen=True, kw_only=True):
    """One library under one schedule."""

    library: Annotated[str, says("as in libraries")]
    schedule: Annotated[str, says("as in schedules")]
    verdict: Annotated[
        CellWord,
        says("does not: seen at least once; not known: what it rests on did not come about"),
    ]
    happened: Annotated[str, says("what went wrong; why it is not applicable or not known")] = ""
    seen: Annotated[Count, says("how often it went wrong")] = 0
    of: Annotated[Count, says("how often it was played")] = 0
    promise: Annotated[
        str, says("what its documentation says to that, and where, if it does not hold")
    ] = ""
    course: Annotated[
        tuple[CourseStep, ...], says("one play, step by step, if it does not hold or is not known")
    ] = ()


class MissingLibrary(Section, frozen=True, kw_only=True):
    """A library that could not take part."""

    name: Annotated[str, says("of the library's lock")]
    reason: Annotated[str, says("why not")]


class AuditConditions(Section, frozen=True, kw_only=True):
    """Under which all was played."""

    held: Annotated[Count, says("plays of a schedule that held each time")] = 1
    repeats: Annotated[Count, says("of a schedule that went wrong")]


class AuditResult(Document, frozen=True, kw_only=True):
    """Lock libraries under schedules that are the same for all, and controls with one planted fault
    each."""

    kind: Annotated[Literal["audit"], says("the command that made it")] = "audit"
    fleet: Annotated[OwnFleet, says("the servers")]
    conditions: Annotated[AuditConditions, says("under which all was played")]
    schedules: Annotated[tuple[AuditedSchedule, ...], says("what was played")]
    libraries: Annotated[
        tuple[Library, ...], says("who was there, lockcore and the controls included")
    ]
    absent: Annotated[tuple[MissingLibrary, ...], says("who could not be had, and why")]
    cells: Annotated[tuple[Cell, ...], says("what came of it")]
