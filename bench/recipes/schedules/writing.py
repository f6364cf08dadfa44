"""Stale writes: *a client paused past the end of its lease, then writing → accepted or rejected by a register*.

Source: bench.recipes.fencing.
"""

from __future__ import annotations

from bench.recipes.fencing import FencedLease, FencingRegister, OwnerRegister
from bench.recipes.instance import Instance
from bench.recipes.schedules.shown import Shown
from bench.recipes.schedules.stage import SHORT_MS, Stage

WRITES = 20


def stale_write(stage: Stage) -> Shown:
    """A client is paused until another holds the lock and has written; then it writes, 20 times.

    With fencing tokens: a `FencingRegister`. Else an `OwnerRegister`, once marked before the pause and once after it,
    which is what it cannot catch.
    """
    first, second = stage.client(fencing=True), stage.client(fencing=True)
    instance = Instance(0, stage.urls[0], stage.settings)
    try:
        first.acquire(SHORT_MS)
        register = OwnerRegister(instance, stage.register_key)
        if not isinstance(first.lease, FencedLease):
            register.mark(first.lease)
        stage.until_ended(first.lease)
        second.acquire()
        if isinstance(first.lease, FencedLease):
            return _fenced(stage, FencingRegister(instance, stage.register_key))
        register.mark(second.lease)
        assert register.write(second.lease, "new")
        marked_before = sum(not register.write(first.lease, "stale") for _ in range(WRITES))
        register.mark(first.lease)
        marked_after = sum(not register.write(first.lease, "stale") for _ in range(WRITES))
    finally:
        instance.close()
    figures = {"rejected": marked_before / WRITES, "rejected_marked_after_the_pause": marked_after / WRITES}
    return Shown(marked_before < WRITES, figures, stage.report())


def _fenced(stage: Stage, register: FencingRegister) -> Shown:
    first, second = (client.lease for client in stage.clients)
    assert isinstance(first, FencedLease)
    assert isinstance(second, FencedLease)
    assert register.write(first, "early")  # nobody later has written: it does no harm
    assert register.write(second, "new")
    rejected = sum(not register.write(first, "stale") for _ in range(WRITES))
    kept = register.write(second, "newer")
    return Shown(rejected < WRITES or not kept, {"rejected": rejected / WRITES}, stage.report())
