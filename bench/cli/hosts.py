"""Several hosts: *the options of who leads; `lockbench worker`, which works for it*.

Rules: a worker is told everything but where its leader is; it leaves no process, no lock, and a history only where its
leader has not taken it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from bench.cli.options import Command, Grouped, Read, Values
from bench.errors import EXIT_INTERRUPTED, EnvironmentNotReadyError, UsageError

if TYPE_CHECKING:
    from bench.scenario import Scenario

PORT = 5557
_LOOK_S = 0.2
Address = tuple[str, int]


def address(text: str) -> Address:
    """HOST, HOST:PORT or [HOST]:PORT. Raises ValueError."""
    match = re.fullmatch(r"(\[[^\]]+\]|[^:\s/]+)(?::(\d{1,5}))?", text)
    if match is None or not 0 < int(match[2] or PORT) < 65_536:
        raise ValueError(f"{text!r} is no address; give HOST or HOST:PORT")
    return match[1].strip("[]"), int(match[2] or PORT)


ADDRESS = Read("address", address)


def hosts_options(command: Command) -> Command:
    """Give a click command --expect-workers and --bind."""
    text = f"where they find this host: one of its addresses, HOST or HOST:PORT  [all, port {PORT}]"
    command = click.option("--bind", metavar="ADDRESS", type=ADDRESS, help=text)(command)
    text = "load comes from so many processes of `lockbench worker` on other hosts"
    return click.option("--expect-workers", metavar="N", type=click.IntRange(1, 1000), help=text)(command)


def led(scenario: Scenario, values: Values) -> tuple[Scenario, Address | None]:
    """The scenario with as many processes as workers are expected, and where they are. Raises UsageError."""
    expected, bind = values.get("expect_workers"), values.get("bind")
    if expected is None:
        if bind is not None:
            raise UsageError("option --bind is where other hosts join; say how many processes with --expect-workers")
        return scenario, None
    if scenario.processes > 1:
        raise UsageError("with --expect-workers all load comes from the workers; say --processes 1, or leave it out")
    bind = bind or ("*", PORT)
    if not scenario.targets and bind[0] not in ("127.0.0.1", "localhost", "::1"):
        raise UsageError(
            "servers started here answer on this host only; name some that every worker reaches with --target, or "
            "try it on one host with --bind 127.0.0.1"
        )
    if not values["quiet"]:
        many, where = f"{expected} worker{'s'[: expected > 1]}", "HOST" if bind[0] == "*" else bind[0]
        port = f":{bind[1]}" if bind[1] != PORT else ""
        said = f"lockbench: waiting for {many}; start on each host: lockbench worker --master {where}{port}"
        print(said, file=sys.stderr)
    return replace(scenario, processes=expected), bind


@click.command(cls=Grouped)
@click.option("--master", metavar="HOST", type=ADDRESS, required=True, help=f"who leads: HOST or HOST:PORT  [{PORT}]")
@click.option("--processes", metavar="N", type=click.IntRange(1, 256), default=1, help="load processes  [1]")
def worker(master: Address, processes: int) -> int:
    """Make load for `lockbench run --expect-workers` on another host.

    It waits for its leader, works for one run and ends. Everything but HOST comes from there, passwords of targets too.
    Ctrl-C gives its locks back; twice: at once, and they stay until their TTL has passed.
    """
    from bench.run.interrupt import Interrupts
    from bench.workloads.launch import join

    with Interrupts() as interrupts:
        interrupts.raising, told = False, 0
        process = join(*master, processes)
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
            if interrupts.count > told:
                os.killpg(process.pid, signal.SIGKILL if told else signal.SIGTERM)  # TERM: locks go back
                told = interrupts.count
    if told:
        return EXIT_INTERRUPTED
    if process.returncode:
        raise EnvironmentNotReadyError("this worker did not work to the end of a run; its log, above, says why")
    return 0
