"""Implements `lockbench audit`: *options → a judgement of lock libraries under the same schedules*.
The command refuses unknown names at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.frame.experiment import experiment_options, measured
from bench.frame.options import PLACE, Offered
from bench.frame.outputs import Outputs

if TYPE_CHECKING:
    from bench.experiments.audit.result import AuditResult
    from bench.run.experiment import Done

HELD = 3
REPEATS = 10


def _schedules() -> Iterable[str]:
    from bench.experiments.judge.schedules import SCHEDULES

    return SCHEDULES


@click.option(
    "--library",
    "libraries",
    metavar="L",
    multiple=True,
    help="audit only libraries with L in the name (repeatable)",
)
@click.option(
    *("--schedule", "schedules"),
    metavar="S",
    type=Offered(_schedules),
    multiple=True,
    help="play only this schedule (repeatable); an unknown name lists all schedules",
)
@click.option(
    "--drivers",
    metavar="FOLDER",
    type=PLACE,
    help="add the libraries of FOLDER/libraries.toml, with the drivers in FOLDER",
)
@click.option("--quick", is_flag=True, help="play each schedule once")
@experiment_options("audit")
def audit(
    outputs: Outputs,
    *,
    libraries: tuple[str, ...],
    schedules: tuple[str, ...],
    drivers: Path | None,
    quick: bool,
    seed: int,
    server: str | None,
) -> Done[AuditResult]:
    """Judge lock libraries by the same schedules, and show the sequence of events of every fault.

    The command judges lockcore like any other library. As a control, it also judges locks with a
    planted fault and must find each of these faults. Exit code 5 means that a schedule broke
    lockcore. Exit code 4 means that the audit did not find a planted fault. Faults of libraries
    other than lockcore do not change the exit code.
    """
    from bench.experiments.audit.experiment import AuditPlan, chosen, known, run_audit
    from bench.experiments.audit.libraries import read_libraries
    from bench.experiments.audit.result import AuditConditions

    plays = (
        AuditConditions(held=1, repeats=1) if quick else AuditConditions(held=HELD, repeats=REPEATS)
    )
    entries = read_libraries()
    if drivers is not None:
        entries += read_libraries(drivers.resolve())
    plan = AuditPlan(known(entries, libraries), chosen(schedules), plays, seed)
    return measured("audit", plan, outputs, run_audit, server=server)
