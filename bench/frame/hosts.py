"""Defines the options for load from several hosts. With these options, the number of workers
becomes the number of processes in each scenario.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from bench.errors import UsageError
from bench.frame.options import Read, Values, together
from bench.hosts.joining import PORT, Address, address
from bench.screen import note

if TYPE_CHECKING:
    from bench.scenario import Scenario

ADDRESS = Read("address", address)


hosts_options = together(
    click.option(
        "--expect-workers",
        metavar="N",
        type=click.IntRange(1, 1000),
        help="let N processes of `lockbench worker` on other hosts make the load",
    ),
    click.option(
        "--bind",
        metavar="ADDRESS",
        type=ADDRESS,
        help=f"this host's address for workers that join, HOST or HOST:PORT  [all, port {PORT}]",
    ),
)


def led(
    scenarios: Sequence[Scenario], values: Values, *, quiet: bool = False
) -> tuple[list[Scenario], Address | None]:
    """Return the scenarios, and the address to which the workers connect.

    In each returned scenario, the number of processes is the number of expected workers. If this
    host itself makes the load, the scenarios are unchanged and the address is None. Raises
    UsageError.
    """
    expected = values.get("expect_workers")
    bind = values.get("bind")
    if expected is None:
        if bind is not None:
            raise UsageError(
                "option --bind is only for workers on other hosts; use --expect-workers to "
                "set the number of workers"
            )
        return list(scenarios), None
    if any(scenario.processes > 1 for scenario in scenarios):
        raise UsageError("with --expect-workers, the workers make all the load; set --processes 1")
    bind = bind or ("*", PORT)
    from bench.hosts.share import budget_per_s

    # A wrong budget is refused before any work starts.
    budget_per_s()
    if not all(scenario.targets for scenario in scenarios) and bind[0] not in (
        "127.0.0.1",
        "localhost",
        "::1",
    ):
        raise UsageError(
            "other hosts cannot reach the servers that lockbench starts here; use --target to "
            "name servers that every worker can reach, or use --bind 127.0.0.1 to run the leader "
            "and all workers on one host"
        )
    if not quiet:
        many = f"{expected} worker{'s'[: expected > 1]}"
        where = "HOST" if bind[0] == "*" else bind[0]
        port = f":{bind[1]}" if bind[1] != PORT else ""
        message = (
            f"lockbench: waiting for {many}; on each host, run lockbench worker --master "
            f"{where}{port}"
        )
        note(message)
    return [replace(scenario, processes=expected) for scenario in scenarios], bind
