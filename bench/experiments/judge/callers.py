"""Rows about the rights of callers: one caller with several requests, and several holders at once.
*A stage → a finding*."""

from bench.experiments.judge.party import RESOURCE, HangsError, Party
from bench.experiments.judge.result import seconds_text
from bench.experiments.judge.row import RowFinding, need
from bench.experiments.judge.stage import JudgeStage
from lockcore.clock import NS_PER_S, monotonic_ns

# A client that has not answered after this time is waiting.
WAITS_S = 3.0


def together(stage: JudgeStage) -> RowFinding:
    """Clients ask for the lock, and all of them may hold it together. They are readers, or the n
    holders of a semaphore."""
    make = stage.reader if stage.is_shared else stage.party
    number = 2 if stage.is_shared else stage.capacity
    for held, client in enumerate([make() for _ in range(number)]):
        if not _is_granted(client, RESOURCE):
            return RowFinding(f"{number} may hold it at once, and after {held} nobody else gets it")
    return RowFinding(remark=f"{number} clients have it at once")


def writer_beside_reader(stage: JudgeStage) -> RowFinding:
    """A reader has the lock, and a writer asks for it."""
    return _beside(stage.reader(), stage.party(), "a writer is granted what a reader holds")


def reader_beside_writer(stage: JudgeStage) -> RowFinding:
    """A writer has the lock, and a reader asks for it."""
    return _beside(stage.party(), stage.reader(), "a reader is granted what a writer holds")


def _beside(holder: Party, other: Party, fault: str) -> RowFinding:
    need(holder.acquire().ok, "the first client was granted")
    is_second = _is_granted(other, RESOURCE) and monotonic_ns() < holder.until_ns
    return RowFinding(fault if is_second else "")


def same_caller(stage: JudgeStage) -> RowFinding:
    """A client asks for the lock that it already holds."""
    client = stage.party()
    need(client.acquire().ok, "the client was granted")
    ends_ns = client.until_ns
    try:
        again = client.acquire()
    except HangsError as error:
        return RowFinding(remark=f"a caller that asks twice waits for itself: {error}")
    if not again.ok:
        return RowFinding(remark=f"a caller that asks twice is refused: {again.error or 'no'}")
    if client.operations[-1].granted_ns >= ends_ns:
        return RowFinding(remark="a caller that asks twice waits until its own lease has ended")
    client.release()
    left = "keeps it" if any(stage.keys()) else "gives it back"
    return RowFinding(remark=f"a caller that asks twice is granted twice; one release {left}")


def several_names(stage: JudgeStage) -> RowFinding:
    """A client takes two names. Then two clients take two names in opposite orders."""
    one = stage.party()
    first = stage.party()
    second = stage.party()
    need(one.acquire(resource="ordered-1").ok, "the client was granted")
    if not _is_granted(one, "ordered-2"):
        return RowFinding(remark="a client that has one name gets no second one")
    need(first.acquire(resource="crossed-1").ok, "the client was granted")
    need(second.acquire(resource="crossed-2").ok, "the other client was granted")
    begun_ns = monotonic_ns()
    first.begin_acquire(resource="crossed-2")
    second.begin_acquire(resource="crossed-1")
    granted = [_has_answered(first), _has_answered(second)]
    took_s = (monotonic_ns() - begun_ns) / NS_PER_S
    ttl_ms = stage.ttl_ms
    if any(granted):
        after = " when a TTL has ended," if ttl_ms and took_s * 1000 > ttl_ms / 2 else ""
        ending = f"one has both{after} after {took_s:.1f} s"
    else:
        until = "for ever" if ttl_ms is None else f"until a TTL of {seconds_text(ttl_ms)} ends"
        ending = f"neither gets its second one within {took_s:.1f} s, and both may wait {until}"
    return RowFinding(
        remark="one client may hold two names. Of two that take them in opposite orders "
        f"{ending}: take names in one order everywhere"
    )


def _is_granted(client: Party, resource: str) -> bool:
    client.begin_acquire(resource=resource)
    return _has_answered(client)


def _has_answered(client: Party) -> bool:
    """Return whether the client is granted its request within a short wait."""
    try:
        return client.acquired(WAITS_S).ok
    except HangsError:
        return False
