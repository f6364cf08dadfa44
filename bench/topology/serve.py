"""What `lockbench fleet` does while it runs: *a running fleet → the signal that ended it*.

Rules: looks every half second whether an instance has died, which is told once per death. An ignored SIGHUP (nohup)
stays ignored. The signal handlers that were there are put back. Works in the main thread only, as Python demands.
Source: signal(7).
"""

import os
import select
import signal
from collections.abc import Callable
from types import FrameType

from bench.topology.fleet import Fleet, Instance

_LOOK_S = 0.5


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
