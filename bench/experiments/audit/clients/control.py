"""Implements a simple Redlock in which one fault is planted: *the name of a fault → a lock that has
this fault*. The audit must find this fault.

The name of a fault is the name of the schedule that must find it. The name "none" means that the
lock has no fault. Without a fault, the lock works as follows. The lock asks one instance after
another, and it waits a tenth of a second for each reply. The lock measures the validity of a lease
with the monotonic clock. The validity begins before the lock sends its first command. After a
failed attempt, the lock removes its keys. The source is the Redlock algorithm in "Distributed Locks
with Redis".
"""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from bench.experiments.judge.clients.lock import ClientOrder, Lock

DELETE = (
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"
)
EXTEND = (
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) "
    "else return 0 end"
)
ANSWER_S = 0.1
_AHEAD_S = 30.0


@dataclass
class _Held:
    """One lease with its key, its token and the time (s) at which it ends."""

    key: str
    token: str
    until_s: float


class _Manager:
    """A Redlock on the instances at `urls`, with one planted `fault`."""

    def __init__(self, urls: Sequence[str], fault: str) -> None:
        self.fault = fault
        self._pid = os.getpid()
        timeout_s = None if fault in ("one-stopped", "majority-down") else ANSWER_S
        # A new connection sends no greeting, because a clean-up would have to wait for the reply to
        # a greeting.
        options: dict[str, object] = {
            "lib_name": None,
            "lib_version": None,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        self._clients = [
            Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=1.0, **options)
            for url in urls
        ]
        self._quorum = len(urls) // 2 + 1
        self._clock = time.time if fault == "clock-back" else time.monotonic
        self._shas = [client.script_load(DELETE) for client in self._clients]
        self._last: _Held | None = None

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> _Held | None:
        """Acquire the lock of `resource`. After a failed attempt, the method tries again until
        `wait_ms` have passed."""
        if self.fault == "forked" and self._pid != os.getpid():
            return self._last
        give_up_s = time.monotonic() + wait_ms / 1000
        while True:
            self._last = self._attempt(resource, ttl_ms)
            if self._last is not None or time.monotonic() > give_up_s:
                return self._last
            time.sleep(0.05)

    def _attempt(self, key: str, ttl_ms: int) -> _Held | None:
        token = secrets.token_hex(8)
        if self.fault == "clock-ahead":
            token = f"{time.time() + _AHEAD_S}:{token}"
        started_s = self._clock()
        held = _Held(key, token, time.monotonic() + ttl_ms / 1000)
        try:
            votes = sum(self._vote(client, held, ttl_ms) for client in self._clients)
        except BaseException as error:
            if self.fault != (
                "one-killed" if isinstance(error, Exception) else "interrupted-acquire"
            ):
                self.give_back(held)
            raise
        in_time = self._clock() - started_s < ttl_ms / 1000 * 0.99 - 0.002
        if votes >= self._quorum and (in_time or self.fault == "paused-in-acquire"):
            return held
        if self.fault != "late-set":
            self.give_back(held)
        return None

    def _vote(self, client: Any, held: _Held, ttl_ms: int) -> bool:
        try:
            there = client.get(held.key) if self.fault == "clock-ahead" else None
            if there and float(there.split(b":")[0]) < time.time():
                client.delete(held.key)
            return bool(client.set(held.key, held.token, nx=True, px=ttl_ms))
        except RedisError:
            if self.fault == "one-killed":
                raise
            return self.fault == "majority-down"

    def give_back(self, held: _Held) -> bool:
        """Remove the keys of a lease. Return True if the method removed a key from at least a
        quorum of the instances."""
        return sum(self._remove(at, held) for at in range(len(self._clients))) >= self._quorum

    def _remove(self, at: int, held: _Held) -> bool:
        client: Any = self._clients[at]
        try:
            if self.fault == "release-after-expiry":
                return bool(client.delete(held.key))
            if self.fault == "paused-in-release":
                return client.get(held.key) == held.token.encode() and bool(client.delete(held.key))
            if self.fault == "script-flush":
                return bool(client.evalsha(self._shas[at], 1, held.key, held.token))
            return bool(client.eval(DELETE, 1, held.key, held.token))
        except RedisError:
            return False
        except KeyboardInterrupt:
            if self.fault != "interrupted-release":
                for left in range(at, len(self._clients)):
                    self._remove(left, held)
            raise

    def release(self, held: _Held) -> bool:
        return self.give_back(held) or self.fault == "paused-holder"

    def extend(self, held: _Held, ttl_ms: int) -> bool:
        started_s = time.monotonic()
        ours = 0
        plain = self.fault == "extend-after-expiry"
        for client in self._clients:
            with contextlib.suppress(RedisError):
                key = held.key
                token = held.token
                ours += bool(
                    client.pexpire(key, ttl_ms)
                    if plain
                    else client.eval(EXTEND, 1, key, token, ttl_ms)
                )
        quorum = 1 if self.fault == "extend-by-minority" else self._quorum
        if ours < quorum or (started_s > held.until_s and not plain):
            return False
        held.until_s = started_s + ttl_ms / 1000
        return True

    def is_held(self, held: _Held) -> bool:
        return time.monotonic() < held.until_s or self.fault == "paused-holder"

    @contextlib.contextmanager
    def hold(self, resource: str, ttl_ms: int, wait_ms: int) -> Iterator[None]:
        held = self.acquire(resource, ttl_ms, wait_ms)
        if held is None and self.fault != "body-without-lock":
            raise TimeoutError
        try:
            yield
        except Exception:
            if self.fault == "exception-in-body":
                held = None
            raise
        finally:
            if held is not None:
                self.release(held)


def control_lock(order: ClientOrder) -> Lock:
    """Return a lock with one planted fault. The name of the fault is the part of the lock's name
    after the colon."""
    manager = _Manager(order.urls, order.name.partition(": ")[2])
    return Lock(
        manager.acquire,
        manager.release,
        released=True,
        extend=manager.extend,
        is_held=manager.is_held,
        valid_ms=lambda held: (held.until_s - time.monotonic()) * 1000,
        hold=manager.hold,
    )
