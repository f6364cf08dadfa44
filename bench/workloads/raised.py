"""This module counts the exceptions that a lock under test raises: *exceptions → a count for each
message with file and line*.

A recipe should answer with a Lease, a Denied or an Outcome. So every exception from a recipe counts
as an error. An exception may come from an acquire, from a release, or from a greenlet or thread of
the recipe, for example a watchdog.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb

from gevent.hub import Hub

import bench
from bench.errors import secrets

# A process keeps at most this many different texts. The limit is needed, because some exceptions
# have a new number in their text each time.
MOST_TEXTS = 5
# At most this many characters of an exception's own text are kept.
LONGEST = 200
OTHERS = "exceptions with other texts"
# The code objects of compiled files have relative file names.
_OURS = (str(Path(bench.__file__).parent), "bench/", contextlib.__file__)


def sentence_of(error: BaseException, stage: str = "") -> str:
    """Return one line that describes an exception and contains no secrets. The line contains the
    type and the text of the exception, and the code line that raised it.

    `stage`: the stage of the operation, or "" for a line without a stage.
    """
    try:
        text = " ".join(str(error).split())
        text = f": {secrets().sentence(text)[:LONGEST]}" if text else ""
    except Exception:  # noqa: BLE001 - a text that raises must not hide that the lock has raised
        text = ", whose text is unknown, because str() raised another exception"
    where = ", ".join(filter(None, (stage, place_of(error))))
    return f"{type(error).__name__}{text} ({where})"


def place_of(error: BaseException) -> str:
    """Return the file and the line that raised `error`, as text.

    If the traceback contains lines of other code, this function skips the lines of lockbench
    itself. The text names the last of the remaining lines. If the first of these lines is in
    another file, the text also names this first line.
    """
    frames = extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_OURS)] or frames[-1:]
    if not theirs:
        return "in the call itself"
    first, last = (
        f"{Path(frame.filename).name}:{frame.lineno}" for frame in (theirs[0], theirs[-1])
    )
    called = f", called from {first}" if theirs[0].filename != theirs[-1].filename else ""
    return f"{last} in {theirs[-1].name}{called}"


class Raised:
    """The counts of the exceptions of one load process. Each different message has its own
    count."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._last: BaseException | None = None

    def note(self, error: BaseException) -> None:
        """Count one exception.

        The same exception object may reach this method twice, from a greenlet and from the caller
        of the greenlet. If two calls in a row get the same exception object, this method counts the
        object only once.
        """
        if error is self._last:
            return
        self._last = error
        sentence = sentence_of(error)
        is_known = sentence in self.counts or len(self.counts) < MOST_TEXTS
        self.counts[sentence if is_known else OTHERS] += 1

    def watch(self, hub: Hub) -> Callable[[], None]:
        """From now on, count uncaught exceptions of threads and of this hub's greenlets.

        Returns a function that ends this watch.
        """
        print_exception = hub.print_exception
        threads_hook = threading.excepthook

        def in_greenlet(context: object, kind: object, error: object, traceback: object) -> None:
            if isinstance(error, Exception):
                self.note(error)
            print_exception(context, kind, error, traceback)

        def in_thread(arguments: threading.ExceptHookArgs) -> None:
            if isinstance(arguments.exc_value, Exception):
                self.note(arguments.exc_value)
            threads_hook(arguments)

        def end() -> None:
            hub.print_exception = print_exception
            threading.excepthook = threads_hook

        hub.print_exception = in_greenlet
        threading.excepthook = in_thread
        return end
