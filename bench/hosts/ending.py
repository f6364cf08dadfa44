"""Tracks the end of a run with several workers: how far each worker is, and which workers the
leader still waits for.

    WORKING ──its last report──▶ FINISHED ──its fold──▶ FOLDED ──its files──▶ HERE
       │                            │                     │
       └────────────────────────────┴──────────┬──────────┘
                                               └──gone, or cannot, or its time is over──▶ LOST

    the end:   asks all to finish   asks all for folds    fetches files     is over
    waits for: those WORKING        those FINISHED        those FOLDED      nobody

Rules
- The end of a run has several steps, one after the other. Each step waits for the workers in one
  state. A step is over when no worker is in the state of the step any more. If a worker dies, the
  step no longer waits for this worker, but it still waits for all other workers.
- The states HERE and LOST are final. A message from a worker has no effect if the worker is already
  HERE or LOST. If the same message arrives a second time, it has no effect. No worker can skip a
  state.
- If a worker joins after the end has begun, the leader does not wait for this worker.
"""

from collections.abc import Collection, Iterable
from enum import IntEnum


class Progress(IntEnum):
    """How far one worker is in the steps that end a run."""

    WORKING = 0
    FINISHED = 1
    FOLDED = 2
    HERE = 3
    LOST = 4


FINAL = (Progress.HERE, Progress.LOST)


class Ending:
    """The end of a run. It begins when this object is created, and it tracks the progress of each
    worker.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self._progress = dict.fromkeys(nodes, Progress.WORKING)

    # This method checks all progress. Locust's messages may come twice or late, and a LOST worker
    # may still send messages. Without the check, a LOST worker would come back, and the end would
    # wait for it again. Each step of the end waits for one state, and fetches data of the workers
    # in this state. If a worker could skip the state, its data would be missing.
    def note(self, node: str, progress: Progress) -> bool:
        """Record the new progress of a worker, and return whether it was accepted.

        Progress is not accepted if it is late or repeated, or if the worker is unknown.
        """
        before = self._progress.get(node)
        if before is None or before in FINAL:
            return False
        if progress is not Progress.LOST and progress != before + 1:
            return False
        self._progress[node] = progress
        return True

    def progress(self, node: str) -> Progress | None:
        """Return the progress of a worker, or None if the leader does not wait for this worker."""
        return self._progress.get(node)

    def at(self, progress: Progress) -> list[str]:
        """Return the workers whose progress is exactly `progress`."""
        return [node for node, reached in self._progress.items() if reached is progress]

    def lose(self, nodes: Collection[str]) -> None:
        """Mark these workers as LOST, so that the leader no longer waits for them."""
        for node in nodes:
            self.note(node, Progress.LOST)
