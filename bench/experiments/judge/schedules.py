"""Defines schedules, which are courses of events that every lock must survive. Each schedule is a
function that names its source and the one fault that it looks for.

The commands `lockbench judge` and `lockbench audit` play schedules as rows. The function returns a
text that describes the fault, or "" if there is no fault. `need` asserts each precondition. If a
precondition is not met, the result is unknown. A schedule must force the sequence of its steps. For
this purpose, the schedule freezes servers and clients, and waits until a socket has an unread
request. A schedule uses the clock only to wait for the end of a lease. In an audit, each library
keeps its default settings, except for the TTL.

Users see the docstring of a schedule, because it is the description of the row's course of events.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.party import (
    LONG_MS,
    PATIENCE_S,
    RESOURCE,
    SHORT_MS,
    WAIT_MS,
    HangsError,
    NotApplicableError,
    Party,
)
from bench.experiments.judge.row import (
    ENDS,
    EXCLUSION,
    OWNER,
    RENEWAL,
    SERVERS,
    JudgeRow,
    OutlivedError,
    RowFinding,
    UnmetError,
    need,
)
from lockcore.clock import NS_PER_S, monotonic_ns

REDLOCK = "Redis, Distributed Locks"
KLEPPMANN = "M. Kleppmann, How to do distributed locking (2016)"
SANFILIPPO = "S. Sanfilippo, Is Redlock safe? (2016)"
KEPT = "a key stays for the rest of the TTL, although nobody has the lock"
# After this time no key of a released lock may remain. The long TTL is five times as long.
CLEAN_S = 2.0
DOWN_S = 25.0
# A client that asks at least this long before the end of a lease is granted a free place in time.
SEEN_S = 0.5
STEPS = 5
CLOCK_S = 60


Course = Callable[[Stage], str]
SCHEDULES: dict[str, JudgeRow[Stage]] = {}


def schedule(
    group: str,
    question: str,
    source: str,
    least: int = 1,
    *,
    is_safety: bool = False,
    may_wait: bool = False,
) -> Callable[[Course], Course]:
    """Turn the decorated function into a row. The function's name becomes the row's name, and the
    docstring becomes the row's course of events.
    """

    def decorate(play: Course) -> Course:
        name = play.__name__.replace("_", "-")
        SCHEDULES[name] = JudgeRow(
            group,
            name,
            question,
            lambda stage: RowFinding(play(stage)),
            least,
            is_safety,
            may_wait,
            about=" ".join((play.__doc__ or "").split()),
            source=source,
        )
        return play

    return decorate


def _kept(stage: Stage, fault: str) -> str:
    """Return `fault` if keys still prevent the next grant although nobody holds the lock. Otherwise
    return "".
    """
    return "" if stage.until_lockable(CLEAN_S) else fault


@schedule(SERVERS, "a stopped minority stops everybody", REDLOCK, least=3)
def one_stopped(stage: Stage) -> str:
    """A minority of the instances is frozen. A client locks and releases. The minority continues.
    No key may remain."""
    client = stage.party()
    stage.stop(stage.minority)
    return _without_a_minority(stage, client, "stopped")


@schedule(SERVERS, "a dead minority stops everybody", REDLOCK, least=3)
def one_killed(stage: Stage) -> str:
    """A minority of the instances is killed. A client locks and releases. No key may remain on the
    other instances."""
    client = stage.party()
    stage.kill(stage.minority)
    return _without_a_minority(stage, client, "dead")


def _without_a_minority(stage: Stage, client: Party, how: str) -> str:
    reply = client.acquire()
    if not reply.ok:
        keys_left = sum(map(bool, stage.keys()[: stage.minority.start]))
        left = (
            f"; a key stays on {keys_left} instances for the rest of the TTL" if keys_left else ""
        )
        return (
            f"while a minority of the {stage.instances} instances is {how}, no client gets "
            f"the lock: {reply.error or 'the client gave up'}{left}"
        )
    reply = client.release()
    stage.cont([index for index in stage.minority if how == "stopped"])
    if not reply.ok:
        return (
            f"a release fails while a minority of the {stage.instances} instances is {how}: "
            f"{reply.error or 'it reports that the client did not hold the lock'}"
        )
    return _kept(stage, "keys stay after the release for the rest of the TTL")


@schedule(EXCLUSION, "a grant whose TTL has passed", REDLOCK, is_safety=True, may_wait=True)
def paused_in_acquire(stage: Stage) -> str:
    """A client sends SETs to frozen instances, and then the client is frozen, too. The instances
    continue and execute the SETs. The client's keys expire, and another client gets the lock. Then
    the first client continues and reads the replies too late.
    """
    return _late_replies(stage, stage.party(), lambda: None)


@schedule(
    EXCLUSION,
    "a client measures the validity with a clock that was set back",
    SANFILIPPO,
    is_safety=True,
    may_wait=True,
)
def clock_back(stage: Stage) -> str:
    """This row repeats the course of events of the row `paused-in-acquire`. In addition, the
    client's wall clock is set back by a minute while the client is frozen. NTP or an operator may
    set back a clock in this way.
    """
    client = stage.party_by_clock()
    return _late_replies(stage, client, lambda: stage.shift_clock(client, -CLOCK_S))


def _late_replies(stage: Stage, client: Party, meanwhile: Callable[[], None]) -> str:
    other = stage.party()
    _until_set(stage, client)
    meanwhile()
    need(stage.until_free(), "the keys of the first client expired")
    need(other.acquire().ok, "the other client was granted the lock")
    client.resume()
    reply = client.acquired()
    if not reply.ok:
        return _in_time(client)
    _need_held(other)
    past = reply.valid_ms is not None and reply.valid_ms <= 0
    only = "; the client can see this only from the validity, which is 0 or less" if past else ""
    return (
        "the client gets a grant whose TTL has passed, although another client already holds "
        f"the lock{only}"
    )


def _until_set(stage: Stage, client: Party) -> int:
    """Make `client` lock for a short time. Freeze the client when the servers have executed its
    SET, but before it reads the reply. Return the number of requests that the client sent to a
    quorum so far. A client that reads a key before it writes the key has sent 2 requests.
    """
    stage.stop(stage.majority)
    client.begin_acquire(SHORT_MS)
    for step in range(1, STEPS + 1):
        need(stage.until_asked(stage.majority, client), "the client's SET was not yet answered")
        client.pause()
        stage.cont(stage.majority)
        if any(stage.keys()):
            return step
        stage.stop(stage.majority)
        client.resume()
    raise UnmetError("the client's SET was not yet answered")


def _steps_to_set(stage: Stage) -> int:
    """Return the number of requests that a client sends to a quorum from the start of an acquire to
    its SET. The SET counts, too. Return 1 if the client gave up before the judge could see the SET.
    """
    probe = stage.party()
    try:
        steps = _until_set(stage, probe)
        probe.resume()
    except UnmetError:
        _in_time(probe)
        steps = 1
        stage.cont(stage.majority)
    if probe.acquired().ok:
        probe.release()
    need(stage.until_free(2 * PATIENCE_S), "nobody has the lock")
    return steps


@schedule(SERVERS, "a SET that arrives after its client gave up", KLEPPMANN)
def late_set(stage: Stage) -> str:
    """A quorum of the instances is frozen until the client has given up. Then the instances execute
    the commands that they received."""
    client = stage.party()
    stage.stop(stage.majority)
    client.begin_acquire()
    need(stage.until_asked(stage.majority, client), "the client's SET was not yet answered")
    try:
        reply = client.acquired()
    except HangsError:
        reply = None
    stage.cont(stage.majority)
    if reply is None and client.acquired().ok:
        client.release()
    elif reply is not None and reply.ok:
        return "the client is granted the lock although no quorum answered"
    if stage.capacity > 1:
        return _kept(stage, KEPT)
    return _kept(
        stage, "a key stays although no client has the lock, so clients wait until its TTL ends"
    )


def _expired(stage: Stage) -> Party:
    """Return a frozen client whose lock has ended. The client is frozen so that it cannot extend
    its lock.
    """
    client = _granted(stage, SHORT_MS)
    client.pause()
    need(stage.until_free(), "the keys of the first client expired")
    return client


@dataclass(frozen=True, slots=True)
class Successors:
    """The clients that got the lock after another client's lease had ended. `keys` holds the lock's
    keys at that time. If the lock is a semaphore, `other` is an additional client. The schedule
    lets `other` ask for a place. If `other` gets a place, the semaphore has wrongly made a place
    free.
    """

    holders: Sequence[Party]
    keys: Sequence[str | None]
    other: Party | None = None


def _succeeded(stage: Stage) -> tuple[Party, Successors]:
    """Return a client whose lock has ended, and the next holders. The client was frozen and runs
    again.
    """
    client = _expired(stage)
    successors = _successors(stage)
    client.resume()
    return client, successors


def _successors(stage: Stage) -> Successors:
    """Start as many new holders as the lock allows, and return them with the keys of their
    locks.
    """
    other = stage.party() if stage.capacity > 1 else None
    # All clients start before the first grant, because a start takes a part of a short lease.
    holders = [stage.party() for _ in range(stage.capacity)]
    for holder in holders:
        need(holder.acquire(LONG_MS).ok, "the client was granted")
    return Successors(holders, stage.keys(), other)


def _granted(stage: Stage, ttl_ms: int = LONG_MS) -> Party:
    """Start one more client, make it acquire the lock, and return the client."""
    client = stage.party()
    need(client.acquire(ttl_ms).ok, "the client was granted the lock")
    return client


def _taken(stage: Stage, successors: Successors, fault: str) -> str:
    """Return `fault` if a successor has lost the lock. Otherwise return "".

    If a successor has lost a mutex, a key of the mutex belongs to another client or is gone. If an
    instance had no key at first, a new key on this instance does not count, because a late SET may
    have created the key. If a successor has lost its place in a semaphore, the semaphore grants a
    place to one more client. The semaphore's keys do not show the loss, because a correct release
    changes these keys, too.
    """
    first = successors.holders[0]
    if successors.other is not None:
        need(stage.place_ms is not None, "the judge knows how long a place in the semaphore lasts")
        _need_held(first)
        return fault if _enters(successors.other, first) else ""
    if all(was in (None, now) for was, now in zip(successors.keys, stage.keys(), strict=True)):
        return ""
    _need_held(first)
    return fault


def _enters(other: Party, first: Party) -> bool:
    """Return whether `other` gets a place before the lease of the first holder ends. Raises
    OutlivedError if this lease ended too soon after the request of `other`. In this case the
    schedule cannot show whether there was a free place.
    """
    asked_ns = monotonic_ns()
    other.begin_acquire()
    try:
        is_granted = other.acquired().ok
    except HangsError:
        return False
    if is_granted and other.operations[-1].granted_ns >= first.until_ns:
        if first.until_ns - asked_ns < SEEN_S * NS_PER_S:
            raise OutlivedError("the lock was still held")
        return False
    return is_granted


def _need_held(holder: Party) -> None:
    """Raise OutlivedError if the holder's lease has ended. On a busy machine the schedule may take
    longer than the TTL.
    """
    if monotonic_ns() >= holder.until_ns:
        raise OutlivedError("the lock was still held")


def _in_time(client: Party) -> str:
    """Return "" if the client was interrupted before its request could time out. Otherwise raise
    UnmetError.
    """
    need(not client.late, "the client was interrupted before it could time out")
    return ""


@schedule(OWNER, "a late release deletes another client's lock", REDLOCK, is_safety=True)
def release_after_expiry(stage: Stage) -> str:
    """The lease of a client ends, and another client gets the lock. Then the first client releases
    the lock.
    """
    client, successors = _succeeded(stage)
    client.release()
    return _taken(stage, successors, "a late release deletes the lock of the next holder")


@schedule(OWNER, "a release that compares and deletes in two steps", REDLOCK, is_safety=True)
def paused_in_release(stage: Stage) -> str:
    """A holder's release waits at frozen instances, and the holder is frozen, too. The instances
    continue, the lock ends, and another client gets it. Then the first client continues."""
    client = _granted(stage, SHORT_MS)
    everyone = range(stage.instances)
    stage.stop(everyone)
    client.begin_release()
    need(stage.until_asked(everyone, client), "the client's release was not yet answered")
    client.pause()
    stage.cont(everyone)
    need(stage.until_free(), "the keys of the first client expired")
    successors = _successors(stage)
    client.resume()
    client.answer()
    return _taken(stage, successors, "a late release deletes the lock of the next holder")


@schedule(RENEWAL, "an extension of a lock that has ended", REDLOCK)
def extend_after_expiry(stage: Stage) -> str:
    """The lease of a client ends. Then the client extends its lock. The schedule is played twice.
    In the first play, no client has the lock at the time of the extension. In the second play,
    another client has the lock at this time.
    """
    client = _expired(stage)
    client.resume()
    again = client.ask("extend", ttl_ms=LONG_MS).ok
    stage.clear()
    client, successors = _succeeded(stage)
    if client.ask("extend", ttl_ms=3 * LONG_MS).ok:
        _need_held(successors.holders[0])
        return "an extension succeeds although another client holds the lock"
    if violation := _taken(
        stage, successors, "a late extension changes the lock of the next holder"
    ):
        return violation
    return (
        "an extension succeeds after the lock has ended, and another client may have held the lock"
        if again
        else ""
    )


@schedule(RENEWAL, "an extension succeeds on fewer instances than a quorum", REDLOCK, least=3)
def extend_by_minority(stage: Stage) -> str:
    """A client holds the lock. All instances except a minority forget the lock, as after a restart
    without persistence. Then the client extends the lock.
    """
    client = _granted(stage)
    # A quorum may grant before the last SET has arrived. A SET after FLUSHALL would make a quorum
    # of keys again, and the extension would be right.
    stage.until_everywhere(CLEAN_S)
    stage.forget(range(stage.instances // 2 + 1))
    return (
        "an extension succeeds although only a minority of the instances has the lock"
        if client.ask("extend", ttl_ms=LONG_MS).ok
        else ""
    )


@schedule(OWNER, "a holder that does not notice that its lock ended during a pause", KLEPPMANN)
def paused_holder(stage: Stage) -> str:
    """A holder is frozen until its lock has ended and another client has the lock. Then the old
    holder continues. If the library has a call that checks a lock, the old holder calls it. At the
    end the old holder releases the lock.
    """
    client, successors = _succeeded(stage)
    try:
        believes = client.ask("held").ok
    except NotApplicableError:
        believes = None
    reply = client.release()
    if violation := _taken(stage, successors, "a late release deletes the lock of the next holder"):
        return violation
    if believes:
        _need_held(successors.holders[0])
        return "the client reports that it holds the lock while another client holds it"
    return (
        "no call checks the lock, and a release does not report whether the lock was still held"
        if believes is None and reply.ok
        else ""
    )


@schedule(
    SERVERS,
    "a lock that fails after a server has forgotten its scripts",
    "Redis, EVALSHA and SCRIPT FLUSH",
)
def script_flush(stage: Stage) -> str:
    """The servers forget all scripts (SCRIPT FLUSH) while a client holds a lock. The client
    releases the lock and takes it again."""
    client = _granted(stage)
    stage.flush_scripts()
    reply = client.release()
    if not reply.ok or not stage.until_lockable(CLEAN_S):
        return f"after SCRIPT FLUSH, a release fails: {reply.error or 'the keys stay'}"
    reply = client.acquire()
    return (
        ""
        if reply.ok
        else f"after SCRIPT FLUSH, no client gets the lock: {reply.error or 'the client gave up'}"
    )


@schedule(
    EXCLUSION,
    "a client whose clock is ahead takes a held lock",
    SANFILIPPO,
    is_safety=True,
    may_wait=True,
)
def clock_ahead(stage: Stage) -> str:
    """A client holds a lock. Another client, whose wall clock is ahead by a minute, asks for the
    lock. Then the holder releases the lock.
    """
    other = stage.party_by_clock()
    client = _granted(stage)
    stage.shift_clock(other, CLOCK_S)
    if other.acquire().ok:
        _need_held(client)
        return "a client whose clock is a minute ahead is granted a lock that another client holds"
    client.release()
    return _kept(stage, "keys stay after the release")


@schedule(
    ENDS, "Ctrl-C or cancellation in an acquire leaves keys", "Python, asyncio: task cancellation"
)
def interrupted_acquire(stage: Stage) -> str:
    """A client is interrupted while its SETs are under way. A thread is interrupted by SIGINT, and
    in asyncio the task is cancelled.
    """
    client = stage.party_to_interrupt()
    steps = _steps_to_set(stage)
    stage.stop(stage.majority)
    client.begin_acquire()
    for _ in range(steps - 1):
        need(stage.until_asked(stage.majority, client), "the client asked the instances")
        client.pause()
        stage.cont(stage.majority)
        stage.stop(stage.majority)
        client.resume()
    need(stage.until_asked(stage.majority, client), "the client's SET was not yet answered")
    stage.interrupt(client)
    stage.cont(stage.majority)
    reply = client.acquired()
    need(reply.error or reply.ok, "the client was interrupted or was granted the lock")
    if reply.ok:
        client.release()
    return _kept(stage, KEPT) or _in_time(client)


@schedule(
    ENDS, "Ctrl-C or cancellation in a release leaves keys", "Python, asyncio: task cancellation"
)
def interrupted_release(stage: Stage) -> str:
    """A holder is interrupted while its release is under way."""
    client = stage.party_to_interrupt()
    need(client.acquire().ok, "the client was granted the lock")
    everyone = range(stage.instances)
    stage.stop(everyone)
    client.begin_release()
    need(stage.until_asked(everyone, client), "the client's release was not yet answered")
    stage.interrupt(client)
    stage.cont(everyone)
    client.answer()
    return _kept(stage, KEPT) or _in_time(client)


@schedule(ENDS, "an exception in the body leaks the lock", "Python, PEP 343")
def exception_in_body(stage: Stage) -> str:
    """The body under the library's context manager raises an exception."""
    client = stage.party()
    need(
        client.ask("hold", resource=RESOURCE, ttl_ms=LONG_MS, wait_ms=WAIT_MS, raises=True).ok,
        "the body ran",
    )
    return _kept(stage, "an exception in the body leaves the lock held for the rest of the TTL")


@schedule(
    EXCLUSION, "the body runs without the lock", "Python, PEP 343", is_safety=True, may_wait=True
)
def body_without_lock(stage: Stage) -> str:
    """A client holds the lock. Another client tries to run a body under the library's context
    manager.
    """
    other = stage.party()
    holder = _granted(stage)
    try:
        reply = other.ask("hold", resource=RESOURCE, ttl_ms=LONG_MS // 5, wait_ms=WAIT_MS)
    except HangsError:
        # The client waits for the lock, as it should.
        return ""
    if not reply.ok:
        return ""
    _need_held(holder)
    return "the body runs although another client holds the lock"


@schedule(SERVERS, "without a quorum, a client waits too long or gets the lock", REDLOCK)
def majority_down(stage: Stage) -> str:
    """A majority of the instances is frozen, so there is no quorum. A client asks for the lock. The
    client must get an answer within its TTL of 10 s.
    """
    client = stage.party()
    stage.stop(stage.majority)
    begun_s = time.monotonic()
    client.begin_acquire()
    reply = client.acquired(DOWN_S)
    took_s = time.monotonic() - begun_s
    if reply.ok:
        return f"the client is granted the lock without a quorum, after {took_s:.0f} s"
    return f"the client is refused only after {took_s:.0f} s" if took_s > LONG_MS / 1000 else ""


@schedule(
    EXCLUSION,
    "a forked child takes its parent's lock",
    "fork(2); multiprocessing",
    is_safety=True,
    may_wait=True,
)
def forked(stage: Stage) -> str:
    """A holder forks. The child process uses its parent's objects to ask for the same lock. Then
    the child process ends.
    """
    client = _granted(stage)
    parent = Successors([client], stage.keys())
    if client.ask("fork", resource=RESOURCE, ttl_ms=LONG_MS, wait_ms=WAIT_MS).ok:
        _need_held(client)
        return "the child is granted the lock that its parent holds"
    if violation := _taken(stage, parent, "a child that ends removes its parent's lock"):
        return violation
    reply = client.release()
    return (
        ""
        if reply.ok and stage.until_lockable(CLEAN_S)
        else f"after the child has ended, the parent cannot release its lock: {reply.error}"
    )
