"""What is known of a recipe before it runs: *a class attribute → its line in `lockbench recipes`, its limits*.

Rules: every recipe carries one, beside its code. `safe` speaks of exclusion alone: a lock that is merely slow, unfair
or blocked for a while is safe. Source: the table in the README of this folder.
"""

from __future__ import annotations

from dataclasses import dataclass

COMMON_POINTS = ("after-grant", "before-release")  # every recipe has them: holder stalled at work, release held up


@dataclass(frozen=True, slots=True)
class About:
    """`how` it locks; `flaw`: the one fault it is known for, or "none" and within what; `safe`: never two valid leases.

    `shown_by`: what makes the flaw appear. `least` … `most` instances (None: any number), `usual` when nothing is said.
    `points`: its own pause points, in the order they are passed. `replicated`: the instances after the first must be
    replicas of the first.
    """

    how: str
    flaw: str
    safe: bool
    shown_by: tuple[str, ...] = ()
    least: int = 1
    most: int | None = 1
    usual: int = 1
    points: tuple[str, ...] = ()
    replicated: bool = False

    @property
    def all_points(self) -> tuple[str, ...]:
        """Its own pause points and those of every recipe."""
        return (*self.points, *COMMON_POINTS)

    @property
    def instances(self) -> str:
        """How many instances it locks on, in words: `1`, `2 or more`, `any number`."""
        if self.most == self.least:
            return str(self.least)
        if self.most is None:
            return "any number" if self.least == 1 else f"{self.least} or more"
        return f"{self.least} to {self.most}"
