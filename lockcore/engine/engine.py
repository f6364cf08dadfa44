"""This module handles all instances at once: *rounds, received bytes and the time → bytes to send
and settled rounds*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. For this reason,
each attribute is declared either in the base class or in the subclass.

Rules: the outbox contains the commands to send (outbox.py). The members decide which instances vote
(members.py). The rounds interpret the replies. The engine passes data between the outbox, the
members and the rounds. Shells call `received`, `flush` and `tick`, and the members' `attach` and
`detach`. The list `ready` contains settled rounds and turns, and shells wake the callers of these
rounds and turns (awaited.py).
"""

from collections.abc import Callable, Sequence

from lockcore.engine.amnesia import SWAPS
from lockcore.engine.handoff import Handoff
from lockcore.engine.mail import Mail
from lockcore.engine.members import Members
from lockcore.engine.observed import Listener
from lockcore.engine.outbox import Outbox
from lockcore.engine.turns import Turns
from lockcore.errors import ProtocolError
from lockcore.facts.membership import State
from lockcore.facts.model import AttemptRecord, Lease, Outcome
from lockcore.rounds.awaited import Asked, Awaited, InstancePipe, SentAgain
from lockcore.rounds.claims import Claims, Terms
from lockcore.rounds.deadlines import Deadlines
from lockcore.rounds.pipeline import Pipeline
from lockcore.rounds.rounds import ExtendRound, ReleaseRound, RoundEngine, SetRound, round_of
from lockcore.rounds.watched import WatchedSetRound
from lockcore.settings import Settings


class Engine(RoundEngine):
    """The state of one Redlock.

    The outbox calls `want_flush` when something is queued (outbox.py). `pipes` contains one
    connection for each instance. `foreign` is True in a forked child's copy of the engine.
    """

    def __init__(
        self, addresses: Sequence[str], settings: Settings, want_flush: Callable[[], None]
    ) -> None:
        super().__init__(len(addresses))
        cap = settings.lag_cap
        self.pipes = [Pipeline(index, address, cap) for index, address in enumerate(addresses)]
        self.settings = settings
        self.foreign = False
        self.claims = Claims(settings)
        self.turns = Turns(self)
        self.deadlines = Deadlines()
        self.outbox = Outbox(self, self.pipes, self.deadlines, want_flush)
        self.members = Members(self, self.pipes, self.outbox, settings, self.deadlines.wake)
        self.handoff: Handoff | None = None
        if settings.retry.policy == "push":
            mail = Mail(self, self.pipes, self.members.states, self.claims)
            self.handoff = Handoff(self, self.turns, mail)
            self.outbox.leaves = self.handoff.pass_all
            for pipe in self.pipes:
                pipe.heard = self.handoff.heard
        self.attempt_listener: Callable[[AttemptRecord], None] | None = None
        if settings.observer is not None:
            self.attempt_listener = settings.observer.observe
        self.observe_every = settings.observe_every
        self.listener: Listener | None = None

    # -- rounds in ---------------------------------------------------------------------------------

    def terms(self, ttl_ms: int) -> Terms:
        """Return the `Terms` of a TTL. lockcore checks each TTL only once (claims.py)."""
        return self.claims.terms(ttl_ms)

    def set_round(  # noqa: PLR0917 - the hot path calls it
        self,
        resource: str,
        terms: Terms,
        now_ns: int,
        attempt: int = 1,
        acquire_ns: int = 0,
        observe: bool = False,
    ) -> SetRound:
        """Return a new attempt with its own owner token. The attempt is not sent yet.

        `acquire_ns` is the start of the acquire. If `acquire_ns` is 0, the acquire starts now.
        """
        number = next(self.claims.numbers)
        claim = self.claims.claim(resource, number)
        if self.attempt_listener is None or (number % self.observe_every and not observe):
            return SetRound(self, resource, claim, terms, now_ns)
        return WatchedSetRound(
            self,
            resource,
            claim,
            terms,
            now_ns,
            self.attempt_listener,
            attempt,
            acquire_ns or now_ns,
        )

    def release_round(self, lease: object, now_ns: int) -> ReleaseRound:
        """Return a round that releases `lease`. The round is not sent yet."""
        return ReleaseRound(round_of(lease, self), now_ns)

    def extend_round(self, lease: Lease, terms: Terms, now_ns: int) -> ExtendRound:
        """Return a round that extends `lease` by the TTL of `terms`. The round is not sent yet."""
        return ExtendRound(round_of(lease, self), terms, now_ns)

    def submit(self, round_: SetRound) -> None:
        """Queue the SET of a round on all voters.

        If there are too few voters, the outcome of the round is UNREACHABLE, and nothing is sent.
        """
        if len(round_.voters) < self.quorum:
            round_.undecided = 0
            round_.voters = ()
            round_.outcome = Outcome.UNREACHABLE
            return
        if round_.started_ns >= self.members.amnesia.swaps_due_ns:
            # The reading of swaps ends the batch so far, so this round is the first of a new batch.
            self._read_swaps(round_.started_ns)
        self.unreleased += 1
        round_.cleaned = False
        self.outbox.add_set(round_)

    def _read_swaps(self, now_ns: int) -> None:
        """Queue a command for the voters before the SET. The command asks a voter how often it has
        swapped databases (amnesia.py).

        This method does not use `unicast`, because `unicast` may send at once. If a connection
        broke during such a send, the voters would change before the SET is in the queue.
        """
        amnesia = self.members.amnesia
        question = Asked(now_ns, amnesia.swaps_read)
        for pipe in amnesia.counting_swaps(self.voters, now_ns):
            self.outbox.add_for(pipe, SWAPS, question)
            pipe.set_aside(1, len(SWAPS), 0)

    def submit_release(self, round_: ReleaseRound) -> None:
        """Queue a release for every instance to which the SET was sent.

        A connected instance gets the release at once. An instance that is not connected gets the
        release later (owed.py).
        """
        won = round_.won
        targets = won.voters
        if not won.cleaned:
            # Only the release of a lease reaches this line. For a lost attempt, `cleaned` was set
            # before its release.
            won.cleaned = True
            self.unreleased -= 1
            self._released(won.resource)
        if targets is self.voters:
            round_.undecided = len(targets)
            if self.outbox.add_release(round_):
                return
        for pipe in targets:
            if not pipe.is_open:
                round_.put_off(pipe)
        self._submit_to([pipe for pipe in targets if pipe.is_open], round_)

    def _released(self, resource: str) -> None:
        """Pass the turn to another caller of this process, or to another process."""
        if self.handoff is not None:
            self.handoff.released(resource)
        elif self.turns.lines:
            self.turns.poke(resource)

    def submit_extend(self, round_: ExtendRound) -> None:
        """Queue an extension for every connected instance that is not in the state LAGGING."""
        members = zip(self.pipes, self.members.states, strict=True)
        reached = [
            pipe for pipe, state in members if pipe.is_open and state.state is not State.LAGGING
        ]
        self._submit_to(reached, round_)

    def _submit_to(self, reached: Sequence[InstancePipe], round_: ReleaseRound) -> None:
        round_.undecided = len(reached)
        # The deadline is entered before anything is sent. An idle shell sends at once, and it sets
        # its timer by the deadlines.
        self.deadlines.watch(round_, self.now_ns)
        for pipe in reached:
            self.unicast(pipe, round_.encode(pipe.dialect), round_)
        round_.judge()

    # -- called by rounds --------------------------------------------------------------------------

    def unicast(self, pipe: InstancePipe, data: bytes, awaited: Awaited) -> None:
        """Queue a command for one instance. The command is sent soon, possibly at once."""
        self.outbox.unicast(pipe, data, awaited)

    def clean_up(self, round_: SetRound) -> None:
        """Release a lost or abandoned attempt on each instance to which its SET was sent.

        No caller waits for the release.
        """
        if round_.voters:
            # The age of the release counts from now. If the age counted from the SET's start, the
            # release would be due at once.
            started_ns = max(round_.started_ns, self.now_ns)
            self.submit_release(ReleaseRound(round_, started_ns))

    def send_again(self, round_: ReleaseRound, pipe: InstancePipe, *, whole: bool) -> None:
        """Send a release to one instance again.

        If `whole` is true, the command contains the whole source text of the release script. If
        `whole` is false, the release was part of a merged script call that has failed. In this
        case, the release is sent as a separate command.
        """
        self.deadlines.watch(round_, self.now_ns)
        if whole:
            self.unicast(pipe, round_.source, SentAgain(round_, self.now_ns))
        else:
            self.unicast(pipe, round_.encode(pipe.dialect), round_)

    def owe(self, pipe: InstancePipe, round_: ReleaseRound) -> None:
        """Keep an undelivered release for an instance (owed.py) until the key of the release has
        expired."""
        debts = self.members.debts[pipe.index]
        debts.add(round_.won.claim, max(round_.started_ns, self.now_ns))

    # -- bytes -------------------------------------------------------------------------------------

    def flush(self, now_ns: int) -> None:
        """Send everything that is queued, in one write per connection.

        If a connection breaks during this call, the engine may queue more commands for the other
        connections. This method also sends the commands that the engine has queued during the call.
        """
        outbox = self.outbox
        if outbox.flushing:
            return
        self.now_ns = now_ns
        try:
            outbox.flushing = True
            while outbox.dirty:
                outbox.send(now_ns)
                self.members.leave_out_by_size()
        finally:
            outbox.flushing = False

    def interrupted(self) -> None:
        """Reset the outbox, because an interrupt has ended a call into the engine half-way.

        After this call, the shell closes every connection.
        """
        self.outbox.dirty = self.outbox.flushing = False

    def received(self, index: int, data: bytes, now_ns: int) -> None:
        """Process the bytes that one instance has sent.

        Raises ProtocolError when the bytes are not replies to the commands, or when the engine
        cannot process the replies. Bad bytes end only the connection of this instance.
        """
        self.now_ns = now_ns
        pipe = self.pipes[index]
        try:
            pipe.receive(data)
        except ProtocolError:
            raise
        except Exception as error:
            text = f"{pipe.address} sent unreadable bytes ({type(error).__name__}: {error})"
            raise ProtocolError(text) from error
        # A retry that is due leaves with the callers that this reply wakes (see `next_tick_ns`).
        if self.turns.parked.next_ns <= now_ns:
            self.turns.expire(now_ns)
        self.members.answered(pipe)

    @property
    def is_idle(self) -> bool:
        """True when nothing is queued and no reply is awaited."""
        return not self.outbox.dirty and not [pipe for pipe in self.pipes if pipe.pending]

    # -- time --------------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> int:
        """Settle the rounds and turns whose time has passed. After that, let the members do the
        work that is due.

        Returns the time of the next call (ns), or FAR_FUTURE_NS.
        """
        self.now_ns = now_ns
        self.deadlines.expire(now_ns)
        self.turns.expire(now_ns)
        self.members.tick(now_ns)
        return self.next_tick_ns(now_ns)

    # `slack_ns` delays only parked turns. A retry that is due waits for the next reply, but at most
    # for `slack_ns`. `received` then settles its turn. So the retry leaves in one write with the
    # commands of the callers that the reply wakes. With a separate timer, each retry would read
    # every socket, send one command and wake each server. Per 1,000 leases of 64 users on 200
    # resources, sends fell from 420 to 330 and reads from 365 to 254. Together with another change
    # of that day, the client's CPU per lease fell from 17.6 to 15.0 µs (docs/lab/lockcore.md). The
    # slack must not delay a round's timeout, because a silent instance would then cost every caller
    # more.
    def next_tick_ns(self, now_ns: int, slack_ns: int = 0) -> int:
        """Return the time of the next `tick`, or FAR_FUTURE_NS.

        `slack_ns`: the longest delay (ns) that is allowed for a parked turn.
        """
        turn_ns = self.turns.parked.next_ns + slack_ns
        return min(self.deadlines.next_ns(), turn_ns, self.members.next_ns(now_ns))

    def retire(self) -> None:
        """Begin no more attempts, and end the waits of all callers in line. Releases continue."""
        self.retired = True
        self.members.recount()
        self.turns.end()
