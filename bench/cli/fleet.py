"""`lockbench fleet`: *how many, how durable → URLs on stdout until Ctrl-C*.

Rules: stdout holds one URL per line (or one JSON object) and nothing else, flushed at once, so that a script can read
them; what happens to the servers is told on stderr, a death once. An ignored SIGHUP (nohup) stays ignored; the signal
handlers that were there are put back. Source: bench.topology; signal(7).
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from types import FrameType

from bench.errors import EXIT_INTERRUPTED
from bench.topology.fleet import Fleet, Instance, start_fleet
from bench.topology.server import find_server

_LOOK_S = 0.5


def serve_fleet(*, instances: int, fsync: str, port: int | None, server: str | None, as_json: bool, quiet: bool) -> int:
    """Start servers, print their URLs, stay until a signal and return 130. Raises BenchError if they do not start."""
    with start_fleet(instances, fsync, server=find_server(server), port=port) as fleet:
        serve(fleet, _tell_death, lambda: _tell_ready(fleet, fsync, as_json=as_json, quiet=quiet))
    return EXIT_INTERRUPTED


def _tell_ready(fleet: Fleet, fsync: str, *, as_json: bool, quiet: bool) -> None:
    urls = [instance.url for instance in fleet.instances]
    facts = {"urls": urls, "fsync": fsync, "server": asdict(fleet.server), "folder": str(fleet.folder)}
    print(json.dumps(facts) if as_json else "\n".join(urls), flush=True)
    if not quiet:
        what = f"{len(urls)} × {fleet.server}, fsync {fsync}, in {fleet.folder}"
        print(f"lockbench: {what}; Ctrl-C stops them", file=sys.stderr)


def _tell_death(instance: Instance, exit_code: int) -> None:
    print(f"lockbench: instance {instance.index} ({instance.url}) ended with exit code {exit_code}", file=sys.stderr)


def serve(
    fleet: Fleet, on_death: Callable[[Instance, int], None], on_ready: Callable[[], None] = lambda: None
) -> signal.Signals:
    """Return at SIGINT, SIGTERM or SIGHUP with that signal; the fleet is still running then, for its owner to close.

    `on_ready()` is called once a signal cannot get lost any more: whoever reads what it says may send one at once.
    `on_death(instance, exit_code)` is called for every instance that ends meanwhile.
    Raises EnvironmentNotReadyError when the fleet's guard is gone.
    """
    reading, writing = os.pipe()

    def note(number: int, _frame: FrameType | None) -> None:
        os.write(writing, bytes([number]))

    ending = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in ending}
    dead: set[int] = set()
    try:
        on_ready()
        while True:
            ready, _, _ = select.select([reading], [], [], _LOOK_S)
            if ready:
                return signal.Signals(os.read(reading, 1)[0])
            for index, exit_code in enumerate(fleet.exit_codes()):
                if exit_code is not None and index not in dead:
                    dead.add(index)
                    on_death(fleet.instances[index], exit_code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)
