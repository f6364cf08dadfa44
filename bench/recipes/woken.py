"""Locks on one instance.

A release wakes the callers that wait. A refused caller listens, and a release sends a message.

    set-nx-blpop    the release pushes to a list that lasts a second; one push wakes one caller, in
                    the order of their arrival
    set-nx-pubsub   the release publishes; all waiting callers hear it and try, and one of them wins

Rules
- A message does not give the lock to the caller that it wakes. The woken caller must try to lock
  like any other caller.
- If a message is lost, the waiting caller tries again after `LOOK_MS`.
- If a caller cannot listen, it retries at intervals.

Source: python-redis-lock and the BLPOP command's reference page ("Pattern: event notification").
Redisson's RLock subscribes after a refusal and tries again before it waits.
"""

from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from redis.client import PubSub
from redis.exceptions import RedisError

from bench.recipes.fencing import script_of
from bench.recipes.one_instance import SetNxLuaRecipe
from lockcore import Denied, Lease, Outcome
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

LOOK_MS = 200
RELEASE_AND_WAKE = script_of(
    """-- KEYS[1] the key, KEYS[2] the list, ARGV[1] owner token → 1 released, 0 another's
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('LPUSH', KEYS[2], '1')
redis.call('PEXPIRE', KEYS[2], 1000)
return 1
"""
)
RELEASE_AND_PUBLISH = script_of(
    """-- KEYS[1] the key and the channel, ARGV[1] owner token → 1 released, 0 another's
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[1], '1')
return 1
"""
)
# The subscription that belongs to the waiting caller.
_EAR: ContextVar[PubSub | None] = ContextVar("ear", default=None)


class _Woken(SetNxLuaRecipe):
    """A lock that lets refused callers wait for a message.

    Each refused caller listens until a message wakes the caller, but at most for `LOOK_MS`.
    """

    def next_start_ns(
        self, outcome: Outcome, attempts: int, now_ns: int, deadline_ns: int
    ) -> int | None:
        start_ns = super().next_start_ns(outcome, attempts, now_ns, deadline_ns)
        if start_ns is None or outcome is not Outcome.CONTENDED:
            return start_ns
        return min(now_ns + LOOK_MS * NS_PER_MS, deadline_ns)

    def rest(self, resource: str, outcome: Outcome, delay_ns: int) -> None:
        """Listen for `delay_ns`, but at least for a millisecond.

        If the caller cannot listen, the caller sleeps.
        """
        if outcome is Outcome.CONTENDED:
            delay_ns = max(delay_ns, NS_PER_MS)
            with suppress(RedisError):
                self.listen(resource, delay_ns)
                return
        super().rest(resource, outcome, delay_ns)

    def listen(self, resource: str, delay_ns: int) -> None:
        """Wait until a message comes, or for at most `delay_ns`. Raises RedisError."""
        raise NotImplementedError


class SetNxBlpop(_Woken):
    """A lock whose release wakes one waiting caller."""

    about = replace(
        SetNxLuaRecipe.about,
        how="like set-nx-lua, but waiting callers block in BLPOP on a list that a release fills",
        flaw="none in the lock itself; it has one instance, and a release costs more even if "
        "no caller waits",
    )

    def give_back(self, lease: Lease) -> Outcome:
        keys = self.key(lease.resource), self._list(lease.resource)
        return (
            Outcome.RELEASED
            if self.server.run(RELEASE_AND_WAKE, keys, lease.owner_token)
            else Outcome.GONE
        )

    def listen(self, resource: str, delay_ns: int) -> None:
        self.server.block(delay_ns / NS_PER_S, "BLPOP", self._list(resource))

    def _list(self, resource: str) -> str:
        return f"{self.key(resource)}:released"


class SetNxPubsub(_Woken):
    """A lock whose release wakes all waiting callers."""

    about = replace(
        SetNxLuaRecipe.about,
        how="like set-nx-lua, but waiting callers subscribe to a channel, and a release "
        "publishes to this channel",
        flaw="it depends on one instance; waiting callers need a connection each, and a release "
        "wakes them all",
        channels=True,
    )

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._idle: list[PubSub] = []

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        before = _EAR.set(None)
        try:
            return super().acquire(resource, ttl_ms, wait_ms)
        finally:
            ear = _EAR.get()
            _EAR.reset(before)
            if ear is not None:
                self._leave(ear)

    def give_back(self, lease: Lease) -> Outcome:
        keys = (self.key(lease.resource),)
        return (
            Outcome.RELEASED
            if self.server.run(RELEASE_AND_PUBLISH, keys, lease.owner_token)
            else Outcome.GONE
        )

    def listen(self, resource: str, delay_ns: int) -> None:
        """Wait for a message.

        The first call of a caller only waits until the server confirms the subscription. After this
        call, the caller must try again, because the resource may have become free before the
        confirmation.
        """
        ear = _EAR.get()
        kind = "message"
        if ear is None:
            ear = self._idle.pop() if self._idle else self.server.listener()
            kind = "subscribe"
            _EAR.set(ear)
            ear.subscribe(self.key(resource))
        until_ns = monotonic_ns() + delay_ns
        while (left_ns := until_ns - monotonic_ns()) > 0:
            heard = ear.get_message(timeout=left_ns / NS_PER_S)
            if heard and heard["type"] == kind and heard["channel"] == self.key(resource).encode():
                return

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        super().close()

    def _leave(self, ear: PubSub) -> None:
        try:
            ear.unsubscribe()  # type: ignore[no-untyped-call]
        except RedisError:
            ear.close()
        else:
            self._idle.append(ear)
