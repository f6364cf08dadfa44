"""Several hosts: *the options of who leads; `lockbench worker`, which works for it*.

Rules: a worker is told everything but where its leader is; it leaves no process, no lock, and a
history only where its leader has not taken it. For each run of a command that makes several it
joins anew.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.errors import EXIT_INTERRUPTED, EnvironmentNotReadyError, UsageError
from bench.frame.options import BUDGET, Grouped, Read, Values, together
from bench.hosts.joining import MORE, PORT, Address, address, await_leader, followed, require_host
from bench.run.interrupt import Interrupts
from bench.screen import note
from bench.topology.servants import Guard

if TYPE_CHECKING:
    from bench.scenario import Scenario

# A worker waits so long for its leader between two runs of one command.
AGAIN_S = 60.0
ADDRESS = Read("address", address)


hosts_options = together(
    click.option(
        "--expect-workers",
        metavar="N",
        type=click.IntRange(1, 1000),
        help="load comes from so many processes of `lockbench worker` on other hosts",
    ),
    click.option(
        "--bind",
        metavar="ADDRESS",
        type=ADDRESS,
        help="where they find this host: one of its addresses, HOST or HOST:PORT  [all, port "
        f"{PORT}]",
    ),
)


def led(scenarios: Sequence[Scenario], values: Values) -> tuple[list[Scenario], Address | None]:
    """The scenarios with as many processes as workers are expected, and where they are. Raises
    UsageError."""
    expected = values.get("expect_workers")
    bind = values.get("bind")
    if expected is None:
        if bind is not None:
            raise UsageError(
                "option --bind is where other hosts join; say how many processes with "
                "--expect-workers"
            )
        return list(scenarios), None
    if any(scenario.processes > 1 for scenario in scenarios):
        raise UsageError(
            "with --expect-workers all load comes from the workers; say --processes 1, "
            "or leave it out"
        )
    bind = bind or ("*", PORT)
    from bench.hosts.share import budget_per_s

    # A wrong budget is refused before anything starts.
    budget_per_s()
    if not all(scenario.targets for scenario in scenarios) and bind[0] not in (
        "127.0.0.1",
        "localhost",
        "::1",
    ):
        raise UsageError(
            "servers started here answer on this host only; name some that every worker "
            "reaches with --target, or "
            "try it on one host with --bind 127.0.0.1"
        )
    if not values["quiet"]:
        many = f"{expected} worker{'s'[: expected > 1]}"
        where = "HOST" if bind[0] == "*" else bind[0]
        port = f":{bind[1]}" if bind[1] != PORT else ""
        message = (
            f"lockbench: waiting for {many}; start on each host: lockbench worker --master "
            f"{where}{port}"
        )
        note(message)
    return [replace(scenario, processes=expected) for scenario in scenarios], bind


@click.command(cls=Grouped)
@click.option(
    "--master",
    metavar="HOST",
    type=ADDRESS,
    required=True,
    help=f"who leads: HOST or HOST:PORT  [{PORT}]",
)
@click.option(
    "--processes", metavar="N", type=click.IntRange(1, 256), default=1, help="load processes  [1]"
)
@click.option(
    "--wait",
    metavar="TIME",
    type=BUDGET,
    default="30s",
    help="for a leader that starts later  [30s]",
)
def worker(master: Address, processes: int, wait: float) -> int:
    """Make load for `lockbench run --expect-workers` on another host; for capacity, gate and
    compare, too.

    It waits for its leader, works for it and ends: after the last run, or when none has followed
    for a minute. Everything but HOST comes from there, passwords of targets too. Ctrl-C gives its
    locks back; twice: at once, and they stay until their TTL has passed.
    """
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
            "this worker did not work to the end of a run; its log, above, says why"
        )
    return 0
