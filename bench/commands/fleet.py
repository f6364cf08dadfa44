"""Implements `lockbench fleet`: *options → running servers without a load, until Ctrl-C*.

The command prints one URL per line to stdout. With --json it prints one JSON object instead. The
command flushes stdout at once, so that a script can read the URLs. Messages about the servers
appear on stderr.
"""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from bench.errors import EXIT_INTERRUPTED
from bench.frame.options import Grouped, ending, server_option
from bench.screen import note, say, say_json

_LOOK_S = 0.1


@click.command(cls=Grouped, epilog=ending("lockbench fleet --instances 3 --fsync always"))
@click.option(
    "--instances", metavar="N", type=click.IntRange(1, 64), default=5, help="how many servers  [5]"
)
@click.option(
    "--fsync",
    type=click.Choice(["none", "no", "everysec", "always"]),
    default="everysec",
    help="AOF policy of the servers; the policy none switches the AOF off  [everysec]",
)
@server_option
@click.option(
    "--json", "as_json", is_flag=True, help="print one JSON object instead of one URL per line"
)
@click.option("--quiet", is_flag=True, help="print the URLs only")
def fleet(*, instances: int, fsync: str, server: str | None, as_json: bool, quiet: bool) -> int:
    """Start servers, print one URL per line, and stop the servers after Ctrl-C."""
    from bench.run.interrupt import Interrupts
    from bench.topology.fleet import start_fleet
    from bench.topology.server import find_server

    with (
        start_fleet(instances, fsync, server=find_server(server)) as started,
        Interrupts() as interrupts,
    ):
        interrupts.raising = False
        alive = {instance.index: instance for instance in started.instances}
        urls = [instance.url for instance in started.instances]
        facts = {
            "urls": urls,
            "fsync": fsync,
            "server": asdict(started.server),
            "folder": str(started.folder),
        }
        if as_json:
            say_json(facts)
        else:
            say(*urls)
        if not quiet:
            what = f"{len(urls)} × {started.server}, fsync {fsync}, in {started.folder}"
            note(f"lockbench: {what}; Ctrl-C stops them")
        while not interrupts.count:
            for index, exit_code in enumerate(started.exit_codes()):
                if exit_code is not None and (ended := alive.pop(index, None)):
                    message = f"instance {index} ({ended.url}) ended with exit code {exit_code}"
                    note(f"lockbench: {message}")
            time.sleep(_LOOK_S)
    return EXIT_INTERRUPTED
