"""Ctrl-C between two turns of the hub: *SIGINT → KeyboardInterrupt in the main greenlet, and nowhere else*.

Rules: Python's own handler raises inside whatever code runs, a user with a fresh lease included; Locust's listener
even swallows it. The first Ctrl-C stops the run in order, the second says that it does, the third leaves at once.
Source: gevent.signal_handler; locust.runners.MasterRunner.client_listener.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from itertools import count

import gevent
from gevent import get_hub

logger = logging.getLogger(__name__)


def interrupt_main_only(is_starting: Callable[[], bool]) -> None:
    """Install the handler in this process. While `is_starting()`, when Locust catches nothing, it exits with 130."""
    numbers = count(1)

    def interrupted() -> None:
        number = next(numbers)
        if number == 1 and is_starting():
            get_hub().handle_system_error(SystemExit, SystemExit(130))
        elif number == 1:
            get_hub().handle_system_error(KeyboardInterrupt, KeyboardInterrupt())
        elif number == 2:
            logger.warning("giving the locks back; Ctrl-C again leaves them until their TTL has passed")
        else:
            os._exit(130)

    gevent.signal_handler(signal.SIGINT, interrupted)


def end_within(seconds: float) -> None:
    """Have the kernel end this process (SIGALRM) if it still lives after so many seconds, whatever it waits for."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, int(seconds)))
