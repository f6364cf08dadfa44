"""This module decides which instances may vote: *new connections, lost connections, lag and the
time → the voters*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. For this reason,
each constant is declared as `Final`, and the attributes of `Core` are declared only in `Core`.

Rules: facts/membership.py decides the state of one instance. Before the voters change, the outbox
moves its batch of commands to the queues of the old voters. For the same voters, lockcore always
uses the same tuple object. So a release can check with one identity comparison whether its SET was
sent to the present voters.
"""

from collections.abc import Callable, Sequence
from typing import Final

from lockcore.clock import NS_PER_MS
from lockcore.engine.amnesia import Amnesia
from lockcore.engine.outbox import Outbox
from lockcore.facts.membership import VOTING, Hello, Membership, State, abstention_ns, forgotten_ns
from lockcore.facts.model import InstanceStatus
from lockcore.rounds.awaited import Asked, Transmit
from lockcore.rounds.claims import Recent
from lockcore.rounds.commands import Dialect
from lockcore.rounds.owed import Debts
from lockcore.rounds.pipeline import Pipeline
from lockcore.rounds.resp import request
from lockcore.rounds.rounds import RoundEngine
from lockcore.settings import Settings

VOTER_SETS_KEPT: Final = 64

# If an instance does not vote and has not answered, this time passes between two checks.
LOOK_NS: Final = 500 * NS_PER_MS


class Members:
    """The instances of one Redlock.

    `states` contains the state of each instance. `debts` contains the releases that each instance
    must still get. `amnesia` notices instances that have forgotten their locks. The voters are
    `Core.voters`.
    """

    def __init__(
        self,
        engine: RoundEngine,
        pipes: Sequence[Pipeline],
        outbox: Outbox,
        settings: Settings,
        wake: Callable[[int], object],
    ) -> None:
        self._engine = engine
        self._pipes = pipes
        self._outbox = outbox
        self._settings = settings
        self.states = [Membership() for _ in pipes]
        forgotten = forgotten_ns(settings.rejoin, settings.max_ttl_ms, settings.drift_factor)
        self.amnesia = Amnesia(engine, self.states, forgotten, self.recount)
        for pipe in pipes:
            pipe.forgot = self.amnesia.noticed
        self.debts = [Debts(engine, pipe, settings, wake) for pipe in pipes]
        self._voter_sets: Recent[tuple[int, ...], tuple[Pipeline, ...]] = Recent(VOTER_SETS_KEPT)

    def attach(
        self, index: int, hello: Hello, dialect: Dialect, transmit: Transmit, now_ns: int
    ) -> None:
        """Start to use a new connection of instance `index`. After this call, the instance votes or
        abstains.

        This method also sends all releases that the instance has not received yet.
        """
        self._engine.now_ns = now_ns
        pipe = self._pipes[index]
        state = self.states[index]
        settings = self._settings
        earlier = state.hello
        abstention = abstention_ns(
            hello, earlier, settings.rejoin, settings.max_ttl_ms, settings.drift_factor
        )
        state.joined(hello, abstention, now_ns)
        pipe.open(transmit, dialect)
        if earlier is not None:
            pipe.traffic.reconnects += 1
            if earlier.run_id == hello.run_id and earlier.client_id:
                # The old connection's commands must not arrive behind the releases below.
                kill = request(b"CLIENT", b"KILL", b"ID", b"%d" % earlier.client_id)
                self._outbox.unicast(pipe, kill, Asked(now_ns))
        self.debts[index].connected(now_ns)
        self.recount()

    def detach(self, index: int, reason: str, now_ns: int, *, refused: bool = False) -> None:
        """Update the state of an instance whose connection has ended or could not be opened.

        Open votes become SILENT, and the engine sends open releases again later (owed.py).
        """
        self._engine.now_ns = now_ns
        pipe = self._pipes[index]
        self.states[index].lost(reason, now_ns, refused=refused)
        if pipe.is_open:
            self._outbox.spill()
            losses = pipe.break_off()
            self.recount()
            for awaited in losses:
                awaited.silence(pipe)
        else:
            self.debts[index].forget(now_ns)

    def recount(self) -> None:
        """Compute which instances vote now, and tell the outbox about them."""
        self._outbox.spill()
        indices = list[int]()
        if not self._engine.retired:
            indices = [index for index, state in enumerate(self.states) if state.state is VOTING]
        voting = tuple(indices)
        voters = self._voter_sets.get(voting)
        if voters is None:
            voters = tuple([self._pipes[index] for index in voting])
            self._voter_sets.keep(voting, voters)
        self._engine.voters = voters
        self._outbox.voters_changed(merge_releases=self._settings.merge_releases)

    # -- lag and time ------------------------------------------------------------------------------

    def leave_out(self, reason_of: Callable[[Pipeline], str]) -> None:
        """Stop sending SETs to each voter for which `reason_of` returns a reason. Such a voter
        votes again after it has answered all commands.
        """
        reasons = [(pipe, reason) for pipe in self._engine.voters if (reason := reason_of(pipe))]
        for pipe, reason in reasons:
            self.states[pipe.index].lagged(reason)
        if reasons:
            self.recount()

    def leave_out_by_size(self) -> None:
        """Leave out each voter that has too many unanswered commands, or for which too many bytes
        wait to be sent."""
        if [pipe for pipe in self._pipes if pipe.over_size()]:
            self.leave_out(Pipeline.over_size)

    def answered(self, pipe: Pipeline) -> None:
        """Let a lagging instance vote again if it has now answered all commands."""
        state = self.states[pipe.index]
        if state.state is State.LAGGING and not pipe.pending:
            state.caught_up()
            self.recount()

    def tick(self, now_ns: int) -> None:
        """Do all work that is due at `now_ns`.

        This method sends owed releases, ends abstentions and leaves out slow instances. It also
        asks instances whether they have forgotten locks.
        """
        for debts in self.debts:
            debts.tick(now_ns)
        if len(self._engine.voters) < len(self.states):
            returned = [state for state in self.states if state.abstained(now_ns)]
            if returned:
                self.recount()
        if [pipe for pipe in self._engine.voters if pipe.pending]:
            self.leave_out(lambda pipe: pipe.over_age(now_ns))
        self.amnesia.ask(self._pipes, now_ns)

    def next_ns(self, now_ns: int) -> int:
        """Return the next time (ns) at which `tick` has work for an instance."""
        voters = self._engine.voters
        due = [debts.due_ns for debts in self.debts]
        due += [state.next_ns for state in self.states]
        due += [
            now_ns + (pipe.lag_ns if pipe in voters else LOOK_NS)
            for pipe in self._pipes
            if pipe.pending
        ]
        return min(due)

    def silent(self, now_ns: int) -> list[int]:
        """Return the instances to which the shell must close its connection and connect again.

        Such an instance has unanswered commands, and it has answered no command for `silence_ns`.
        """
        silence_ns = self._settings.silence_ns
        return [pipe.index for pipe in self._pipes if pipe.is_silent(now_ns, silence_ns)]

    def due_connects(self, now_ns: int) -> list[int]:
        """Return the instances to which the shell must connect now.

        This method returns each instance only once, until `attach` or `detach` reports the result.
        """
        return [index for index, state in enumerate(self.states) if state.is_taken_up(now_ns)]

    def status(self) -> tuple[InstanceStatus, ...]:
        """The present status of every instance."""
        return tuple(map(Pipeline.status, self._pipes, self.states, map(len, self.debts)))
