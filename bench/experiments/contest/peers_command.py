"""`make peers`: *options → other libraries' locks beside lockcore, measured in turn*.

Rules: progress goes to stderr; stdout holds the tables, or with --json the result. Source: README, "Beside other
libraries".
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

import click

from bench.cli.finite_range import FiniteRange
from bench.cli.folder import result_folder
from bench.cli.outputs import Outputs, output_options
from bench.cli.part_line import PartLine
from bench.cli.showing import show
from bench.errors import BenchError
from bench.experiments.contest.peers import PARTS, PeersOrder, run_peers
from bench.experiments.contest.words import write_readme
from bench.run.verdict import INTERRUPTED, Done


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100), help="rounds of all contestants")
@click.option("--seconds", default=1.5, show_default=True, type=FiniteRange(0.2, 600), help="load per turn")
@click.option("--hot-seconds", default=4.0, show_default=True, type=FiniteRange(0.5, 600), help="on the hot key")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="only this part (repeatable)")
@click.option("--only", multiple=True, metavar="WORD", help="only contestants with this in their name (repeatable)")
@click.option("--cache", default=".peers", show_default=True, type=click.Path(path_type=Path), help="the environments")
@click.option("--server", metavar="PATH", help="the server program to start")
@click.option("--seed", default=1, show_default=True, help="of the order within the rounds")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="result folder  [results/<time>-peers-<id>]")
@click.option("--readme", type=click.Path(path_type=Path), default=None, help="renew the table between its markers")
@output_options
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON on stdout, nothing else")
@click.option("--quiet", is_flag=True, help="no progress and no tables")
def main(**values: Any) -> None:
    """Measure other libraries' locks beside lockcore: free resources, one hot key, one instance stopped."""
    try:
        files = Outputs.of(values)
        files.require_writable()
        done = _measured(values)
        code = show(done, files, values)
        if values["readme"] is not None and not code:
            _renew(values["readme"], done, whole=not (values["only"] or values["parts"]))
    except BenchError as error:
        click.echo(f"lockbench: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        click.echo("lockbench: interrupted", err=True)
        sys.exit(INTERRUPTED)
    sys.exit(code)


def _measured(values: dict[str, Any]) -> Done:
    run_id = secrets.token_hex(4)
    folder = result_folder(values["out"], "peers", run_id)
    order = PeersOrder(
        run_id=run_id,
        command=["peers", *sys.argv[1:]],
        folder=folder.path,
        cache=values["cache"].resolve(),
        parts=values["parts"] or PARTS,
        only=values["only"],
        rounds=values["rounds"],
        seconds=values["seconds"],
        hot_seconds=values["hot_seconds"],
        seed=values["seed"],
        server=values["server"],
    )
    line = PartLine(quiet=values["quiet"])
    try:
        return run_peers(order, line)
    finally:
        line.clear()
        folder.remove_if_empty()


def _renew(readme: Path, done: Done, *, whole: bool) -> None:
    """Renew the table, but never by a part of it."""
    if whole:
        write_readme(readme, done.result)
    else:
        click.echo(f"{readme} keeps its table: only a part was measured", err=True)


if __name__ == "__main__":
    main()
