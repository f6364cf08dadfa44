"""What a schedule showed: *figures, the oracle's report → was the flaw seen*. Source: the schedules in this folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.recipes.schedules.stage import Stage
from bench.safety.report import SafetyReport


@dataclass(frozen=True, slots=True)
class Shown:
    """`seen`: whether the flaw that the schedule looks for was there; `figures` by name, their units in the names.

    `preconditions`: without which it was neither seen nor absent, each with whether it came about; `circumstances`:
    without which it cannot be called absent (a flaw that is seen where it is known to be needs nobody else).
    """

    seen: bool
    figures: Mapping[str, float | None]
    report: SafetyReport
    preconditions: Mapping[str, bool] = field(default_factory=dict)
    circumstances: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A course of events. `shown_by`: recipes on which its flaw must be seen; `absent_in`: on which it must not.

    `looks_for`: the flaw, in a few words. `instances`: how many servers the stage needs for a recipe that takes any
    number. `harms`: it kills servers, so its fleet is of no use afterwards.
    """

    name: str
    looks_for: str
    play: Callable[[Stage], Shown]
    shown_by: tuple[str, ...]
    absent_in: tuple[str, ...]
    instances: int = 3
    harms: bool = False


def violated(stage: Stage, **figures: float | None) -> Shown:
    """The flaw is that exclusion is violated."""
    report = stage.report()
    return Shown(report.verdict == "VIOLATED", {"service_faults": report.service_faults, **figures}, report)
