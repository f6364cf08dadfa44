"""Notices if a recipe starts something that does not run in virtual time. Examples are threads,
timers, processes and event loops.

A schedule is played in one thread with one virtual clock. The module sockets.py simulates the
`threading.Thread` and `threading.Condition` of a recipe. If the recipe starts timers, processes or
other kinds of threads, they would run in real time, after the whole schedule has been played. For
example, a real timer would release the lock too late, and the lock would wrongly seem to be safe.
So this module notices each part that would run in real time, and prevents the start of the part if
possible. The verdict on the recipe is then "not known". Source: the table of audit events in
Python's documentation.
"""

import _thread
import signal
import sys
import threading
from asyncio import base_events
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent

from bench.experiments.explore.world import Actor

_STARTS = frozenset(
    (
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.system",
        "subprocess.Popen",
    )
)
# Python has the last name since version 3.13.
_THREADS = ("start_new_thread", "start_new", "start_joinable_thread")


class OutsideError(RuntimeError):
    """Raised if a part of the recipe was refused, because the part cannot run in virtual time."""


class Outside:
    """A recipe may start a part that does not run in virtual time, such as a process. This class
    stores a description of the first of these parts. The method `take` returns and deletes the
    description. The attributes of the class hold the state, so the class has no objects.
    """

    first = ""
    is_watching = False

    @classmethod
    def note(cls, what: str) -> None:
        """Store the description of a part that the recipe started. Only the first description is
        stored.

        Raises OutsideError if a simulated thread calls this function. The exception prevents the
        start of the part.
        """
        cls.first = cls.first or f"the recipe started {what}, which does not run in virtual time"
        if isinstance(getcurrent(), Actor):
            raise OutsideError(cls.first)

    @classmethod
    def take(cls) -> str:
        """Return the stored description of a part, and delete the description. Return "" if no part
        was noticed since the last call.

        The use of gevent is noticed only after the process has called `watch`. Before this call,
        the process itself may use gevent.
        """
        hub = getattr(sys.modules.get("gevent._hub_local"), "get_hub_if_exists", lambda: None)()
        if hub is not None and cls.is_watching:
            cls.first = (
                cls.first
                or "the recipe uses gevent, and gevent's greenlets and timers do not run in "
                "virtual time"
            )
            # If the hub stayed, the process would blame its next recipe for the hub.
            hub.destroy(destroy_loop=True)
        first = cls.first
        cls.first = ""
        return first


def watch() -> None:
    """Make this process notice all parts of its recipes that do not run in virtual time. The effect
    cannot be undone.
    """
    Outside.is_watching = True

    def hook(event: str, _arguments: object) -> None:
        if event in _STARTS:
            Outside.note("a process")

    def noted(real: Callable[..., Any], what: str) -> Callable[..., Any]:
        def either(*arguments: object, **named: object) -> object:
            Outside.note(what)
            return real(*arguments, **named)

        return either

    def thread(real: Callable[..., object]) -> Callable[..., object]:
        """Return a function that records the start of a thread and then calls the function `real`.
        Python 3.11 has no audit event for the start of a thread.
        """

        def either(function: Callable[..., object], *arguments: object, **named: object) -> object:
            # The caller may be a threading.Timer, or another class of threads.
            owner = getattr(function, "__self__", None)
            Outside.note(f"a thread ({type(owner).__name__})" if owner is not None else "a thread")
            return real(function, *arguments, **named)

        return either

    # An audit hook notices processes, because a recipe can neither remove nor replace the hook.
    # Threads have no audit event in Python 3.11, and no event suits timers and loops. So functions
    # that make a note replace the functions of threads, timers and loops. `threading` has copied
    # its functions from `_thread` under other names, so both modules are changed.
    sys.addaudithook(hook)
    for name in _THREADS:
        for module, own in ((_thread, name), (threading, f"_{name}")):
            if hasattr(module, own):
                setattr(module, own, thread(getattr(module, own)))
    signal.setitimer = noted(signal.setitimer, "a timer of the system")
    signal.alarm = noted(signal.alarm, "a timer of the system")
    loop: Any = base_events.BaseEventLoop
    loop.__init__ = noted(loop.__init__, "an asyncio loop")
