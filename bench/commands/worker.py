"""Implements `lockbench worker`: *the leader's address → load for the leader's runs*.

The user gives only the leader's address, and the leader sends all other settings. When the worker
ends, none of its processes is running and none of its locks is held. The leader collects the
worker's history. If the leader fails to collect it, the history stays on this host. If a command
makes several runs, the worker joins again for each run.
"""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path

import click

from bench.errors import EXIT_INTERRUPTED, EnvironmentNotReadyError
from bench.frame.hosts import ADDRESS
from bench.frame.options import BUDGET, Grouped, ending
from bench.hosts.joining import MORE, PORT, Address, await_leader, followed, require_host
from bench.run.interrupt import Interrupts

# How long (s) a worker waits for its leader between two runs of one command.
AGAIN_S = 60.0


@click.command(
    cls=Grouped,
    epilog=ending(
        "lockbench worker --master 10.0.0.9",
        "lockbench worker --master 10.0.0.9:6000 --processes 4",
    ),
)
@click.option(
    "--master",
    metavar="HOST",
    type=ADDRESS,
    required=True,
    help=f"the address of the leading host, as HOST or HOST:PORT  [port {PORT}]",
)
@click.option(
    "--processes",
    metavar="N",
    type=click.IntRange(1, 256),
    default=1,
    help="how many load processes to start on this host  [1]",
)
@click.option(
    "--wait",
    metavar="TIME",
    type=BUDGET,
    default="30s",
    help="how long to wait for a leader that starts later  [30s]",
)
def worker(master: Address, processes: int, wait: float) -> int:
    """Make load on this host for a run, capacity, gate or compare command on another host.

    The other host is the leader. The worker waits for its leader. The worker ends after the last
    run. The worker also ends if the next run does not begin within a minute. The leader sends the
    scenario and the targets with their passwords. After Ctrl-C the worker releases its locks and
    ends. After a second Ctrl-C the worker ends at once, and its locks stay until their TTL ends.
    """
    from bench.topology.servants import Guard
    from bench.workloads.launch import join

    require_host(*master)
    with (
        Interrupts() as interrupts,
        Guard(Path(tempfile.gettempdir()), "lockbench-joined-") as guard,
    ):
        interrupts.raising = False
        signals = lambda: interrupts.count  # noqa: E731 - named once for two calls
        note_file = guard.folder / "note"
        over_s = math.inf
        code = 0
        await_leader(master, wait, signals)
        while not interrupts.count:
            note_file.unlink(missing_ok=True)
            process = join(*master, processes, note_file)
            code = followed(process, signals, note_file, over_s)
            word = note_file.read_text(encoding="utf-8") if note_file.exists() else ""
            if word == MORE:
                over_s = time.monotonic() + AGAIN_S
            if (
                interrupts.count
                or code
                or word not in ("", MORE)
                or (not word and over_s == math.inf)
            ):
                break
            if time.monotonic() > over_s:
                return 0
    if interrupts.count:
        return EXIT_INTERRUPTED
    if code:
        raise EnvironmentNotReadyError(
            "this worker ended before the run ended; the log above gives the reason"
        )
    return 0
