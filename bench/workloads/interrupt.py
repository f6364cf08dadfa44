"""Ctrl-C between two turns of the hub: *SIGINT → KeyboardInterrupt in the main greenlet, and nowhere else*.

Rules: Python's own handler raises inside whatever code runs, a user with a fresh lease included; Locust's listener
even swallows it. The first Ctrl-C stops the run in order, the second says that it does, the third leaves at once.
Source: gevent.signal_handler; locust.runners.MasterRunner.client_listener.
"""

from __future__ import annotations

import logging
import os
import signal
from itertools import count

import gevent
from gevent import get_hub

logger = logging.getLogger(__name__)


def interrupt_main_only() -> None:
    """Install the handler in this process."""
    numbers = count(1)

    def interrupted() -> None:
        number = next(numbers)
        if number == 1:
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
