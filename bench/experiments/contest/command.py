"""`make bench` and `make peers`: *options → contestants measured in turn → tables, a result*.

Rules: progress goes to stderr; stdout holds the tables, or with --json the result.
"""

import time
from pathlib import Path
from typing import Any

import click
import msgspec

from bench.errors import writing
from bench.experiments.contest.experiment import LOADS, PeersPlan, run_peers
from bench.experiments.contest.judge import judge_bars
from bench.experiments.contest.speed import measure
from bench.experiments.contest.words import readme_section, speed_sheet
from bench.frame import main
from bench.frame.experiment import experiment_options, measured
from bench.frame.options import PLACE, FiniteRange
from bench.frame.showing import require_outputs, show
from bench.report.generated import put_between_marks
from bench.report.sheet import print_sheet
from bench.screen import console_on, note

_HELP = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=_HELP)
def contest() -> None:
    """lockcore beside the ceiling, and beside other libraries."""


@contest.command(context_settings=_HELP)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    help="Rounds of all contestants.  [default: 9; 3 with --grow]",
)
@click.option(
    "--seconds",
    type=FiniteRange(0.1, 600),
    help="Load per contestant.  [default: 2; 10 with --grow]",
)
@click.option("--seed", default=1, show_default=True, help="Of the order within the rounds.")
@click.option(
    "--grow",
    is_flag=True,
    help="Is the cost of `lockbench run` flat? (4 minutes a round, and one of 10.)",
)
@click.option(
    "--telemetry",
    is_flag=True,
    help="What does `lockcore.otel` add to a cycle, on each way of waiting?",
)
@click.option("--out", type=PLACE, default=None, help="Where the JSON goes.")
def bench(
    *,
    rounds: int | None,
    seconds: float | None,
    seed: int,
    grow: bool,
    telemetry: bool,
    out: Path | None,
) -> int:
    """Measure how close lockcore comes to what the servers can bear; print the table and write the
    JSON."""
    path = out or Path("results") / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-speed.json"
    rounds = rounds or (3 if grow else 9)
    seconds = seconds or (10.0 if grow else 2.0)
    if telemetry:
        # This import needs OpenTelemetry.
        from bench.experiments.contest.instrumented import measure_telemetry

        result = measure_telemetry(rounds, note)
    else:
        result = measure(rounds, seconds, seed, note, grow=grow)
    with writing(path, "choose another --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    verdict = judge_bars(result.bars, absent="" if result.bars else result.conditions.absent)
    print_sheet(speed_sheet(result, verdict, str(path)), console_on())
    return verdict.exit_code or 0


@contest.command(context_settings=_HELP)
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=click.IntRange(1, 100),
    help="rounds of all contestants",
)
@click.option(
    "--seconds",
    default=1.2,
    show_default=True,
    type=FiniteRange(0.2, 600),
    help="load per turn; on the hot key 2.5 times",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(list(LOADS)),
    help="only this part (repeatable)",
)
@click.option(
    "--only",
    multiple=True,
    metavar="WORD",
    help="only contestants with this in their name (repeatable)",
)
@click.option("--cache", default=".peers", show_default=True, type=PLACE, help="the environments")
@click.option("--readme", type=PLACE, default=None, help="renew the table between its markers")
@experiment_options("peers")
def peers(
    *, only: tuple[str, ...], parts: tuple[str, ...], readme: Path | None, **values: Any
) -> int:
    """Measure other libraries' locks beside lockcore: free resources, one hot key, one instance
    stopped."""
    options = {name: values[name] for name in ("cache", "rounds", "seconds", "seed")}
    plan = PeersPlan(parts=parts or tuple(LOADS), only=only, **options)
    require_outputs(values)
    done = measured("peers", plan, values, run_peers)
    code = show(done, values)
    if readme is not None and not done.result.interrupted:
        if only or parts:
            note(f"{readme} keeps its table: only a part was measured")
        else:
            put_between_marks(readme, "peers", readme_section(done.result))
    return code


if __name__ == "__main__":
    main(group=contest)
