"""This module decides how a load process ends: *a signal, the time limit, or a recipe that blocks
all greenlets → the process ends in an orderly way or with an error message*.

Python's own SIGINT handler raises an exception in the middle of running code, for example between a
grant and the assignment of its lease. The handler of this module lets Ctrl-C take effect only
between two passes of the hub.
"""

import logging
import os
import signal
from collections.abc import Callable
from itertools import count

import gevent
from gevent import get_hub

from bench.errors import EnvironmentNotReadyError
from bench.measure.environment import scheduled_ns
from bench.workloads.launch import note_failure
from bench.workloads.worker import Worker
from lockcore.clock import NS_PER_S, monotonic_ns

# If this process uses a core for this time and no other greenlet runs, a caller is stuck.
OWN_TIME_NS = NS_PER_S // 2
# The time between two checks (s). Two checks take place before a master misses the heartbeats of
# this process.
LOOK_S = 1
logger = logging.getLogger(__name__)


def interrupt_main_only(is_starting: Callable[[], bool]) -> None:
    """Install the handler for Ctrl-C in this process.

    While `is_starting()` is true, Locust cannot handle an interrupt, so Ctrl-C ends the process
    with exit code 130.
    """
    numbers = count(1)

    def interrupted() -> None:
        number = next(numbers)
        if number == 1:
            error = SystemExit(130) if is_starting() else KeyboardInterrupt()
            get_hub().handle_system_error(type(error), error)
        elif number == 2:
            logger.warning(
                "the load releases its locks now; another Ctrl-C ends the load at once, and the "
                "locks remain until their TTL has passed"
            )
        else:
            os._exit(130)

    gevent.signal_handler(signal.SIGINT, interrupted)


def end_within(seconds: float) -> None:
    """Let the kernel end this process by SIGALRM after `seconds`, even if the process is
    waiting."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, int(seconds)))


# If a recipe never yields, the hub never runs. Then no other greenlet runs, and Locust reads no
# messages. A greenlet that watches for this case would be stuck, too. The kernel's alarm still
# works, because Python runs its handler between two steps of the running code. The handler looks at
# the time of the probe's last check, which shows whether another greenlet ran. The handler leaves
# out the time spent waiting for a core. So a busy machine does not end a healthy process.
def end_when_stuck(worker: Worker, leader: int | None) -> None:
    """Check at each SIGALRM whether the running caller has blocked all other greenlets since the
    last check.

    After two checks without progress, this process ends with an error message. If `leader` is not
    None, this process first sends SIGTERM to the process `leader`. Time spent waiting for a core
    does not count.
    """
    seen_ns = -1
    in_vain = 0
    since_ns = 0

    def look(_signal: int, _frame: object) -> None:
        nonlocal seen_ns, in_vain, since_ns
        if worker.is_ending:
            return
        # `own_ns`: the elapsed time, without the time spent waiting for a core.
        own_ns = monotonic_ns() - scheduled_ns()[1]
        if worker.probe.looked_ns != seen_ns:
            seen_ns = worker.probe.looked_ns
            in_vain = 0
            since_ns = own_ns
        else:
            in_vain += 1
        if in_vain >= 2 and own_ns - since_ns >= OWN_TIME_NS:
            _end_stuck(worker.plan.scenario.recipe, leader)
        signal.alarm(LOOK_S)

    signal.signal(signal.SIGALRM, look)
    signal.alarm(LOOK_S)


def _end_stuck(recipe: str, leader: int | None) -> None:
    error = EnvironmentNotReadyError(
        f"the recipe {recipe} has blocked all other callers for {2 * LOOK_S} s; an acquire or a "
        "release must wait through gevent"
    )
    # The interrupted code may be in the middle of a print, so the handler does not use
    # `sys.stderr`.
    os.write(2, f"lockbench: {error}\n".encode())
    note_failure(error)
    if leader is not None:
        os.kill(leader, signal.SIGTERM)
    os._exit(error.exit_code)
