"""What a fork must not inherit: *a driver in a child process → a driver that refuses to be used*.

Rules: parent and child would share sockets and repeat owner tokens. Marking costs nothing per operation.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """Whatever must know that it is now in another process."""

    def make_foreign(self) -> None:
        """This process is a child of the one that made it."""


_KNOWN: WeakSet[Forkable] = WeakSet()


def forget_after_fork(driver: Forkable) -> None:
    """From now on `driver` counts as foreign in every child of this process."""
    _KNOWN.add(driver)


def _mark_foreign() -> None:
    for driver in _KNOWN:
        driver.make_foreign()


os.register_at_fork(after_in_child=_mark_foreign)
