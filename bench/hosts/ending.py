"""Ends a run with several workers: *the progress of each worker → the workers that the end still
waits for*.

    WORKING ──its last report──▶ FINISHED ──its fold──▶ FOLDED ──its files──▶ HERE
       │                            │                     │
       └────────────────────────────┴──────────┬──────────┘
                                               └──gone, or cannot, or its time is over──▶ LOST

    the end:   asks all to finish   asks all for folds    fetches files     is over
    waits for: those WORKING        those FINISHED        those FOLDED      nobody

Rules
- The end takes one step after the other. A step is over when no worker is left in the state that
  the step waits for. If a worker dies, the end waits for one worker less. It still waits for the
  other workers.
- HERE and LOST are final. A later message of a HERE or LOST worker changes nothing. A repeated
  message also changes nothing. A state cannot be skipped.
- A worker that joins after the end has begun takes no part in the end.
"""

from collections.abc import Collection, Iterable
from enum import IntEnum


class Progress(IntEnum):
    """The progress of one worker through the end of a run."""

    WORKING = 0
    FINISHED = 1
    FOLDED = 2
    HERE = 3
    LOST = 4


FINAL = (Progress.HERE, Progress.LOST)


class Ending:
    """The end of a run, which begins now. It knows the workers that take part, and their
    progress.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self._progress = dict.fromkeys(nodes, Progress.WORKING)

    # This method checks all progress. Locust's messages may come twice or late, and a LOST worker
    # may still send messages. Without the check, a LOST worker would come back, and the end would
    # wait for it again. Each step of the end waits for one state, and fetches data of the workers
    # in this state. If a worker could skip the state, its data would be missing.
    def note(self, node: str, progress: Progress) -> bool:
        """Note the progress of a worker, and return whether the progress was accepted.

        Late or repeated messages and messages of unknown workers are not accepted.
        """
        before = self._progress.get(node)
        if before is None or before in FINAL:
            return False
        if progress is not Progress.LOST and progress != before + 1:
            return False
        self._progress[node] = progress
        return True

    def progress(self, node: str) -> Progress | None:
        """Return the progress of a worker, or None if it takes no part in the end."""
        return self._progress.get(node)

    def at(self, progress: Progress) -> list[str]:
        """Return the workers whose progress is exactly `progress`."""
        return [node for node, reached in self._progress.items() if reached is progress]

    def lose(self, nodes: Collection[str]) -> None:
        """Give up these workers as LOST, so the end no longer waits for them."""
        for node in nodes:
            self.note(node, Progress.LOST)
