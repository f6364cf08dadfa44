"""All instances at once: *rounds, bytes and time in → bytes and settled rounds out*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: attributes of
base classes are not declared again, and a list stands where `any` would need a generator.

Rules: a command for all voters is encoded once, appended once (`batch`), and sent once per pass of
the loop to each voter (`flush`). A command for some instances only goes to their own queues. Both
keep one order per connection. Shells feed `received`, `flush`, `tick`, `attach` and `detach`, and
they wake what `take_ready` returns.
"""

from collections.abc import Callable, Sequence
from itertools import count

from lockcore.clock import NS_PER_MS
from lockcore.engine.amnesia import SWAPS, Amnesia
from lockcore.engine.handoff import Crowd, Handoff
from lockcore.engine.observed import Listener
from lockcore.engine.turns import Turns
from lockcore.errors import ProtocolError
from lockcore.facts.membership import (
    VOTING,
    Hello,
    Membership,
    State,
    abstention_ns,
    forgotten_ns,
)
from lockcore.facts.model import InstanceStatus, Lease, Outcome, Tally
from lockcore.facts.quorum import quorum_of
from lockcore.rounds.awaited import Asked, Awaited, Ignored, InstancePipe, SentAgain, Settled
from lockcore.rounds.claims import Claims, Recent, Terms
from lockcore.rounds.commands import FIRST_NUMBER, Dialect, Encode, merged_release
from lockcore.rounds.deadlines import Deadlines
from lockcore.rounds.flight import EARLY, LARGEST, SMALLEST, Flight, MergedReply
from lockcore.rounds.owed import Debts
from lockcore.rounds.pipeline import Pipeline, Transmit
from lockcore.rounds.resp import request
from lockcore.rounds.rounds import ExtendRound, Part, ReleaseRound, RoundEngine, SetRound, round_of
from lockcore.rounds.watched import WatchedSetRound
from lockcore.settings import Settings

VOTER_SETS_KEPT = 64

# How often an instance is looked at that does not vote and has not answered.
LOOK_NS = 500 * NS_PER_MS


class Engine(RoundEngine):
    """The state of one Redlock.

    `want_flush` is called when a batch begins. The shell then calls `flush` soon. `asked` is the
    number of attempts that were sent, and `given_back` how many of them had their release queued.

    `batch` are the encoded commands for all voters, `batch_rounds` the rounds that await their
    replies, `_to_merge` the releases that will be one script call. `_batch_terms` are the terms of
    the round that was added last, `_shortest_ns` is the shortest timeout in the batch. `_watched`
    are the watched rounds of the batch, `_unstamped` those whose batch leaves next.
    """

    def __init__(
        self, addresses: Sequence[str], settings: Settings, want_flush: Callable[[], None]
    ) -> None:
        self.settings = settings
        self.instances = len(addresses)
        self.quorum = quorum_of(self.instances)
        self.unanimous = Tally(granted=self.instances)
        self.members = [Membership() for _ in addresses]
        forgotten = forgotten_ns(settings.rejoin, settings.max_ttl_ms, settings.drift_factor)
        self.amnesia = amnesia = Amnesia(self, self.members, forgotten, self.recount)
        cap = settings.lag_cap
        self.pipes = [
            Pipeline(index, address, cap, amnesia.noticed)
            for index, address in enumerate(addresses)
        ]
        self.voters = ()
        self.ready = []
        self.woken = 0
        self.early = LARGEST
        self.turns = Turns(self)
        self.deadlines = Deadlines()
        self.batch = list[bytes]()
        self.batch_rounds = list[Part]()
        self.want_flush = want_flush
        self._counter = count(FIRST_NUMBER)
        self.dirty = self.followed = self._flushing = False
        self.foreign = self.retired = self._merges = False
        claims = Claims(settings)
        self.terms = claims.terms
        self._claims = claims
        self.handoff: Handoff | None = None
        self._crowds: dict[bytes, Crowd] = {}
        self._released: Callable[[str], None] = self.turns.poke
        if settings.retry.policy == "push":
            handoff = Handoff(self, self.turns, self.pipes, self.members, claims)
            self.handoff = handoff
            self._crowds = handoff.crowds
            self._released = handoff.released
        self._uniform_release: Encode | None = None
        self._to_merge = list[ReleaseRound]()
        self._merge_keys = set[str]()
        self.observer = settings.observer
        self.observe_every = settings.observe_every
        self.listener: Listener | None = None
        self._watched = list[WatchedSetRound]()
        self._unstamped = list[WatchedSetRound]()
        self.now_ns = self.asked = self.given_back = 0
        self._batch_terms = terms = claims.terms(settings.max_ttl_ms)
        self._shortest_ns = terms.timeout_ns
        self.debts = [Debts(self, pipe, settings, self.deadlines.wake) for pipe in self.pipes]
        self._voter_sets: Recent[tuple[int, ...], tuple[Pipeline, ...]] = Recent(VOTER_SETS_KEPT)

    # -- starting rounds ---------------------------------------------------------------------------

    def set_round(  # noqa: PLR0917 - the hot path calls it
        self,
        resource: str,
        terms: Terms,
        now_ns: int,
        attempt: int = 1,
        acquire_ns: int = 0,
        observe: bool = False,
    ) -> SetRound:
        """A new attempt with an owner token of its own, which is not sent yet.

        Its acquire began at `acquire_ns` (0: now).
        """
        number = next(self._counter)
        claim = self._claims.claim(resource, number)
        if self.observer is None or (number % self.observe_every and not observe):
            return SetRound(self, resource, claim, terms, now_ns)
        return WatchedSetRound(
            self, resource, claim, terms, now_ns, self.observer, attempt, acquire_ns or now_ns
        )

    def release_round(self, lease: object, now_ns: int) -> ReleaseRound:
        """A release of `lease`, not yet sent."""
        return ReleaseRound(round_of(lease, self), now_ns)

    def extend_round(self, lease: Lease, terms: Terms, now_ns: int) -> ExtendRound:
        """An extension of `lease` to `terms` from now, not yet sent."""
        return ExtendRound(round_of(lease, self), terms, now_ns)

    def submit(self, round_: SetRound) -> None:
        """Queue the SET of a round on all voters.

        Too few voters settle the round as UNREACHABLE, and no byte is sent.
        """
        if len(round_.voters) < self.quorum:
            round_.undecided = 0
            round_.voters = ()
            round_.outcome = Outcome.UNREACHABLE
            return
        if round_.resource in self._merge_keys:
            # The release of a key goes before the next SET on it.
            self._merge()
        if round_.started_ns >= self.amnesia.swaps_due_ns:
            # This ends the batch so far, and this round does not belong to it.
            self._read_swaps(round_.started_ns)
        if round_.watched:
            self._watched.append(round_)  # type: ignore[arg-type]
        self.asked += 1
        round_.cleaned = False
        terms = round_.terms
        self.batch.append(terms.set_head + round_.claim + terms.set_tail)
        self.batch_rounds.append(round_)
        if terms is not self._batch_terms:
            self._note_terms(terms)
        if not self.dirty or len(self.batch) + len(self._to_merge) == self.early:
            self._want()

    def _read_swaps(self, now_ns: int) -> None:
        """Ask the voters whether they have swapped databases, ahead of the SET (membership.py).

        It does not use `unicast`, which may send at once. A connection that breaks by that would
        change the voters under the SET that is being queued.
        """
        if self.batch or self._to_merge:
            self._spill()
        question = Asked(now_ns, self.amnesia.swaps_read)
        for pipe in self.amnesia.counting_swaps(self.voters, now_ns):
            pipe.queue.append(SWAPS)
            pipe.expect(question)
            pipe.set_aside(1, len(SWAPS), 0)

    def submit_release(self, round_: ReleaseRound) -> None:
        """Queue a release on every instance that was sent the SET.

        An instance that is connected gets it at once. To any other instance it is owed.
        """
        won = round_.won
        targets = round_.won.voters
        if not won.cleaned:
            # This is the release of a lease. That of a lost attempt has counted itself already.
            won.cleaned = True
            self.given_back += 1
            if self.turns.lines or self._crowds:
                self._released(won.resource)
        if targets is self.voters and self._uniform_release is not None:
            round_.undecided = len(targets)
            if self._merges:
                self._to_merge.append(round_)
                self._merge_keys.add(round_.won.resource)
            else:
                self.batch.append(self._uniform_release(round_.won.claim))
                self.batch_rounds.append(round_)
            if (terms := round_.won.terms) is not self._batch_terms:
                self._note_terms(terms)
            if not self.dirty or len(self.batch) + len(self._to_merge) == self.early:
                self._want()
            return
        for pipe in targets:
            if not pipe.is_open:
                round_.put_off(pipe)
        self._submit_to([pipe for pipe in targets if pipe.is_open], round_)

    def submit_extend(self, round_: ExtendRound) -> None:
        """Queue an extension on every instance that is connected and not lagging."""
        members = zip(self.pipes, self.members, strict=True)
        reached = [
            pipe for pipe, member in members if pipe.is_open and member.state is not State.LAGGING
        ]
        self._submit_to(reached, round_)

    def _submit_to(self, reached: Sequence[InstancePipe], round_: ReleaseRound) -> None:
        # The number is negative because not all instances are asked: each success has to be judged.
        round_.undecided = -len(reached)
        # The deadline is watched before anything is sent. A shell with nothing else to do sends at
        # once, and sets its timer by the deadlines that it finds.
        self.deadlines.watch(round_, self.now_ns)
        for pipe in reached:
            self.unicast(pipe, round_.encode(pipe.dialect), round_)
        round_.judge()

    def clean_up(self, round_: SetRound) -> None:
        """Release a lost or abandoned attempt everywhere it was sent. Nobody waits for it."""
        if round_.voters:
            # The release has an age of its own. With the SET's it would be due at once.
            started_ns = max(round_.started_ns, self.now_ns)
            self.submit_release(ReleaseRound(round_, started_ns))

    def send_again(self, round_: ReleaseRound, pipe: InstancePipe, *, whole: bool) -> None:
        """Send a release to one instance again.

        `whole`: with its script's source. Otherwise by itself, because the merged call that carried
        it has failed.
        """
        self.deadlines.watch(round_, self.now_ns)
        if whole:
            self.unicast(pipe, round_.source, SentAgain(round_, self.now_ns))
        else:
            self.unicast(pipe, round_.encode(pipe.dialect), round_)

    def owe(self, pipe: InstancePipe, round_: ReleaseRound) -> None:
        """Remember a release that an instance did not take (owed.py), until its key has expired."""
        self.debts[pipe.index].add(round_.won.claim, max(round_.started_ns, self.now_ns))

    # -- bytes -------------------------------------------------------------------------------------

    def _want(self) -> None:
        self.dirty = True
        self.want_flush()

    def _note_terms(self, terms: Terms) -> None:
        first = self.queued <= 1
        self._shortest_ns = terms.timeout_ns if first else min(self._shortest_ns, terms.timeout_ns)
        self._batch_terms = terms

    def _merge(self) -> None:
        """Make one script call of the releases of this pass.

        Its reply is a header and one part for each release.
        """
        releases = self._to_merge
        if len(releases) == 1:
            self.batch.append(releases[0].encode(self.voters[0].dialect))
        else:
            self.batch.append(merged_release([round_.won.claim for round_ in releases]))
            self.batch_rounds.append(MergedReply(self, releases))
        self.batch_rounds += releases
        # This comes last, so that an interrupt loses no release.
        self._to_merge = []
        self._merge_keys.clear()

    def unicast(self, pipe: InstancePipe, data: bytes, awaited: Awaited) -> None:
        """Queue a command for one instance."""
        if self.batch or self._to_merge:
            self._spill()
        if not pipe.is_open:
            # What was sent a moment ago has broken the connection.
            awaited.silence(pipe)
            return
        pipe.queue.append(data)
        pipe.expect(awaited)
        if not self.dirty:
            self._want()

    def _take_batch(self) -> tuple[bytes, int]:
        if self._to_merge:
            self._merge()
        data = b"".join(self.batch)
        commands = len(self.batch)
        rounds = self.batch_rounds
        watched = self._watched
        self._watched = []
        self._unstamped += watched
        flight = Flight(self, rounds, watched) if len(rounds) >= SMALLEST else None
        # An interrupt may have come before the first round was added.
        if rounds:
            self.deadlines.watch_batch(rounds, self.now_ns, self._shortest_ns)
        pipe: Pipeline
        for pipe in self.voters:
            pipe.expect_batch(flight, rounds)
        self._shortest_ns = self._batch_terms.timeout_ns
        # These come last, so that an interrupt loses no round.
        self.batch = []
        self.batch_rounds = []
        return data, commands

    def _spill(self) -> None:
        """Move the common batch into each voter's own queue, in order."""
        data, commands = self._take_batch()
        for pipe in self.voters:
            pipe.queue.append(data)
            # `send` will count this piece of the queue as one command.
            pipe.commands += commands - 1

    def flush(self, now_ns: int) -> None:
        """Send everything that is queued, in one write per connection.

        A connection that breaks meanwhile may queue more for the others. That is sent, too.
        """
        if self._flushing:
            return
        self.now_ns = now_ns
        try:
            self._flushing = True
            while self.dirty:
                self.dirty = self.followed = False
                self._send(now_ns)
        finally:
            self._flushing = False

    def _send(self, now_ns: int) -> None:
        if self.handoff is not None and self.handoff.passing:
            self.handoff.pass_all()
        if self.batch or self._to_merge:
            if any(pipe.queue for pipe in self.voters):
                self._spill()
            else:
                voters: tuple[Pipeline, ...] = self.voters
                data, commands = self._take_batch()
                self._stamp(now_ns)
                for pipe in voters:
                    pipe.send(data, commands)
        self._stamp(now_ns)
        for pipe in self.pipes:
            if pipe.queue:
                queued = pipe.queue
                pipe.queue = []
                pipe.send(b"".join(queued), len(queued))
        if [pipe for pipe in self.pipes if pipe.over_size()]:
            self._leave_out(Pipeline.over_size)

    def _stamp(self, now_ns: int) -> None:
        if self._unstamped:
            for watched in self._unstamped:
                watched.sent(now_ns)
            self._unstamped = []

    def interrupted(self) -> None:
        """An interrupt has left a call into the engine in the middle.

        The shell breaks off every connection.
        """
        self.dirty = self._flushing = False

    def received(self, index: int, data: bytes, now_ns: int) -> None:
        """Take the bytes of one instance.

        Raises ProtocolError when they are no replies to what was sent, or cannot be handled.
        Whatever one instance sends ends its own connection and nothing else.
        """
        self.now_ns = now_ns
        pipe = self.pipes[index]
        try:
            pipe.receive(data)
        except ProtocolError:
            raise
        except Exception as error:
            text = f"{pipe.address} sent what could not be read ({type(error).__name__}: {error})"
            raise ProtocolError(text) from error
        # A retry that is due leaves with the callers that this reply wakes: see `next_tick_ns`.
        if self.turns.parked.next_ns <= now_ns:
            self.turns.expire(now_ns)
        member = self.members[index]
        if member.state is State.LAGGING and not pipe.pending:
            member.caught_up()
            self.recount()

    def take_ready(self) -> list[Settled]:
        """The rounds and turns that were settled since the last call."""
        ready = self.ready
        self.ready = []
        self.woken = 0
        return ready

    # -- time --------------------------------------------------------------------------------------

    def tick(self, now_ns: int) -> int:
        """Expire rounds, notice lag, end abstentions.

        Returns when to call it next (ns), or FAR_FUTURE_NS.
        """
        self.now_ns = now_ns
        self.deadlines.expire(now_ns)
        self.turns.expire(now_ns)
        for debts in self.debts:
            debts.tick(now_ns)
        if len(self.voters) < self.instances:
            returned = [member for member in self.members if member.abstained(now_ns)]
            if returned:
                self.recount()
        if [pipe for pipe in self.voters if pipe.pending]:
            self._leave_out(lambda pipe: pipe.over_age(now_ns))
        self.amnesia.ask(self.pipes, now_ns)
        if self.handoff is not None:
            self.handoff.sweep(now_ns)
        return self.next_tick_ns(now_ns)

    def _leave_out(self, reason_of: Callable[[Pipeline], str]) -> None:
        """Send no more SETs to the voters for which there is a reason against it.

        They vote again when they have answered everything.
        """
        reasons = [(pipe, reason) for pipe in self.voters if (reason := reason_of(pipe))]
        for pipe, reason in reasons:
            self.members[pipe.index].lagged(reason)
        if reasons:
            self.recount()

    # Turns have a time of their own: `slack_ns` moves only the time of parked turns, and `received`
    # settles the turns that are due. So a retry that is due waits a little for a reply, and leaves
    # in one write with the callers that this reply wakes. A timer of its own would read every
    # socket, send one command, and wake each server for it. Per 1,000 leases of 64 users on 200
    # resources that was 420 → 330 sends and 365 → 254 reads. With another change of that day the
    # client's CPU per lease fell from 17.6 to 15.0 µs (README, "Tried"). Only turns may be late by
    # the slack. If a round's timeout waited for it, a silent instance would cost every caller more.
    def next_tick_ns(self, now_ns: int, slack_ns: int = 0) -> int:
        """When `tick` is needed next, or FAR_FUTURE_NS. A turn may be late by `slack_ns`."""
        due = [
            self.deadlines.next_ns(),
            self.turns.parked.next_ns + slack_ns,
            *[debts.due_ns for debts in self.debts],
        ]
        due += [member.next_ns for member in self.members]
        if waiting := [pipe for pipe in self.pipes if pipe.pending]:
            due += [now_ns + (pipe.lag_ns if pipe in self.voters else LOOK_NS) for pipe in waiting]
        return min(due)

    def silent(self, now_ns: int) -> list[int]:
        """The instances to break off and to connect anew.

        They were asked something and have answered nothing for `silence_ns`.
        """
        return [
            pipe.index for pipe in self.pipes if pipe.is_silent(now_ns, self.settings.silence_ns)
        ]

    def due_connects(self, now_ns: int) -> list[int]:
        """The instances to connect now.

        Each is named once, until `attach` or `detach` says what came of it.
        """
        return [index for index, member in enumerate(self.members) if member.is_taken_up(now_ns)]

    # -- members -----------------------------------------------------------------------------------

    def attach(
        self, index: int, hello: Hello, dialect: Dialect, transmit: Transmit, now_ns: int
    ) -> None:
        """A connection is ready: the instance votes, or abstains (membership.py).

        Whatever is owed to it goes out.
        """
        self.now_ns = now_ns
        pipe = self.pipes[index]
        member = self.members[index]
        settings = self.settings
        earlier = member.hello
        abstention = abstention_ns(
            hello, earlier, settings.rejoin, settings.max_ttl_ms, settings.drift_factor
        )
        member.joined(hello, abstention, now_ns)
        pipe.open(transmit, dialect)
        if earlier is not None:
            pipe.reconnects += 1
            if earlier.run_id == hello.run_id and earlier.client_id:
                # What the old connection still carries must not arrive behind what is owed.
                kill = request(b"CLIENT", b"KILL", b"ID", b"%d" % earlier.client_id)
                self.unicast(pipe, kill, Ignored(now_ns))
        self.debts[index].connected(now_ns)
        self.recount()

    def detach(self, index: int, reason: str, now_ns: int, *, refused: bool = False) -> None:
        """The connection ended or could not be made.

        Votes that are still out are SILENT, and releases that are still out are owed.
        """
        self.now_ns = now_ns
        pipe = self.pipes[index]
        self.members[index].lost(reason, now_ns, refused=refused)
        if pipe.is_open:
            if self.batch or self._to_merge:
                self._spill()
            losses = pipe.break_off()
            self.recount()
            for awaited in losses:
                awaited.silence(pipe)
        else:
            self.debts[index].forget(now_ns)

    def recount(self) -> None:
        """Count the voters anew. What is batched for the old voters goes to them first.

        The same voters are the same tuple again, so that a release knows by identity whether its
        round was sent to those who vote now.
        """
        if self.batch or self._to_merge:
            self._spill()
        indices = list[int]()
        if not self.retired:
            indices = [i for i, member in enumerate(self.members) if member.state is VOTING]
        voting = tuple(indices)
        if (voters := self._voter_sets.get(voting)) is None:
            voters = self._voter_sets.keep(voting, tuple([self.pipes[index] for index in voting]))
        self.voters = voters
        self.early = EARLY if len(voters) <= 2 else LARGEST
        kinds = {pipe.dialect.release_command for pipe in voters}
        self._uniform_release = voters[0].dialect.encode_release if len(kinds) == 1 else None
        self._merges = self.settings.merge_releases and kinds == {"evalsha"}

    def retire(self) -> None:
        """Begin no attempt any more, and tell whoever stands in line. Releases go on."""
        self.retired = True
        self.recount()
        self.turns.end()

    @property
    def queued(self) -> int:
        """How many commands are in the common batch so far."""
        return len(self.batch) + len(self._to_merge)

    @property
    def is_idle(self) -> bool:
        """True when nothing is queued and no reply is awaited."""
        return not self.dirty and not any(pipe.pending for pipe in self.pipes)

    def status(self) -> tuple[InstanceStatus, ...]:
        """Every instance as it stands now."""
        return tuple(map(Pipeline.status, self.pipes, self.members, map(len, self.debts)))
