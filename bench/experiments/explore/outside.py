"""The parts of a recipe that do not run in virtual time: *its threads, timers, processes and loops
→ a sentence, or none*.

A schedule is played in one thread with one virtual clock. `threading.Thread` and
`threading.Condition` of a recipe are simulated (sockets.py). Other timers, threads and processes of
the recipe would run in real time, after the whole schedule has been played. If such a timer
released the lock, the release would come too late, and the lock would wrongly seem to hold. So this
module notices such a part, and refuses it if possible. The recipe is then "not known". Source: the
table of audit events in Python's documentation.
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
    """The first part that was noticed since the last `take`. The class itself holds the part's
    description."""

    first = ""
    is_watching = False

    @classmethod
    def note(cls, what: str) -> None:
        """Keep the description of a part that was started.

        Raises OutsideError in a simulated thread, because there the part can still be refused.
        """
        cls.first = cls.first or f"the recipe started {what}, which does not run in virtual time"
        if isinstance(getcurrent(), Actor):
            raise OutsideError(cls.first)

    @classmethod
    def take(cls) -> str:
        """Return the description of the first part, or "", and forget the part.

        gevent counts as such a part only in a process that watches. Other processes may use gevent.
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
    """From now on, make this process notice parts that do not run in virtual time. The change
    cannot be undone."""
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
        """Wrap the function `real`, so that it also makes a note about the thread. Python 3.11 has
        no audit event for the start of a thread."""

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
