"""`lockbench fleet`: *how many, how durable → URLs on stdout until Ctrl-C*.

Rules: stdout holds one URL per line (or one JSON object) and nothing else, flushed at once, so that a script can read
them; what happens to the servers is told on stderr, a death once. Source: bench.topology; bench.run.interrupt.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bench.cli.options import server_option
from bench.errors import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from bench.topology.fleet import Fleet

_LOOK_S = 0.5


@click.command()
@click.option("--instances", metavar="N", type=click.IntRange(1, 64), default=5, help="how many servers  [5]")
@click.option(
    "--fsync",
    type=click.Choice(["none", "no", "everysec", "always"]),
    default="everysec",
    help="AOF policy; none = no AOF  [everysec]",
)
@click.option("--port", metavar="N", type=click.IntRange(1, 65_535), help="first of consecutive ports  [free ones]")
@server_option
@click.option("--json", "as_json", is_flag=True, help="print one JSON object instead of the lines")
@click.option("--quiet", is_flag=True, help="print the URLs only")
def fleet(*, instances: int, fsync: str, port: int | None, server: str | None, as_json: bool, quiet: bool) -> int:
    """Start servers, print one URL per line, stop them on Ctrl-C."""
    from bench.topology.fleet import start_fleet
    from bench.topology.server import find_server

    with start_fleet(instances, fsync, server=find_server(server), port=port) as started:

        def tell() -> None:
            urls = [instance.url for instance in started.instances]
            facts = {"urls": urls, "fsync": fsync, "server": asdict(started.server), "folder": str(started.folder)}
            print(json.dumps(facts) if as_json else "\n".join(urls), flush=True)
            if not quiet:
                what = f"{len(urls)} × {started.server}, fsync {fsync}, in {started.folder}"
                print(f"lockbench: {what}; Ctrl-C stops them", file=sys.stderr)

        serve(started, tell)
    return EXIT_INTERRUPTED


def serve(fleet: Fleet, on_ready: Callable[[], None]) -> None:
    """Return once somebody wishes to end; the fleet is still running then, for its owner to close.

    `on_ready()` is called when no wish can get lost any more: whoever reads what it says may send a signal at once.
    An instance that ends meanwhile is told of on stderr. Raises EnvironmentNotReadyError when the guard is gone.
    """
    from bench.run.interrupt import Interrupts

    dead: set[int] = set()
    with Interrupts() as interrupts:
        interrupts.raising = False
        on_ready()
        while not interrupts.count:
            for instance, exit_code in zip(fleet.instances, fleet.exit_codes(), strict=True):
                if exit_code is not None and instance.index not in dead:
                    dead.add(instance.index)
                    said = f"instance {instance.index} ({instance.url}) ended with exit code {exit_code}"
                    print(f"lockbench: {said}", file=sys.stderr)
            with suppress(KeyboardInterrupt):
                interrupts.raising = True  # only sleep may be torn: the guard is asked whole questions
                time.sleep(_LOOK_S)
            interrupts.raising = False
