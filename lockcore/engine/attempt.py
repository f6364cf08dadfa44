"""This module decides the next step of one operation: *an event, the time and a random number → the
next round, a time at which the operation continues, or the result*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. For this reason,
the code creates each `Lease` with positional arguments.

Each operation is a generator, which yields four kinds of request to the shell. A `Round` asks the
shell to send the round and to wake the operation when the round is settled. A `Turn` asks the shell
to send nothing and to wake the operation when the turn is settled. An int is a time (ns) at which
the shell must wake the operation. An `Offer` asks the shell whether the caller receives this lease
in time. The shell answers each request with the current time (ns). The answer to an `Offer` is the
time at which the caller runs again. The generator returns the result of the operation. If the
caller is cancelled, the shell raises an exception inside the generator, and the generator abandons
its round.

Rules: a caller has a lease only after two steps. First, the caller's own thread receives the lease.
Second, this thread reads the clock. Every attempt has its own start and its own owner token.
Source: the description of Redlock in the Redis documentation.
"""

from collections.abc import Generator
from random import Random

from lockcore.clock import NS_PER_MS
from lockcore.engine.engine import Engine
from lockcore.engine.handoff import FIRST_LOOK_NS, LONGEST_LOOK_NS
from lockcore.engine.turns import Offer, Request, Turn
from lockcore.errors import InstanceClosedError
from lockcore.facts.model import ACQUIRED, Denied, Lease, Outcome
from lockcore.rounds.claims import Terms
from lockcore.rounds.commands import OWNER_TOKEN_START
from lockcore.rounds.rounds import ReleaseRound, Round, SetRound

Steps = Generator[Request, int, "Lease | Denied"]


def lease_of(
    round_: SetRound, now_ns: int, attempts: int = 1, split_votes: int = 0
) -> Lease | None:
    """Return the lease of a won round, or None if the lease would no longer be valid at `now_ns`.

    If the round is `watched`, the code that calls this function must then call `decided`.
    """
    terms = round_.terms
    started_ns = round_.started_ns
    valid_until_ns = started_ns + terms.usable_ns
    if now_ns >= valid_until_ns:
        return None
    owner_token = round_.claim[OWNER_TOKEN_START:-2]
    return Lease(
        round_.resource,
        owner_token,
        terms.ttl_ms,
        started_ns,
        now_ns,
        valid_until_ns,
        round_,
        attempts,
        split_votes,
    )


def first_lease(round_: SetRound, now_ns: int) -> Lease | None:
    """Return the lease of a first attempt. The caller of the attempt runs again at `now_ns`.

    If this function returns None, `Acquisition.after` continues the acquire.
    """
    if round_.outcome is not ACQUIRED or round_.engine.retired:
        return None
    lease = lease_of(round_, now_ns)
    if lease is not None and round_.watched:
        round_.decided(ACQUIRED, now_ns)
    return lease


def give_back(result: Lease | Denied | None) -> None:
    """Release a lease that never reached its caller, because an interrupt stopped the caller."""
    if isinstance(result, Lease) and isinstance(result.round, SetRound):
        result.round.clean_up()


class Acquisition:
    """One acquire with all its attempts."""

    def __init__(  # noqa: PLR0917 - made in one place per shell
        self,
        engine: Engine,
        resource: str,
        terms: Terms,
        wait_ms: float,
        now_ns: int,
        random: Random,
    ) -> None:
        self.engine = engine
        self.resource = resource
        self.terms = terms
        self.random = random
        self.started_ns = now_ns
        self.deadline_ns = now_ns + int(wait_ms * NS_PER_MS)
        self.attempts = self.split_votes = 0
        self.lost_ns: list[int] = []
        self.round: SetRound | None = None
        self.turn: Turn | None = None

    def steps(self, now_ns: int) -> Steps:
        """Return the steps of the whole acquire, including the first attempt.

        If another caller of this Redlock holds the resource or waits for it, this caller first
        waits for its turn.
        """
        if self.engine.turns.is_taken(self.resource) and now_ns < self.deadline_ns:
            return self._in_line(now_ns)
        return self._from_first(now_ns)

    def _from_first(self, now_ns: int) -> Steps:
        round_ = self.engine.set_round(self.resource, self.terms, now_ns)
        now_ns = yield from _settled(round_)
        return (yield from self.after(round_, now_ns))

    def after(self, round_: SetRound, now_ns: int) -> Steps:
        """Return the steps after the first attempt.

        The first attempt, `round_`, has already been sent by other code.
        """
        self.round = round_
        self.attempts = 1
        return self._in_line(now_ns)

    def _in_line(self, now_ns: int) -> Steps:
        """Make attempts until the end of the acquire. A cancelled acquire leaves nothing behind.

        If the acquire is cancelled, this method cleans up its attempt. After that, neither a round
        nor a turn wakes the caller.
        """
        try:
            try:
                return (yield from self._attempts(now_ns))
            finally:
                self._leave()
        except BaseException:
            if self.round is not None:
                # The interrupt may also have come after the grant and before the caller got the
                # lease.
                self.round.abandon()
            if self.turn is not None:
                self.turn.abandon()
            # The turn is left once more, in case the interrupt came in the `finally`.
            self._leave()
            raise

    def _leave(self) -> None:
        if self.turn is not None:
            last = self.round
            unreachable = last is not None and last.outcome is Outcome.UNREACHABLE
            granted = last is not None and last.outcome is ACQUIRED and not last.cleaned
            self.engine.turns.leave(self.turn, unreachable=unreachable, granted=granted)

    def _attempts(self, now_ns: int) -> Steps:
        while True:
            if self.engine.retired:
                raise InstanceClosedError("all instances", "this Redlock is closed")
            last = self.round
            start_ns = now_ns
            last_outcome: Outcome | None = None
            if last is not None:
                result = yield from self._ended(last, now_ns)
                if not isinstance(result, Outcome):
                    return result
                last_outcome = result
                again_ns = self._next_start_ns(last_outcome, now_ns)
                if again_ns is None:
                    return Denied(
                        self.resource,
                        last_outcome,
                        last.tally,
                        self.attempts,
                        self.split_votes,
                        self.started_ns,
                        now_ns,
                        self.lost_ns,
                        last,
                    )
                start_ns = again_ns
            now_ns = yield from self._my_turn(last_outcome, start_ns, now_ns)
            self.attempts += 1
            # If the first attempt of an acquire is observed, all its attempts are observed. An
            # attempt after an unusual outcome is observed, too.
            observe = last is not None and (last.watched or last.outcome is not Outcome.CONTENDED)
            self.round = self.engine.set_round(
                self.resource, self.terms, now_ns, self.attempts, self.started_ns, observe
            )
            now_ns = yield self.round

    def _ended(self, round_: SetRound, now_ns: int) -> Generator[Request, int, Lease | Outcome]:
        """Decide the result of an attempt when its caller runs again.

        The result is a lease or an outcome.
        """
        outcome = round_.outcome
        if outcome is None:
            # The caller was woken before its round was settled.
            round_.abandon()
            outcome = Outcome.UNREACHABLE
        if outcome is ACQUIRED:
            lease = lease_of(round_, now_ns, self.attempts, self.split_votes)
            if lease is not None:
                now_ns = yield Offer(lease, lease.valid_until_ns)
                lease = lease_of(round_, now_ns, self.attempts, self.split_votes)
            if lease is not None:
                round_.decided(outcome, now_ns)
                lease.lost_ns = self.lost_ns
                return lease
            outcome = Outcome.TOO_LATE
            round_.clean_up()
        # A round without voters was not sent.
        if round_.voters:
            self.lost_ns.append(round_.started_ns)
        round_.decided(outcome, now_ns)
        self.split_votes += outcome is Outcome.SPLIT_VOTE
        return outcome

    def _my_turn(
        self, last_outcome: Outcome | None, start_ns: int, now_ns: int
    ) -> Generator[Request, int, int]:
        """Wait until it is the turn of this caller.

        After that, wait until the key is free, until `start_ns`, or until the acquire ends.
        `last_outcome` is the outcome of the last attempt.
        """
        turn = self.turn
        handoff = self.engine.handoff
        if turn is None:
            turns = self.engine.turns
            # The turn is stored before it joins the line. If an interrupt comes in between, the
            # clean-up finds the turn here.
            turn = Turn(turns, self.resource, self.started_ns)
            self.turn = turn
            turns.join(turn)
        if not turn.has_come:
            now_ns = yield turn.park(self.deadline_ns)
            again_ns = self._next_start_ns(Outcome.CONTENDED, now_ns)
            start_ns = self.deadline_ns if again_ns is None else again_ns
            last_outcome = None
        is_heard = handoff is not None and handoff.expects(self.resource, now_ns)
        if is_heard and (last_outcome is None or last_outcome is Outcome.CONTENDED):
            now_ns = yield from self._until_released(turn, now_ns)
        elif now_ns < start_ns and not (turn.poked or self.engine.retired):
            now_ns = yield turn.park(start_ns)
        turn.poked = False
        return now_ns

    def _until_released(self, turn: Turn, now_ns: int) -> Generator[Request, int, int]:
        """Wait for the message that the key is free. The wait ends at the deadline at the latest.

        A message can get lost, so the caller also reads the key from time to time.
        """
        engine = self.engine
        pause_ns = FIRST_LOOK_NS
        again = False
        handoff = engine.handoff
        while (
            handoff is not None and not (turn.poked or engine.retired) and now_ns < self.deadline_ns
        ):
            if not handoff.expects(self.resource, now_ns):
                break
            if not turn.follows:
                handoff.look(self.resource, again=again)
                again = True
            turn.follows = False
            due_ns = now_ns + int(pause_ns * (0.75 + 0.5 * self.random.random()))
            now_ns = yield turn.park(min(due_ns, self.deadline_ns))
            pause_ns = min(2 * pause_ns, LONGEST_LOOK_NS)
        return now_ns

    def _next_start_ns(self, outcome: Outcome, now_ns: int) -> int | None:
        retry = self.engine.settings.retry
        age_ns = now_ns - self.started_ns
        return retry.next_start_ns(
            outcome, self.attempts, now_ns, self.deadline_ns, self.random.random(), age_ns
        )


def _settled(round_: Round | Turn) -> Generator[Request, int, int]:
    """Wait for a round or a turn.

    If the caller is cancelled during the wait, this function abandons the round or turn. After
    that, the round or turn does not wake the caller.
    """
    try:
        return (yield round_)
    except BaseException:
        round_.abandon()
        raise


def _denied(lease: Lease, round_: ReleaseRound, outcome: Outcome, now_ns: int) -> Denied:
    return Denied(lease.resource, outcome, round_.tally, 1, 0, round_.started_ns, now_ns)


def release_steps(engine: Engine, lease: Lease, now_ns: int) -> Generator[Request, int, Denied]:
    """Release a lease step by step. The outcome of the result is RELEASED, GONE or UNREACHABLE."""
    round_ = engine.release_round(lease, now_ns)
    now_ns = yield from _settled(round_)
    return _denied(lease, round_, round_.outcome or Outcome.UNREACHABLE, now_ns)


def extend_steps(engine: Engine, lease: Lease, ttl_ms: int, now_ns: int) -> Steps:
    """Extend a lease step by step. The new TTL, `ttl_ms`, begins at `now_ns`.

    The result is a new lease, or a `Denied` with the outcome GONE or UNREACHABLE. If the result is
    a `Denied`, the end of the old lease does not change. If the lease ends before the instances
    answer, the extension ends at that time with the outcome GONE.

    Raises ValueError if the extension would not end later than the newest lease's `valid_until_ns`.
    This function also raises ValueError if another extension has already requested the same end or
    a later end. Without this check, an extension with an earlier end could arrive last, and the
    instances would then use this earlier end.
    """
    terms = engine.terms(ttl_ms)
    round_ = engine.extend_round(lease, terms, now_ns)
    lease = newest_of(lease)
    if now_ns >= lease.valid_until_ns:
        return _denied(lease, round_, Outcome.GONE, now_ns)
    valid_until_ns = now_ns + terms.usable_ns
    if valid_until_ns <= asked_until_ns(lease):
        raise ValueError(
            f"extending {lease.resource!r} by {ttl_ms} ms would end the lease before its present "
            "end; use a longer ttl_ms"
        )
    round_.won.asked_until_ns = valid_until_ns
    now_ns = yield from _settled(round_)
    outcome = round_.outcome or Outcome.UNREACHABLE
    if outcome is not Outcome.RELEASED:
        if outcome is Outcome.UNREACHABLE and now_ns >= newest_of(lease).valid_until_ns:
            outcome = Outcome.GONE
            # An instance may still extend the key, but nobody uses the lease any more.
            engine.clean_up(round_.won)
        return _denied(lease, round_, outcome, now_ns)
    extended = Lease(
        lease.resource,
        lease.owner_token,
        ttl_ms,
        round_.started_ns,
        now_ns,
        valid_until_ns,
        lease.round,
        lease.attempts,
        lease.split_votes,
    )
    # Another extension of the lease may have succeeded meanwhile.
    end_ns = newest_of(lease).valid_until_ns
    if now_ns < min(end_ns, valid_until_ns):
        now_ns = yield Offer(extended, min(end_ns, valid_until_ns))
    if now_ns >= min(end_ns, valid_until_ns):
        if now_ns >= end_ns:
            # Instances have extended the keys, but nobody uses the lease any more.
            engine.clean_up(round_.won)
        return _denied(lease, round_, Outcome.GONE, now_ns)
    extended.granted_ns = now_ns
    if valid_until_ns > end_ns:
        round_.won.newest = extended
    return extended


def newest_of(lease: Lease) -> Lease:
    """Return the lease after its last extension. If nobody has extended the lease, this function
    returns `lease` itself."""
    newest: Lease = getattr(lease.round, "newest", lease)
    return newest


def asked_until_ns(lease: Lease) -> int:
    """Return the latest end that the SET or an extension has requested for the lease. The result
    may be the end of a request that the instances did not grant."""
    return max(newest_of(lease).valid_until_ns, getattr(lease.round, "asked_until_ns", 0))
