"""The end of a run that several workers made: *the progress of each worker → the workers that the
end still waits for*.

    WORKING ──its last report──▶ FINISHED ──its fold──▶ FOLDED ──its files──▶ HERE
       │                            │                     │
       └────────────────────────────┴──────────┬──────────┘
                                               └──gone, or cannot, or its time is over──▶ LOST

    the end:   asks all to finish   asks all for folds    fetches files     is over
    waits for: those WORKING        those FINISHED        those FOLDED      nobody

Rules
- The end takes one step after the other. A step is over when nobody is left in the state that it
  waits for. So after a death the end waits for one worker less. A death never ends the wait for the
  other workers.
- HERE and LOST are final. A later message of such a worker changes nothing. A repeated message
  changes nothing, either. A state cannot be skipped.
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
    """The workers that take part in an end that begins now, and the progress of each one."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._progress = dict.fromkeys(nodes, Progress.WORKING)

    # All progress passes this gate. Locust's messages may come twice or late, and a worker given up
    # as LOST may still speak. Without the gate such a worker would come back, and the end would
    # wait for it again. No state can be skipped, because each step of the end waits for one state.
    # A worker that jumped over it would have left out what that step fetches.
    def note(self, node: str, progress: Progress) -> bool:
        """Note the progress of a worker. Returns whether the progress was accepted.

        A late or repeated message is not accepted, and neither is one of an unknown worker.
        """
        before = self._progress.get(node)
        if before is None or before in FINAL:
            return False
        if progress is not Progress.LOST and progress != before + 1:
            return False
        self._progress[node] = progress
        return True

    def progress(self, node: str) -> Progress | None:
        """Return the progress of a worker. None: the worker takes no part in the end."""
        return self._progress.get(node)

    def at(self, progress: Progress) -> list[str]:
        """Return the workers whose progress is exactly `progress`."""
        return [node for node, reached in self._progress.items() if reached is progress]

    def lose(self, nodes: Collection[str]) -> None:
        """Give up these workers as LOST, so the end no longer waits for them."""
        for node in nodes:
            self.note(node, Progress.LOST)
