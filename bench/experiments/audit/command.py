"""`lockbench audit`: *options → lock libraries under the same schedules, judged*; unknown names are refused at once."""

from collections.abc import Iterable
from typing import Any

import click

from bench.cli.experiment import carry_out, experiment_options
from bench.cli.options import PLACE, Grouped, Offered

HELD, REPEATS = 3, 10


def _schedules() -> Iterable[str]:
    from bench.experiments.audit.schedules import SCHEDULES

    return SCHEDULES


@click.command(
    cls=Grouped,
    epilog="Libraries are installed below --cache, each in an environment of its own; that takes minutes, once. "
    "Servers are started on loopback and stopped; --quick takes five minutes or more.",
)
@click.option(
    "--library", "libraries", metavar="L", multiple=True, help="only those with this in their name (repeatable)"
)
@click.option(
    "--schedule",
    "schedules",
    metavar="S",
    type=Offered(_schedules),
    multiple=True,
    help="only this one (repeatable); a wrong name lists them",
)
@click.option("--repeats", metavar="R", type=click.IntRange(1, 1000), help=f"of what went wrong  [{REPEATS}; quick 1]")
@click.option("--quick", is_flag=True, help="each schedule once")
@click.option("--cache", default=".peers", type=PLACE, help="where libraries are installed  [.peers]")
@experiment_options("audit")
def audit(**values: Any) -> int:
    """Which lock libraries hold? The same schedules for all, every fault with what happened.

    lockcore is a library like any other, and locks with one planted fault each must be found. Exit code 5: lockcore
    was broken; 4: a planted fault was not found. What others do decides nothing.
    """
    from bench.experiments.audit.experiment import AuditPlan, chosen, known, run_audit
    from bench.experiments.audit.result import AuditConditions

    held, repeats = (1, 1) if values["quick"] else (HELD, REPEATS)
    plays = AuditConditions(quick=values["quick"], held=held, repeats=values["repeats"] or repeats)
    plan = AuditPlan(values["libraries"], values["schedules"], plays, values["cache"].resolve(), values["seed"])
    chosen(plan.schedules)  # wrong names are refused before the work
    known(plan.libraries)
    return carry_out("audit", plan, values, run_audit)
