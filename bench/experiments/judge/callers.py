"""Defines rows about the rights of callers. Some rows test one caller that makes several requests.
Other rows test several holders at once.
"""

from bench.experiments.judge.party import RESOURCE, HangsError, Party
from bench.experiments.judge.result import seconds_text
from bench.experiments.judge.row import RowFinding, need
from bench.experiments.judge.stage import JudgeStage
from lockcore.clock import NS_PER_S, monotonic_ns

# A client that has not answered after this time is waiting.
WAITS_S = 3.0


def together(stage: JudgeStage) -> RowFinding:
    """Several clients ask for the lock, and all these clients may hold the lock together. For a
    shared lock, the clients are two readers. For a semaphore, the number of clients is the number
    of allowed holders.
    """
    make = stage.reader if stage.is_shared else stage.party
    number = 2 if stage.is_shared else stage.capacity
    for held, client in enumerate([make() for _ in range(number)]):
        if not _is_granted(client, RESOURCE):
            return RowFinding(f"{number} clients may hold the lock at once, but only {held} got it")
    return RowFinding(remark=f"{number} clients had the lock at once")


def writer_beside_reader(stage: JudgeStage) -> RowFinding:
    """A reader has the lock, and a writer asks for it."""
    return _beside(stage.reader(), stage.party(), "a writer gets the lock while a reader holds it")


def reader_beside_writer(stage: JudgeStage) -> RowFinding:
    """A writer has the lock, and a reader asks for it."""
    return _beside(
        stage.party(), stage.reader(), "a reader is granted the lock that a writer holds"
    )


def _beside(holder: Party, other: Party, fault: str) -> RowFinding:
    need(holder.acquire().ok, "the first client was granted the lock")
    is_second = _is_granted(other, RESOURCE) and monotonic_ns() < holder.until_ns
    return RowFinding(fault if is_second else "")


def same_caller(stage: JudgeStage) -> RowFinding:
    """A client asks for the lock that it already holds."""
    client = stage.party()
    need(client.acquire().ok, "the client was granted the lock")
    ends_ns = client.until_ns
    try:
        again = client.acquire()
    except HangsError as error:
        return RowFinding(remark=f"a holder that requests its lock again waits for itself: {error}")
    if not again.ok:
        return RowFinding(
            remark=f"a holder that requests its lock again is refused: {again.error or 'no'}"
        )
    if client.operations[-1].granted_ns >= ends_ns:
        return RowFinding(
            remark="if a holder requests its lock again, it waits until its first lease has ended"
        )
    client.release()
    left = "leaves the lock held" if any(stage.keys()) else "frees the lock"
    return RowFinding(
        remark=f"if a holder requests its lock again, it gets a second lease; one release {left}"
    )


def several_names(stage: JudgeStage) -> RowFinding:
    """A client locks two names. Then two other clients lock one name each. Each of these two
    clients then asks for the name that the other client holds.
    """
    one = stage.party()
    first = stage.party()
    second = stage.party()
    need(one.acquire(resource="ordered-1").ok, "the client was granted the lock")
    if not _is_granted(one, "ordered-2"):
        return RowFinding(remark="a client that holds one lock does not get a second lock")
    need(first.acquire(resource="crossed-1").ok, "the client was granted the lock")
    need(second.acquire(resource="crossed-2").ok, "the other client was granted the lock")
    begun_ns = monotonic_ns()
    first.begin_acquire(resource="crossed-2")
    second.begin_acquire(resource="crossed-1")
    granted = [_has_answered(first), _has_answered(second)]
    took_s = (monotonic_ns() - begun_ns) / NS_PER_S
    ttl_ms = stage.ttl_ms
    if any(granted):
        after = ", when a TTL had ended," if ttl_ms and took_s * 1000 > ttl_ms / 2 else ""
        ending = f"after {took_s:.1f} s{after} one client got both locks"
    else:
        until = "for ever" if ttl_ms is None else f"until a TTL of {seconds_text(ttl_ms)} ends"
        ending = (
            f"neither client got its second lock within {took_s:.1f} s; both clients may wait "
            f"{until}"
        )
    return RowFinding(
        remark="one client may hold two locks. Two clients took two locks in opposite orders, and "
        f"{ending}. Take locks in the same order everywhere"
    )


def _is_granted(client: Party, resource: str) -> bool:
    client.begin_acquire(resource=resource)
    return _has_answered(client)


def _has_answered(client: Party) -> bool:
    """Return whether the client gets the lock within `WAITS_S`."""
    try:
        return client.acquired(WAITS_S).ok
    except HangsError:
        return False
