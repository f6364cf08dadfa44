"""What is about to leave: *commands for all voters or for one → one write per connection*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: a constant is
`Final`, and a list stands where `any` would need a generator.

Rules: a command for all voters is encoded once, appended once to the *batch*, and sent once per
pass of the loop to each voter. A command for some instances only goes to their own queues. Both
keep one order per connection: before something is queued for one instance, the batch so far is
moved into the queues (`spill`).
"""

from collections.abc import Callable, Sequence
from typing import Final

from lockcore.clock import FAR_FUTURE_NS
from lockcore.rounds.awaited import Awaited, InstancePipe, nothing
from lockcore.rounds.commands import Encode, merged_release
from lockcore.rounds.deadlines import Deadlines
from lockcore.rounds.flight import FEWEST_PER_ONE_APART, SMALLEST, Flight, MergedReply
from lockcore.rounds.pipeline import Pipeline
from lockcore.rounds.rounds import Part, ReleaseRound, RoundEngine, SetRound
from lockcore.rounds.watched import WatchedSetRound

# A batch for one or two instances leaves when it has this many commands. All of those instances
# are needed for a quorum, so they would only wait while the rest of the batch is made. With one
# instance and 64 callers the rate rose from 158,000 to 269,000 cycles/s, with two from 112,000 to
# 132,000. With three and more the servers have enough to do: it fell from 138,000 to 131,000.
# At 12 commands one instance costs a fifth more CPU; at 48 nothing is gained
# (docs/lab/lockcore.md).
EARLY: Final = 32  # commands

# A batch for three or more instances leaves when it has this many commands. From 128 to 2,048 it
# costs the same within 5 %. Without a limit the first of 5,000 commands waits 50 ms until the last
# one is made, and has a tenth of its timeout left: 12,439 acquires of one run were UNREACHABLE.
LARGEST: Final = 512  # commands


class Outbox:
    """The commands of one pass of the loop.

    `dirty`: something is queued that `Engine.flush` has not begun to send. `flushing`: it is
    sending. `want_flush` is called when something is queued first, and when the batch has `early`
    commands. The shell then calls `flush` soon. `leaves` is called before the commands leave. It
    may queue more behind them.

    `_batch` are the encoded commands for all voters, `_rounds` the rounds that await their replies,
    `_shortest_ns` the shortest of their timeouts. `_to_merge` are the releases that will be one
    script call, `_merge_keys` their resources. `_watched` are the watched rounds of the batch,
    `_unstamped` those whose batch leaves next. `_encode_release` is how all voters are told to
    release; None where they differ.
    """

    def __init__(
        self,
        engine: RoundEngine,
        pipes: Sequence[Pipeline],
        deadlines: Deadlines,
        want_flush: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._pipes = pipes
        self._deadlines = deadlines
        self._want_flush = want_flush
        self.dirty = self.flushing = False
        self.leaves: Callable[[], object] = nothing
        self.early = LARGEST
        self._batch = list[bytes]()
        self._rounds = list[Part]()
        self._shortest_ns = FAR_FUTURE_NS
        self._to_merge = list[ReleaseRound]()
        self._merge_keys = set[str]()
        self._watched = list[WatchedSetRound]()
        self._unstamped = list[WatchedSetRound]()
        self._encode_release: Encode | None = None
        self._merges = False

    @property
    def queued(self) -> int:
        """How many commands are in the batch so far."""
        return len(self._batch) + len(self._to_merge)

    def voters_changed(self, *, merge_releases: bool) -> None:
        """Adapt to the voters, which are others now. The batch so far has been moved away."""
        voters = self._engine.voters
        self.early = EARLY if len(voters) <= 2 else LARGEST
        kinds = {pipe.dialect.release_command for pipe in voters}
        self._encode_release = voters[0].dialect.encode_release if len(kinds) == 1 else None
        self._merges = merge_releases and kinds == {"evalsha"}

    def add_set(self, round_: SetRound) -> None:
        """Queue the SET of a round for all voters."""
        if round_.resource in self._merge_keys:
            # The release of a key goes before the next SET on it.
            self._merge()
        if round_.watched:
            self._watched.append(round_)  # type: ignore[arg-type]
        terms = round_.terms
        self._batch.append(terms.set_head + round_.claim + terms.set_tail)
        self._rounds.append(round_)
        self._added(terms.timeout_ns)

    def add_release(self, round_: ReleaseRound) -> bool:
        """Queue a release for all voters. False where they are not told in the same way."""
        won = round_.won
        if self._encode_release is None:
            return False
        if self._merges:
            self._to_merge.append(round_)
            self._merge_keys.add(won.resource)
        else:
            self._batch.append(self._encode_release(won.claim))
            self._rounds.append(round_)
        self._added(won.terms.timeout_ns)
        return True

    def _added(self, timeout_ns: int) -> None:
        self._shortest_ns = min(self._shortest_ns, timeout_ns)
        if not self.dirty or len(self._batch) + len(self._to_merge) == self.early:
            self._want()

    def _want(self) -> None:
        self.dirty = True
        self._want_flush()

    def add_for(self, pipe: InstancePipe, data: bytes, awaited: Awaited) -> None:
        """Queue a command for one instance, behind the batch so far. Nothing is sent by that."""
        self.spill()
        pipe.queue.append(data)
        pipe.expect(awaited)

    def unicast(self, pipe: InstancePipe, data: bytes, awaited: Awaited) -> None:
        """Send a command to one instance soon. It may leave at once."""
        self.spill()
        if not pipe.is_open:
            # What was sent a moment ago has broken the connection.
            awaited.silence(pipe)
            return
        self.add_for(pipe, data, awaited)
        if not self.dirty:
            self._want()

    def spill(self) -> None:
        """Move the batch into each voter's own queue, in order."""
        if not self._batch and not self._to_merge:
            return
        data, commands = self._take_batch()
        pipe: Pipeline
        for pipe in self._engine.voters:
            pipe.queue.append(data)
            # `send` will count this piece of the queue as one command.
            pipe.traffic.commands += commands - 1

    def _merge(self) -> None:
        """Make one script call of the releases of this pass.

        Its reply is a header and one part for each release.
        """
        releases = self._to_merge
        if len(releases) == 1:
            self._batch.append(releases[0].encode(self._engine.voters[0].dialect))
        else:
            self._batch.append(merged_release([round_.won.claim for round_ in releases]))
            self._rounds.append(MergedReply(self._engine, releases))
        self._rounds += releases
        # This comes last, so that an interrupt loses no release.
        self._to_merge = []
        self._merge_keys.clear()

    def _take_batch(self) -> tuple[bytes, int]:
        """The bytes of the batch, and how many commands they are. From now on it is awaited."""
        if self._to_merge:
            self._merge()
        engine = self._engine
        data = b"".join(self._batch)
        commands = len(self._batch)
        rounds = self._rounds
        watched = self._watched
        self._watched = []
        self._unstamped += watched
        is_flight = len(rounds) - len(watched) * FEWEST_PER_ONE_APART >= SMALLEST
        flight = Flight(engine, rounds) if is_flight else None
        # An interrupt may have come before the first round was added.
        if rounds:
            self._deadlines.watch_batch(rounds, engine.now_ns, self._shortest_ns)
        pipe: Pipeline
        for pipe in engine.voters:
            pipe.expect_batch(flight, rounds)
        self._shortest_ns = FAR_FUTURE_NS
        # These come last, so that an interrupt loses no round.
        self._batch = []
        self._rounds = []
        return data, commands

    def send(self, now_ns: int) -> None:
        """Send everything that is queued, in one write per connection."""
        self.dirty = self._engine.followed = False
        self.leaves()
        if self._batch or self._to_merge:
            voters: tuple[Pipeline, ...] = self._engine.voters
            if [pipe for pipe in voters if pipe.queue]:
                self.spill()
            else:
                data, commands = self._take_batch()
                self._stamp(now_ns)
                for pipe in voters:
                    pipe.send(data, commands)
        self._stamp(now_ns)
        for pipe in self._pipes:
            if pipe.queue:
                queued = pipe.queue
                pipe.queue = []
                pipe.send(b"".join(queued), len(queued))

    def _stamp(self, now_ns: int) -> None:
        if self._unstamped:
            for watched in self._unstamped:
                watched.sent(now_ns)
            self._unstamped = []
