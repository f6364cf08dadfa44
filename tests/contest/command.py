"""`make bench` and `make peers`: *options → contestants one after the other → tables, a JSON file*.

Rules: progress goes to stderr, the tables to stdout. Exit codes: 0 every bar is reached for
certain, 1 one is missed for certain, 4 not known, 2 wrong options, 3 the machine lacks something,
130 Ctrl-C.
"""

import sys
import time
from pathlib import Path

import click
import msgspec

from bench.errors import BenchError, writing
from bench.measure.verdict import Verdict
from bench.report.sheet import Sheet, print_sheet
from bench.screen import console_on, note
from tests.contest.judge import judge_bars
from tests.contest.peers import LOADS, PeersPlan, run_peers
from tests.contest.result import PeersResult, SpeedResult
from tests.contest.speed import measure
from tests.contest.words import peers_sheet, speed_sheet

PLACE = click.Path(path_type=Path)
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
    type=click.FloatRange(0.1, 600),
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
@click.option("--out", type=PLACE, help="Where the JSON goes.")
def bench(
    rounds: int | None,
    seconds: float | None,
    seed: int,
    grow: bool,
    telemetry: bool,
    out: Path | None,
) -> int:
    """How close does lockcore come to what the servers can bear?"""
    place = named(out, "speed")
    rounds = rounds or (3 if grow else 9)
    seconds = seconds or (10.0 if grow else 2.0)
    if telemetry:
        # This import needs OpenTelemetry.
        from tests.contest.instrumented import measure_telemetry

        result = measure_telemetry(rounds, note)
    else:
        result = measure(rounds, seconds, seed, note, grow=grow)
    verdict = judge_bars(result.bars, absent="" if result.bars else result.conditions.absent)
    return ended(result, verdict, speed_sheet(result, verdict, str(place)), place)


@contest.command(context_settings=_HELP)
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Rounds of all contestants.",
)
@click.option(
    "--seconds",
    default=1.2,
    show_default=True,
    type=click.FloatRange(0.2, 600),
    help="Load per round; on the hot key 2.5 times.",
)
@click.option("--seed", default=1, show_default=True, help="Of the order within the rounds.")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(list(LOADS)),
    help="Only this part (repeatable).",
)
@click.option(
    "--only",
    multiple=True,
    metavar="WORD",
    help="Only contestants with this in their name (repeatable).",
)
@click.option("--cache", default=".peers", show_default=True, type=PLACE, help="The environments.")
@click.option("--out", type=PLACE, help="Where the JSON goes.")
def peers(
    rounds: int,
    seconds: float,
    seed: int,
    parts: tuple[str, ...],
    only: tuple[str, ...],
    cache: Path,
    out: Path | None,
) -> int:
    """How fast are other libraries' locks beside lockcore: on free resources, on one hot key, with
    one instance stopped?"""
    place = named(out, "peers")
    result = run_peers(PeersPlan(cache, parts or tuple(LOADS), only, rounds, seconds, seed), note)
    verdict = judge_bars(result.bars, interrupted=result.interrupted)
    return ended(result, verdict, peers_sheet(result, verdict, str(place)), place)


def named(out: Path | None, kind: str) -> Path:
    """The file of the result, `out` if it is named."""
    return out or Path("results") / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{kind}.json"


def ended(result: PeersResult | SpeedResult, verdict: Verdict, sheet: Sheet, place: Path) -> int:
    """Write the JSON, print the tables, and return the exit code."""
    with writing(place, "choose another --out"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    print_sheet(sheet, console_on())
    return verdict.exit_code or 0


def main() -> int:
    """Run the command line of this process and return its exit code."""
    try:
        return int(contest(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BenchError as error:
        note(str(error))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130


if __name__ == "__main__":
    sys.exit(main())
