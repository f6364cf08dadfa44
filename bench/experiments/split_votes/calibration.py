"""Votes shared out by pure chance: *one driver, K contenders, N instances → rounds of a simultaneous start*.

Rules: a round's K · N SETs leave one by one in one uniformly shuffled order over (contender, instance), on one
connection per instance, which keeps that order; nothing is released before all have answered. So each instance falls
to each contender with the chance 1/K, which is what the closed form assumes, and every vote is certain. Where the
server has SET NX GET, a refusal names the holder, and an attempt alone can tell a split vote from a held lock.
Source: bench.experiments.split_votes.trial, which judges these rounds as it judges those of real contenders.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from random import Random
from typing import Self
from urllib.parse import urlsplit

from bench.errors import EnvironmentNotReadyError
from bench.experiments.split_votes.plan import TTL_MS
from bench.experiments.split_votes.trial import Attempt, CastVote
from lockcore import Outcome, Vote
from lockcore.clock import NS_PER_MS, monotonic_ns
from lockcore.errors import ProtocolError
from lockcore.quorum import outcome_of, quorum_of
from lockcore.resp import ReplyError, ReplyReader, request

REPLY_S = 5.0
FIRST_WITH_NX_GET = (7, 0)
NAMES = "calibration-"


def names_holders(version: str) -> bool:
    """Whether a server of this version tells a refused SET NX GET who holds the key (Redis 7.0; any Valkey)."""
    numbers = version.split(".")[:2]
    return tuple(int(number) if number.isdigit() else 0 for number in numbers) >= FIRST_WITH_NX_GET


class Driver:
    """One connection per instance. A context manager."""

    def __init__(self, urls: Sequence[str], key_prefix: str, *, named: bool) -> None:
        """Connect. `named`: ask for the holder's name with each SET."""
        self._prefix, self._named = key_prefix, named
        with ExitStack() as stack:
            self._lines = [_Connection(url, stack) for url in urls]
            self._stack = stack.pop_all()

    def key(self, contenders: int, number: int) -> str:
        """The key of a round, prefix included."""
        return f"{self._prefix}{NAMES}{contenders}-{number}"

    def round(self, contenders: int, number: int, dice: Random) -> list[Attempt]:
        """Make one round: an attempt of each of the `contenders`. Raises EnvironmentNotReadyError."""
        key, lines, seats = self.key(contenders, number).encode(), self._lines, range(contenders)
        extra = (b"GET",) if self._named else ()
        start_ns = monotonic_ns()
        commands = [
            request(b"SET", key, b"contender-%d" % seat, b"NX", b"PX", b"%d" % TTL_MS, *extra) for seat in seats
        ]
        turns = [(seat, index) for seat in seats for index in range(len(lines))]
        dice.shuffle(turns)
        sent_ns = {}
        for seat, index in turns:
            sent_ns[seat, index] = monotonic_ns()
            lines[index].send(commands[seat])
        cast: list[list[CastVote]] = [[] for _ in seats]
        for index, line in enumerate(lines):
            replies, replied_ns = line.replies(contenders), monotonic_ns()
            for seat, reply in zip((seat for seat, there in turns if there == index), replies, strict=True):
                cast[seat].append(_ballot(reply, sent_ns[seat, index], replied_ns, self._named))
        decided_ns = monotonic_ns()
        for line in lines:
            line.send(request(b"DEL", key))
        for line in lines:
            line.replies(1)
        return [_attempt(seat, start_ns, decided_ns, tuple(cast[seat])) for seat in seats]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stack.close()


def _attempt(seat: int, started_ns: int, decided_ns: int, ballots: tuple[CastVote, ...]) -> Attempt:
    votes = [ballot.vote for ballot in ballots]
    outcome = outcome_of(votes.count(Vote.GRANTED), votes.count(Vote.REFUSED), quorum_of(len(votes)))
    until_ns = started_ns + TTL_MS * NS_PER_MS if outcome is Outcome.ACQUIRED else 0
    return Attempt(seat, started_ns, decided_ns, outcome, ballots, until_ns)


class _Connection:
    """The connection to one instance."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        address = urlsplit(url)
        self._address = f"{address.hostname}:{address.port}"
        try:
            sock = socket.create_connection((address.hostname, address.port or 6379), timeout=REPLY_S)
        except OSError as error:
            raise EnvironmentNotReadyError(f"{self._address} cannot be reached ({error.strerror}); start it") from error
        stack.enter_context(sock).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send, self._receive, self._reader = sock.sendall, sock.recv, ReplyReader()

    def replies(self, count: int) -> list[object]:
        """The next `count` replies, all that are due. Raises EnvironmentNotReadyError."""
        replies: list[object] = []
        try:
            while len(replies) < count:
                if not (data := self._receive(65_536)):
                    raise EnvironmentNotReadyError(f"{self._address} closed the connection in the middle of a round")
                replies += self._reader.all(data)
        except (OSError, ProtocolError) as error:
            raise EnvironmentNotReadyError(f"{self._address} did not answer a round: {error}") from error
        return replies


def _ballot(reply: object, sent_ns: int, replied_ns: int, named: bool) -> CastVote:
    """With GET the reply is who held the key before (nil: nobody, so it is ours); without, OK or nil."""
    if isinstance(reply, ReplyError):
        return CastVote(Vote.ERRORED, sent_ns, replied_ns)
    if reply is None or reply == b"OK":
        granted = (reply is None) == named
        return CastVote(Vote.GRANTED if granted else Vote.REFUSED, sent_ns, replied_ns)
    return CastVote(Vote.REFUSED, sent_ns, replied_ns, holder=str(reply, "utf-8", "replace"))  # type: ignore[call-overload]
