"""`make bench`: *options → the speed table and its JSON*."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from bench.cli.finite_range import FiniteRange
from bench.errors import BenchError
from bench.experiments.contest.ceiling import measure
from bench.experiments.contest.ceiling_words import print_speed


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 100), help="Rounds of all contestants.")
@click.option("--seconds", default=2.0, show_default=True, type=FiniteRange(0.1, 600), help="Load per contestant.")
@click.option("--seed", default=1, show_default=True, help="Of the order within the rounds.")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where the JSON goes.")
def main(rounds: int, seconds: float, seed: int, out: Path | None) -> None:
    """Measure how close lockcore comes to what the servers can bear; print the table and write the JSON."""
    path = out or Path("results") / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-speed.json"
    try:
        result = measure(rounds, seconds, seed, lambda line: click.echo(line, err=True))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except BenchError as error:
        click.echo(f"lockbench: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        click.echo(f"lockbench: {path} cannot be written ({error.strerror}); choose another --out", err=True)
        sys.exit(3)
    print_speed(result, str(path))


if __name__ == "__main__":
    main()
