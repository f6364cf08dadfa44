"""Stale writes: *a client paused past the end of its lease, then writing → accepted or rejected by a register*.

Source: bench.recipes.fencing.
"""

from __future__ import annotations

from bench.recipes.fencing import FencedLease
from bench.recipes.protected import Protected
from bench.recipes.schedules.shown import Shown
from bench.recipes.schedules.stage import SHORT_MS, SLACK_MS, Client, Stage
from lockcore.clock import NS_PER_MS, monotonic_ns

WRITES = 20


def stale_write(stage: Stage) -> Shown:
    """A holder is paused until another has the lock and has written; then it writes, 20 times.

    Without fencing tokens it is done a second time, with the pause before the holder marks the register: what an
    owner's mark cannot catch.
    """
    early = stage.client(fencing=True)
    early.acquire(SHORT_MS)
    stage.until_ended(early.lease)
    figures: dict[str, float | None] = {"rejected": _rejected(stage, early)}
    if not isinstance(early.lease, FencedLease):
        stage.unlink()
        late = stage.client("after-grant", fencing=True)
        late.begin_acquire(SHORT_MS)
        stage.until_ns(monotonic_ns() + (SHORT_MS + SLACK_MS) * NS_PER_MS)
        figures["rejected_marked_after_the_pause"] = _rejected(stage, late)
    return Shown(figures["rejected"] != 1, figures, stage.report())


def _rejected(stage: Stage, stale: Client) -> float:
    """Which share of the writes of a client whose lease is over are rejected, once its successor has written."""
    successor = stage.client(fencing=True)
    successor.acquire()
    recipe = successor.recipe
    assert isinstance(recipe, Protected)
    assert recipe.write(successor.lease, "new")
    stale.finish()
    assert isinstance(stale.recipe, Protected)
    writes = [stale.recipe.write(stale.lease, "stale") for _ in range(WRITES)]
    successor.release()
    return writes.count(False) / WRITES
