"""What becomes of a holder and its writes: *it oversleeps, stalls, dies, fails, writes late → who is next*.

A `Victim` is a client that is a process of its own, which is this file started by name: it acquires, says `standing`
where its gate is closed, and waits for its death. It ends with its parent, so none outlives a schedule.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.experiments.safety_matrix.row import sleep_until
from bench.recipes.fencing import FencedLease, Protected
from bench.recipes.plain import PlainRecipe
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe
from bench.topology.child import Child, orders, say
from bench.topology.fleet import wait_until
from lockcore import Lease
from lockcore.clock import NS_PER_MS, monotonic_ns
from tests.schedules.stage import (
    PATIENCE_S,
    QUORUMS,
    RESOURCE,
    SHORT_MS,
    SLACK_MS,
    TIMESTAMPS,
    Client,
    Gate,
    Shown,
    Stage,
    schedule,
    violated,
)

CHAIN = 5  # how far an overstay is followed
GAPS = ("after-check", "after-get", "before-release")  # where a release can be held up, the latest first
KILLS = 2
PATIENCE_MS = 10_000  # a key that will end is waited for, however busy the machine is


@schedule(
    "a holder that outlived its TTL deletes its successor's lock",
    ("set-nx-fixed", "setnx-expire", "company-2013"),
    ("set-nx-lua", "set-nx-get-del", "timestamp-getset", "multi-write", "backoff", *QUORUMS),
)
def overslept_holder(stage: Stage) -> Shown:
    """A holder outlives its TTL, another is granted, the first gives back: and so on, as far as it goes."""
    first, second = stage.client(), stage.client()
    first.acquire(SHORT_MS)
    stage.until_ended(first.lease)
    second.acquire()
    chain, leaving, holding = 0, first, second
    while chain < CHAIN:
        leaving.release()
        following = stage.client()
        if not isinstance(following.acquire(), Lease):
            break
        chain, leaving, holding = chain + 1, holding, following
    report = stage.report()
    return violated(stage, chain=chain, foreign_deletes=report.foreign_deletes, overstays=report.client_overstays)


@schedule(
    "a release that stalls after its check deletes its successor's lock",
    ("set-nx-get-del", "set-nx-fixed", "setnx-expire", *TIMESTAMPS),
    ("set-nx-lua", "backoff", *QUORUMS),
)
def gap_in_release(stage: Stage) -> Shown:
    """A release stalls at its last pause point until the key has expired and another is granted; then a third asks."""
    gap = next(point for point in GAPS if point in stage.about.all_points)
    first, second, third = stage.client(gap), stage.client(), stage.client()
    first.acquire(SHORT_MS)
    assert first.begin(first.release)
    stage.until_ended(first.lease)
    second.acquire()
    first.finish()
    third.acquire()
    return violated(stage)


@schedule(
    "a dead holder holds for ever", ("setnx", "get-set"), ("set-nx-lua", "timestamp-getset", "watchdog", "redlock")
)
def killed_holder(stage: Stage) -> Shown:
    """A holder's process is killed: can anybody lock again, and after how long?"""
    with Victim(stage.recipe.name, stage.urls, stage.settings, SHORT_MS, "after-grant") as victim:
        victim.kill()
    killed_ns = monotonic_ns()
    stuck = stage.ttls_ms().count(-1)
    recovered = stage.client().acquire(SHORT_MS, 3 * SHORT_MS if stuck else PATIENCE_MS)
    recovery_ms = (recovered.granted_ns - killed_ns) / NS_PER_MS if isinstance(recovered, Lease) else None
    return Shown(recovery_ms is None, {"keys_without_end": stuck, "recovery_ms": recovery_ms}, stage.report())


@schedule("a key without end, left by a client that died while acquiring", ("setnx-expire",), ("set-nx-lua",))
def killed_between(stage: Stage) -> Shown:
    """A client's process is killed between its SETNX and its EXPIRE, or once it is granted if it has no such gap."""
    point = "after-setnx" if "after-setnx" in stage.about.points else "after-grant"
    orphans = 0
    for _ in range(KILLS):
        with Victim(stage.recipe.name, stage.urls, stage.settings, SHORT_MS, point) as victim:
            victim.kill()
        orphans += stage.ttls_ms().count(-1)
        stage.unlink()
    return Shown(orphans > 0, {"orphan_keys_per_kill": orphans / KILLS}, stage.report())


@schedule("an exception in the body leaks the lock", ("backoff",), ("set-nx-lua",))
def raise_in_body(stage: Stage) -> Shown:
    """The work under the lock raises."""
    recipe = stage.client().recipe
    assert isinstance(recipe, PlainRecipe)

    bodies: list[Lease] = []

    def body(lease: Lease) -> None:
        bodies.append(lease)
        raise ArithmeticError

    with suppress(ArithmeticError):
        recipe.run(RESOURCE, SHORT_MS, 0, body)
    leaks = sum(ttl_ms != -2 for ttl_ms in stage.ttls_ms())
    return Shown(leaks > 0, {"leaked_locks": leaks}, stage.report(), {"the body ran": bool(bodies)})


@schedule("a late renewal keeps a stranger's lock", ("watchdog-naive",), ("watchdog",))
def paused_watchdog(stage: Stage) -> Shown:
    """A client is paused, watchdog and all, until its lock is another's; then its renewal goes out."""
    first, second = stage.client("before-renew"), stage.client()
    first.acquire(SHORT_MS)
    first.gate.is_reached()
    stage.until_ended(first.lease)
    ended_ns = first.lease.valid_until_ns
    second.acquire()
    before_ms = stage.ttls_ms()[0]
    first.gate.open()
    figures = first.recipe.figures
    wait_until(
        lambda: figures.get("lost_leases", 0) > 0 or first.lease.valid_until_ns != ended_ns,
        PATIENCE_S,
        "the watchdog did nothing",
    )
    foreign = int(stage.ttls_ms()[0] not in range(before_ms - SHORT_MS, before_ms + 1))
    return violated(
        stage,
        foreign_renewals=foreign,
        late_renewals=figures.get("late_renewals", 0),
        noticed_late_ms=figures.get("noticed_late_ms") if figures.get("lost_leases") else None,
    )


WRITES = 20


@schedule("what is protected takes the write of a client whose lease is over", (), ("set-nx-lua", "redlock"))
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
        late.begin(partial(late.acquire, SHORT_MS))
        sleep_until(monotonic_ns() + (SHORT_MS + SLACK_MS) * NS_PER_MS)
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


# -- a client to be killed --------------------------------------------------------------------------------------------

STANDING = "standing"
STANDS_S = 60.0  # a process is started and a lock is taken


@dataclass(frozen=True, slots=True)
class VictimOrder:
    """What a victim is told: a lock, and where it is to stand."""

    recipe: str
    urls: Sequence[str]
    key_prefix: str
    folder: Path | None
    ttl_ms: int
    point: str


class Victim(Child):
    """A running victim, which stands at `point` when the constructor returns.

    Raises EnvironmentNotReadyError when it did not come to that point.
    """

    def __init__(self, recipe: str, urls: Sequence[str], settings: RecipeSettings, ttl_ms: int, point: str) -> None:
        super().__init__(f"a client of {recipe}", "tests.schedules.holding")
        try:
            self.tell(VictimOrder(recipe, urls, settings.key_prefix, settings.folder, ttl_ms, point))
            if (said := self.hear(str, STANDS_S)) != STANDING:
                raise EnvironmentNotReadyError(f"{self.name} did not come to {point}: {said}")
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """SIGKILL: nothing more is sent."""
        self.process.kill()
        self.close()


def _stand(order: VictimOrder) -> None:
    def gate(reached: str) -> None:
        if reached == order.point:
            say(STANDING)
            threading.Event().wait()

    told = RecipeSettings(key_prefix=order.key_prefix, folder=order.folder, gate=gate)
    result = Client(find_recipe(order.recipe).connect(order.urls, told), Gate()).acquire(order.ttl_ms)
    say(f"it got past: {result!r}")


def main() -> None:
    """Obey the order, and end when stdin does."""
    told = orders(VictimOrder)
    order = next(told)
    threading.Thread(target=lambda: (list(told), os._exit(0)), daemon=True).start()
    _stand(order)  # in the main thread: an error there ends the process, whose last words its parent reads


if __name__ == "__main__":
    main()
