"""Measures how long a lock outlives its holder. One row counts how many consecutive renewals may
fail before the lock ends. The other rows measure the time until the next client gets the lock.
"""

import signal
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from bench.experiments.judge.contention import REST_S
from bench.experiments.judge.needs import LONGEST_TTL_MS
from bench.experiments.judge.party import RESOURCE, HangsError, Party
from bench.experiments.judge.result import RowFigure, seconds_text
from bench.experiments.judge.row import RENEWAL_EVERY, RowFinding, need
from bench.experiments.judge.stage import JudgeStage
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

# The time (s) between two looks at the time to live of a key.
LOOK_S = 0.01
# The judge waits for an answer longer than a takeover may take, by this time (s).
GRANT_S = 10.0
# A place that another client gets sooner than this was given away at once.
LEAST_PLACE_MS = 500


def renewal(stage: JudgeStage) -> RowFinding:
    """One client holds the lock while the judge watches the time to live of the lock's keys."""
    ttl_ms = stage.require_ttl()
    holder = stage.party()
    other = stage.party()
    need(holder.acquire().ok, "the client was granted the lock")
    times = _renewals(stage, ttl_ms)
    if not times:
        remark = f"the lock never renews a lease: it ends {seconds_text(ttl_ms)} after its grant"
        return RowFinding(remark=remark, figures=(RowFigure("renewals that may fail", 0.0, ""),))
    every_ms = statistics.median(b - a for a, b in pairwise([0.0, *times]))
    may_fail = max(0, int((ttl_ms - 1) // every_ms) - 1)
    figures = (
        RowFigure(RENEWAL_EVERY, every_ms / 1000, "s"),
        RowFigure("renewals that may fail", float(may_fail), ""),
    )
    lost = "renewal" if may_fail == 1 else "renewals"
    remark = (
        f"the lock renews a lease of {seconds_text(ttl_ms)} every {every_ms / 1000:.2g} s; the "
        f"lock survives {may_fail} failed {lost} in a row; after one more failure, a second "
        "client gets the lock"
    )
    if not may_fail:
        return RowFinding(f"{remark}; renew at least three times in a TTL", figures=figures)
    # A holder that is frozen for k + ½ renewal intervals has missed k renewals.
    holder.pause()
    time.sleep((may_fail + 0.5) * every_ms / 1000)
    need(any(stage.keys()), f"after {may_fail} missed {lost}, the lock's keys still existed")
    need(stage.until_free(), "the lock's keys expired")
    is_second = other.acquire().ok
    holder.resume()
    need(is_second, "a second client was granted the lock")
    return RowFinding(remark=f"{remark} (the judge tested both cases)", figures=figures)


def _renewals(stage: JudgeStage, ttl_ms: int) -> list[float]:
    """Watch the lock's keys for one and a half TTLs. Return the times at which the time to live of
    the keys increased. The times are in ms since the start of the watch.
    """
    begun_ns = monotonic_ns()
    times = []
    last_ms = stage.left_ms()
    while (now_ms := (monotonic_ns() - begun_ns) / NS_PER_MS) < 1.5 * ttl_ms:
        left_ms = stage.left_ms()
        if left_ms < -1 and last_ms < -1:
            break
        if left_ms > last_ms + 5:
            times.append(now_ms)
        last_ms = left_ms
        stage.rest(LOOK_S)
    return times


def takeover(
    how: str, end: Callable[[JudgeStage, Party], None], *, proxied: bool = False
) -> Callable[[JudgeStage], RowFinding]:
    """Return a function that plays a row. In this row, one client holds several locks, and the
    function `end` ends this client. Then other clients wait for these locks.
    """

    def play(stage: JudgeStage) -> RowFinding:
        ttl_ms = stage.ttl_ms if stage.ttl_ms is not None else 0
        if ttl_ms:
            stage.require_ttl()
        holder = stage.party_behind_proxy() if proxied else stage.party()
        names = [f"{RESOURCE}-{number}" for number in range(stage.takeovers)]
        others = {name: stage.party() for name in names}
        held = [name for name in names if _has(holder, name)]
        need(held, "the first client was granted the lock")
        end(stage, holder)
        ended_ns = monotonic_ns()
        patience_s = 2 * ttl_ms / 1000 + 5
        with ThreadPoolExecutor(len(held)) as pool:
            waits = [
                pool.submit(_taken_over, stage, others[name], name, patience_s) for name in held
            ]
            granted = [wait.result() for wait in waits]
        if not all(granted):
            return RowFinding(
                f"nobody else got the lock within {patience_s:.0f} s after the holder {how}"
            )
        times_s = [(granted_ns - ended_ns) / NS_PER_S for granted_ns in granted]
        half_s = statistics.median(times_s)
        figures = (
            RowFigure("takeovers", float(len(times_s)), ""),
            RowFigure("takeover p50", half_s, "s"),
            RowFigure("longest takeover", max(times_s), "s"),
        )
        beside = f", with a TTL of {seconds_text(ttl_ms)}" if ttl_ms else ""
        return RowFinding(
            remark=f"the next client gets the lock after {half_s:.2f} s{beside} (median of "
            f"{len(times_s)} takeovers; longest: {max(times_s):.2f} s)",
            figures=figures,
        )

    return play


def place_ms(stage: JudgeStage) -> float | None:
    """Measure how long (ms) a semaphore waits until it gives the place of a frozen holder to
    another client. Return None if the time cannot be measured. Frozen holders take all places, and
    one more client waits for a place. The measurement begins before the first request of a holder.
    So the result is a little longer than the time for which the semaphore reserves a place.
    """
    ttl_ms = stage.ttl_ms
    if ttl_ms is None or ttl_ms > LONGEST_TTL_MS:
        return None
    stage.clear()
    other = stage.party()
    holders = [stage.party() for _ in range(stage.capacity)]
    begun_ns = monotonic_ns()
    for holder in holders:
        if not _has(holder, RESOURCE):
            return None
        holder.pause()
    granted_ns = _taken_over(stage, other, RESOURCE, ttl_ms / 1000 + GRANT_S)
    lasted_ms = (granted_ns - begun_ns) / NS_PER_MS
    return lasted_ms if lasted_ms >= LEAST_PLACE_MS else None


def _has(holder: Party, name: str) -> bool:
    """Return whether the holder also gets the lock called `name`. Some locks allow only one name
    per caller.
    """
    try:
        return holder.acquire(resource=name).ok
    except HangsError:
        return False


def _taken_over(stage: JudgeStage, other: Party, name: str, patience_s: float) -> int:
    """Return the time (monotonic ns) at which `other` got the lock. The former holder cannot
    release this lock any more. The result is 0 if `other` never got the lock.
    """
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < patience_s:
        other.begin_acquire(resource=name)
        try:
            reply = other.acquired(patience_s + GRANT_S)
        except HangsError:
            break
        if reply.ok:
            return other.operations[-1].granted_ns
        stage.rest(REST_S)
    return 0


def terminate(stage: JudgeStage, party: Party) -> None:
    """End the holder with SIGTERM, as an orchestrator does."""
    party.signal(signal.SIGTERM)
    stage.note("SIGTERM", "A")


def kill(stage: JudgeStage, party: Party) -> None:
    """End the holder at once with SIGKILL."""
    party.signal(signal.SIGKILL)
    stage.note("SIGKILL", "A")


def freeze(_stage: JudgeStage, party: Party) -> None:
    """Freeze the holder."""
    party.pause()


def cut(stage: JudgeStage, _party: Party) -> None:
    """Disconnect the holder from the network."""
    stage.cut_network()
