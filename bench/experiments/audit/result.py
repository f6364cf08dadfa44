"""Defines the result of `lockbench audit`. The result has one cell for each combination of a
library and a schedule. A cell shows the sequence of events."""

from typing import Annotated, Literal

from bench.experiments.judge.library import Library
from bench.experiments.judge.result import JudgedRow
from bench.measure.fleet_facts import OwnFleet
from bench.measure.result import Document
from bench.measure.section import Count, Section, says

# A control's name is this prefix and the planted fault.
CONTROL = "control: "
NO_FAULT = "none"


class AuditedSchedule(Section, frozen=True):
    """One schedule, which is a sequence of events that may break a lock."""

    name: Annotated[str, says("of the schedule")]
    looks_for: Annotated[str, says("the fault")]
    about: Annotated[str, says("its course")]
    source: Annotated[str, says("who says that it matters")]


class MissingLibrary(Section, frozen=True, kw_only=True):
    """A library that could not take part in the audit, and the reason."""

    name: Annotated[str, says("of the library's lock")]
    reason: Annotated[str, says("why not")]


class AuditConditions(Section, frozen=True, kw_only=True):
    """The conditions under which all schedules were played."""

    held: Annotated[
        Count, says("number of plays of each schedule in which the lock never failed")
    ] = 1
    repeats: Annotated[
        Count, says("number of plays of each schedule in which the lock failed at least once")
    ]


class AuditResult(Document, frozen=True, kw_only=True):
    """The result of an audit. An audit plays the same schedules with all lock libraries and with
    all controls. A control is a lock with a planted fault."""

    kind: Annotated[Literal["audit"], says("the command that made it")] = "audit"
    fleet: Annotated[OwnFleet, says("the servers")]
    conditions: Annotated[AuditConditions, says("under which all was played")]
    schedules: Annotated[tuple[AuditedSchedule, ...], says("what was played")]
    libraries: Annotated[
        tuple[Library, ...], says("the audited libraries, with lockcore and the controls")
    ]
    absent: Annotated[
        tuple[MissingLibrary, ...], says("the libraries that could not take part, and why")
    ]
    cells: Annotated[tuple[JudgedRow, ...], says("what came of it")]
