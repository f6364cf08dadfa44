"""This module collects the commands to send.

Input: commands for all voters, and commands for one instance. Output: one write per connection.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, each constant is declared as `Final`. For the same reason, the code tests a list
instead of calling `any` with a generator.

Rules: a command for all voters is encoded once, appended once to the *batch*, and sent once per
pass of the loop to each voter. If a command is only for some instances, the outbox appends it to
the queues of these instances. Each connection keeps the order of its commands. So before the outbox
queues a command for one instance, the method `spill` moves the present batch into the queues.
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

# A batch for one or two instances leaves when it has this many commands. With one or two instances,
# a quorum needs all instances. The instances would idle until the rest of the batch is encoded.
# With 64 callers and one instance, the rate rose from 158,000 to 269,000 cycles/s. With two
# instances it rose from 112,000 to 132,000. With three instances and more, the servers are busy
# anyway, and the rate fell from 138,000 to 131,000. A limit of 12 commands costs a fifth more CPU
# with one instance. A limit of 48 commands gains nothing (docs/lab/lockcore.md).
EARLY: Final = 32  # commands

# A batch for three or more instances leaves when it has this many commands. For limits from 128 to
# 2,048 commands the cost is the same within 5 %. Without a limit, the first of 5,000 commands waits
# 50 ms until the last command is encoded. The first command then has a tenth of its timeout left.
# In one run this delay made 12,439 acquires UNREACHABLE.
LARGEST: Final = 512  # commands


class Outbox:
    """An object that collects the commands of one pass of the event loop.

    `dirty` is True while the queues contain commands that `Engine.flush` has not begun to send.
    `flushing` is True while `Engine.flush` sends. `want_flush` is called when the first command of
    a pass is queued. `want_flush` is called a second time when the batch has `early` commands. The
    shell then calls `flush` soon. `leaves` is called before the queued commands are sent. `leaves`
    may append more commands to the queues.

    `_batch` contains the encoded commands for all voters. `_rounds` contains the rounds that await
    their replies, and `_shortest_ns` is the shortest timeout of these rounds. `_to_merge` contains
    the releases of the next merged script call, and `_merge_keys` contains their resources.
    `_watched` contains the watched rounds of the batch. `_unstamped` contains the watched rounds
    that have left the batch, as long as their time of sending is not known. `_encode_release`
    encodes a release for all voters. If the voters need different commands, `_encode_release` is
    None.
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
        """The number of commands in the present batch."""
        return len(self._batch) + len(self._to_merge)

    def voters_changed(self, *, merge_releases: bool) -> None:
        """Adapt to new voters.

        Call `spill` before the voters change, because `spill` moves the batch into the queues of
        the old voters.
        """
        voters = self._engine.voters
        self.early = EARLY if len(voters) <= 2 else LARGEST
        kinds = {pipe.dialect.release_command for pipe in voters}
        self._encode_release = voters[0].dialect.encode_release if len(kinds) == 1 else None
        self._merges = merge_releases and kinds == {"evalsha"}

    def add_set(self, round_: SetRound) -> None:
        """Queue the SET of a round for all voters."""
        if round_.resource in self._merge_keys:
            # The release of a key must go before the next SET on this key.
            self._merge()
        if round_.watched:
            self._watched.append(round_)  # type: ignore[arg-type]
        terms = round_.terms
        self._batch.append(terms.set_head + round_.claim + terms.set_tail)
        self._rounds.append(round_)
        self._added(terms.timeout_ns)

    def add_release(self, round_: ReleaseRound) -> bool:
        """Queue a release for all voters.

        The voters may need different commands. In this case the method queues nothing and returns
        False.
        """
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
        """Queue a command for one instance. The commands of the present batch leave before this
        command. This method sends nothing."""
        self.spill()
        pipe.queue.append(data)
        pipe.expect(awaited)

    def unicast(self, pipe: InstancePipe, data: bytes, awaited: Awaited) -> None:
        """Queue a command for one instance. The command is sent soon, possibly at once."""
        self.spill()
        if not pipe.is_open:
            # The connection broke while earlier commands were sent.
            awaited.silence(pipe)
            return
        self.add_for(pipe, data, awaited)
        if not self.dirty:
            self._want()

    def spill(self) -> None:
        """Append the batch to the queue of each voter.

        The order of the commands does not change.
        """
        if not self._batch and not self._to_merge:
            return
        data, commands = self._take_batch()
        pipe: Pipeline
        for pipe in self._engine.voters:
            pipe.queue.append(data)
            # `send` will count this piece of the queue as one command.
            pipe.traffic.commands += commands - 1

    def _merge(self) -> None:
        """Merge all queued releases of the present pass into one script call.

        The reply to this call has a header and one part for each release.
        """
        releases = self._to_merge
        if len(releases) == 1:
            self._batch.append(releases[0].encode(self._engine.voters[0].dialect))
        else:
            self._batch.append(merged_release([round_.won.claim for round_ in releases]))
            self._rounds.append(MergedReply(self._engine, releases))
        self._rounds += releases
        # The releases are removed last, so that an interrupt loses no release.
        self._to_merge = []
        self._merge_keys.clear()

    def _take_batch(self) -> tuple[bytes, int]:
        """Take the present batch, and start to await its replies. Return the bytes and the number
        of commands."""
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
        # The batch is emptied last, so that an interrupt loses no round.
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
