"""How a load process ends: *a signal, its time, or a recipe that never yields → an end in order, or
with a sentence*.

Rules: Python's own SIGINT handler raises inside whatever runs, for example between a grant and its
variable. Here Ctrl-C comes between two passes of the hub.
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

# A hub that had a core for so long let nobody else run.
OWN_TIME_NS = NS_PER_S // 2
# two looks are over before a master misses the heartbeats
LOOK_S = 1
logger = logging.getLogger(__name__)


def interrupt_main_only(is_starting: Callable[[], bool]) -> None:
    """Install the handler in this process.

    While `is_starting()`, when Locust catches nothing, it exits with 130.
    """
    numbers = count(1)

    def interrupted() -> None:
        number = next(numbers)
        if number == 1:
            error = SystemExit(130) if is_starting() else KeyboardInterrupt()
            get_hub().handle_system_error(type(error), error)
        elif number == 2:
            logger.warning(
                "giving the locks back; Ctrl-C again leaves them until their TTL has passed"
            )
        else:
            os._exit(130)

    gevent.signal_handler(signal.SIGINT, interrupted)


def end_within(seconds: float) -> None:
    """Have the kernel end this process (SIGALRM) if it still lives after so many seconds, whatever
    it waits for."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, int(seconds)))


# A recipe that never yields keeps the hub for itself. Then no greenlet runs, no message of Locust
# is read, and a watching greenlet would be stuck like all others. The kernel's alarm still comes,
# because Python runs its handler between two steps of whatever runs. The probe's mark shows
# whether anybody else ran. Time spent waiting for a core is left out, so that a busy machine ends
# no healthy process.
def end_when_stuck(worker: Worker, leader: int | None) -> None:
    """Have the kernel look (SIGALRM) whether anything but one caller has run here; after two looks
    in vain this process ends with a sentence, and the process `leader` is to end, too. Time in
    which it waited for a core does not count."""
    seen_ns = -1
    in_vain = 0
    since_ns = 0

    def look(_signal: int, _frame: object) -> None:
        nonlocal seen_ns, in_vain, since_ns
        if worker.is_ending:
            return
        # all time but what it waited for a core
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
        f"the recipe {recipe} has let no other caller run for {2 * LOOK_S} s; an acquire "
        "or a release must wait for "
        "something by gevent"
    )
    # whoever was interrupted may be in the middle of a print
    os.write(2, f"lockbench: {error}\n".encode())
    note_failure(error)
    if leader is not None:
        os.kill(leader, signal.SIGTERM)
    os._exit(error.exit_code)
