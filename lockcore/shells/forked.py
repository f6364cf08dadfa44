"""What a fork must not inherit: *an engine in a child process → an engine that refuses to be used*.

Rules: parent and child would share sockets and repeat owner tokens. Marking costs nothing per operation.
"""

from __future__ import annotations

import os
from weakref import WeakSet

from lockcore.engine import Engine

_ENGINES: WeakSet[Engine] = WeakSet()


def forget_after_fork(engine: Engine) -> None:
    """From now on `engine` counts as foreign in every child of this process."""
    _ENGINES.add(engine)


def _mark_foreign() -> None:
    for engine in _ENGINES:
        engine.make_foreign()


os.register_at_fork(after_in_child=_mark_foreign)
