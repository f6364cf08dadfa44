"""Several hosts: *the options of who leads; `lockbench worker`, which works for it*.

Rules: a worker is told everything but where its leader is; it leaves no process, no lock, and a
history only where its leader has not taken it. For each run of a command that makes several it
joins anew. Locust starts only where a leader answers: alone it would try for five minutes, in many
lines.
"""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.errors import EXIT_INTERRUPTED, EnvironmentNotReadyError, UsageError
from bench.frame.options import BUDGET, Grouped, Read, Values, together
from bench.run.interrupt import Interrupts
from bench.screen import note
from bench.topology.child import Guard

if TYPE_CHECKING:
    from bench.scenario import Scenario

PORT = 5557
# A worker waits so long for its leader between two runs of one command.
AGAIN_S = 60.0
_LOOK_S = 0.2
_CONNECT_S = 2.0
# Locust speaks ZeroMQ, and every ZeroMQ connection begins with these bytes (ZMTP 3, 2.2).
_GREETING = re.compile(rb"\xff.{8}\x7f", re.DOTALL)
_GREETING_BYTES = 10
Address = tuple[str, int]


def address(text: str) -> Address:
    """HOST, HOST:PORT or [HOST]:PORT. Raises ValueError."""
    match = re.fullmatch(r"(\[[^\]]+\]|[^:\s/]+)(?::(\d{1,5}))?", text)
    if match is None or not 0 < int(match[2] or PORT) < 65_536:
        raise ValueError(f"{text!r} is no address; give HOST or HOST:PORT")
    return match[1].strip("[]"), int(match[2] or PORT)


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
    from bench.measure.share import budget_per_s

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
    from bench.workloads.launch import MORE, join

    _require_host(*master)
    with (
        Interrupts() as interrupts,
        Guard(Path(tempfile.gettempdir()), "lockbench-joined-") as guard,
    ):
        interrupts.raising = False
        note_file = guard.folder / "note"
        over_s = math.inf
        code = 0
        _await_leader(master, wait, interrupts)
        while not interrupts.count:
            note_file.unlink(missing_ok=True)
            process = join(*master, processes, note_file)
            code = _followed(process, interrupts, note_file, over_s)
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


def _require_host(host: str, port: int) -> None:
    """Raise EnvironmentNotReadyError for a host that cannot be found."""
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        # DNS allows no label longer than 63 letters. Python then raises a UnicodeError, which has
        # no strerror.
        why = getattr(error, "strerror", None) or "it is no name"
        raise EnvironmentNotReadyError(
            f"the host {host} that leads cannot be found ({why}); give --master its "
            "address, or a name known here"
        ) from None


def _await_leader(master: Address, wait_s: float, interrupts: Interrupts) -> None:
    """Return when a leader answers, or at Ctrl-C. Raises EnvironmentNotReadyError if none does for
    `wait_s`."""
    host, port = master
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    over_s = time.monotonic() + wait_s
    is_noted = False
    while not interrupts.count:
        absent = _absence(master)
        if not absent:
            return
        if time.monotonic() >= over_s:
            raise EnvironmentNotReadyError(
                f"nobody leads at {place} ({absent}; waited {wait_s:g} s); start "
                "lockbench run --expect-workers there, "
                "mend --master, or give it longer with --wait"
            )
        if not is_noted:
            note(f"lockbench: nobody leads at {place} yet ({absent}); waiting {wait_s:g} s for it")
            is_noted = True
        time.sleep(_LOOK_S)


def _absence(master: Address) -> str:
    """Why nobody leads there; "" if somebody does. A leader greets whoever connects."""
    heard = b""
    try:
        with socket.create_connection(master, _CONNECT_S) as connection, suppress(TimeoutError):
            while len(heard) < _GREETING_BYTES:
                data = connection.recv(_GREETING_BYTES - len(heard))
                if not data:
                    break
                heard += data
    except OSError as error:
        return (error.strerror or "nothing answers there").lower()
    return (
        "" if _GREETING.fullmatch(heard) else "what listens there does not greet as a leader does"
    )


def _followed(
    process: subprocess.Popen[bytes], interrupts: Interrupts, note: Path, over_s: float
) -> int:
    """The exit code of a Locust that has joined, once it has ended; 0 if nobody led it by the time
    `over_s`."""
    signals_sent = 0
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
        alone = time.monotonic() > over_s and not note.exists()
        if interrupts.count > signals_sent or alone:
            with suppress(ProcessLookupError):
                # TERM lets Locust give its locks back. A second interrupt kills it.
                os.killpg(process.pid, signal.SIGKILL if signals_sent else signal.SIGTERM)
            signals_sent = interrupts.count
            if alone and not signals_sent:
                process.wait()
                return 0
    return process.returncode
