"""Acquire that waits for the disk: *SET … NX PX, then WAITAOF → a vote only if the instance says it is on its disk*.

Rules
- A vote needs both: the key was set, and WAITAOF's reply counts the local fsync. WAITAOF answers at its time-out, too,
  with what it has: the count is checked, never assumed. A quorum of such votes inside the validity is a lease.
- WAITAOF blocks its connection, so callers that share one are served in groups: whatever was asked for while a group
  waited goes together, its SETs and releases first and one WAITAOF behind them.
- WAITAOF causes no fsync, it waits for the next one of the server's own policy.
- For measuring on healthy instances: a connection that breaks raises, nothing is tried again.

Source: the reference page of WAITAOF (Redis 7.2, Valkey 8.0); lockcore.commands for the bytes.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from secrets import token_urlsafe
from typing import Any

import gevent
import hiredis
from gevent.event import Event
from gevent.socket import wait_read, wait_write
from greenlet import getcurrent

from lockcore.clock import NS_PER_MS, monotonic_ns
from lockcore.commands import FIRST_NUMBER, OWNER_TOKEN_BYTES, claim_stem, set_nx_px
from lockcore.quorum import quorum_of
from lockcore.resp import request
from lockcore.shells.handshake import Connected, shake
from lockcore.shells.target import InstanceTarget

READ_BYTES = 65536
DRIFT_FACTOR, DRIFT_MS = 0.01, 2
_PREFIX_CHARACTERS = OWNER_TOKEN_BYTES - 15
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Ballot:
    """The answers to one command that went to all instances, and whoever waits for them."""

    __slots__ = ("answered", "changed", "votes")

    def __init__(self) -> None:
        self.votes = self.answered = 0
        self.changed = Event()

    def vote(self, granted: bool) -> None:
        """One instance has answered."""
        self.answered += 1
        self.votes += granted
        self.changed.set()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A claim's SET, or its release."""

    claim: bytes
    releasing: bool
    ballot: Ballot


class _Connection:
    """One instance, one group of commands at a time."""

    def __init__(self, shaken: Connected, ttl_ms: int, timeout_ms: int, counts: Counter[str]) -> None:
        self._sock = shaken.sock
        self._release = shaken.dialect.encode_release
        self._head, self._tail = set_nx_px(ttl_ms)
        self._wait = request(b"WAITAOF", b"1", b"0", b"%d" % timeout_ms)
        self._counts = counts
        self._reader = hiredis.Reader()
        self._asked: list[_Asked] = []
        self._work = Event()
        owner = getcurrent()
        self._greenlet = gevent.spawn(self._serve)
        self._greenlet.link_exception(lambda ended: gevent.kill(owner, ended.exception))

    def ask(self, asked: _Asked) -> None:
        """Send this with the next group."""
        self._asked.append(asked)
        self._work.set()

    def close(self) -> None:
        self._greenlet.kill()
        self._sock.close()

    def _serve(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            group, self._asked = self._asked, []
            acquires = not all(asked.releasing for asked in group)
            self._send(b"".join([*map(self._encoded, group), self._wait if acquires else b""]))
            replies = [self._reply() for _ in group]
            durable = acquires and self._is_durable(self._reply())
            for asked, reply in zip(group, replies, strict=True):
                asked.ballot.vote(reply == 1 if asked.releasing else reply == b"OK" and durable)

    def _encoded(self, asked: _Asked) -> bytes:
        return self._release(asked.claim) if asked.releasing else self._head + asked.claim + self._tail

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._sock.send(left.tobytes()) :]
            except _BLOCKED:
                wait_write(self._sock.fileno())

    def _is_durable(self, reply: Any) -> bool:
        if isinstance(reply, hiredis.ReplyError):
            raise ConnectionError(f"WAITAOF failed: {reply}")
        durable = reply[0] >= 1
        self._counts["asked"] += 1
        self._counts["confirmed" if durable else "unconfirmed"] += 1
        return bool(durable)

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            try:
                data = self._sock.recv(READ_BYTES)
            except _BLOCKED:
                wait_read(self._sock.fileno())
                continue
            if not data:
                raise ConnectionError("an instance closed the connection")
            self._reader.feed(data)
        return reply


class WaitAofLock:
    """A quorum of instances, one connection to each. `counts`: WAITAOF replies asked, confirmed, unconfirmed."""

    def __init__(self, targets: Sequence[InstanceTarget], ttl_ms: int, timeout_ms: int, counts: Counter[str]) -> None:
        """Connect. Raises InstanceError when an instance cannot take part."""
        pool = gevent.get_hub().threadpool
        shaken = [job.get() for job in [pool.spawn(shake, target) for target in targets]]
        self._instances = [_Connection(one, ttl_ms, timeout_ms, counts) for one in shaken]
        self._quorum = quorum_of(len(targets))
        self._validity_ns = int((ttl_ms * (1 - DRIFT_FACTOR) - DRIFT_MS) * NS_PER_MS)
        self._prefix = targets[0].key_prefix
        self._token = token_urlsafe(_PREFIX_CHARACTERS)[:_PREFIX_CHARACTERS].encode()
        self._number = FIRST_NUMBER

    def acquire(self, resource: str) -> bytes | str:
        """The claim of a lease, or the name of the outcome of an acquire that got none; it is cleaned up then."""
        started_ns = monotonic_ns()
        self._number += 1
        claim = claim_stem(f"{self._prefix}{resource}".encode(), self._token) + b"%d\r\n" % self._number
        ballot = self._decided(claim, releasing=False)
        if ballot.votes >= self._quorum and monotonic_ns() < started_ns + self._validity_ns:
            return claim
        self.release(claim)
        return "too_late" if ballot.votes >= self._quorum else "unreachable"

    def release(self, claim: bytes) -> bool:
        """Give it back on all instances; True when a quorum had it."""
        return self._decided(claim, releasing=True).votes >= self._quorum

    def close(self) -> None:
        """Close all connections."""
        for instance in self._instances:
            instance.close()

    def _decided(self, claim: bytes, *, releasing: bool) -> Ballot:
        """Ask all; return once a quorum said yes, or all have answered."""
        ballot = Ballot()
        for instance in self._instances:
            instance.ask(_Asked(claim, releasing, ballot))
        while ballot.votes < self._quorum and ballot.answered < len(self._instances):
            ballot.changed.clear()
            ballot.changed.wait()
        return ballot
