"""The end of a run that several workers made: *how far each worker has come → whom the end still
waits for*.

    WORKING ──its last report──▶ FINISHED ──its fold──▶ FOLDED ──its files──▶ HERE
       │                            │                     │
       └────────────────────────────┴──────────┬──────────┘
                                               └──gone, or cannot, or its time is over──▶ LOST

    the end:   asks all to finish   asks all for folds    fetches files     is over
    waits for: those WORKING        those FINISHED        those FOLDED      nobody

Rules
- The end takes one step after the other. A step is over when nobody is left in the state that it
  waits for. So a death shortens whom to wait for. It ends no step early, and never the end itself.
- HERE and LOST are final. Whatever such a worker says later changes nothing, and neither does a
  message that comes twice. A state cannot be skipped.
- A worker that joins after the end has begun takes no part in it.
"""

from collections.abc import Collection, Iterable
from enum import IntEnum


class Progress(IntEnum):
    """How far one worker has come."""

    WORKING = 0
    FINISHED = 1
    FOLDED = 2
    HERE = 3
    LOST = 4


FINAL = (Progress.HERE, Progress.LOST)


class Ending:
    """Who takes part in an end that begins now, and how far each of them has come."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._progress = dict.fromkeys(nodes, Progress.WORKING)

    # All progress passes this gate. Locust's messages may come twice or late, and a worker given up
    # as LOST may still speak. Without the gate such a worker would come back, and the end would
    # wait for it again. No state can be skipped, because each step of the end waits for one state.
    # A worker that jumped over it would have left out what that step fetches.
    def note(self, node: str, progress: Progress) -> bool:
        """A worker has come so far; whether that was so.

        A late, repeated or unknown message is not.
        """
        before = self._progress.get(node)
        if before is None or before in FINAL:
            return False
        if progress is not Progress.LOST and progress != before + 1:
            return False
        self._progress[node] = progress
        return True

    def progress(self, node: str) -> Progress | None:
        """How far a worker has come; None: it takes no part."""
        return self._progress.get(node)

    def at(self, progress: Progress) -> list[str]:
        """Those that have come exactly so far."""
        return [node for node, reached in self._progress.items() if reached is progress]

    def lose(self, nodes: Collection[str]) -> None:
        """Wait for these no more."""
        for node in nodes:
            self.note(node, Progress.LOST)
