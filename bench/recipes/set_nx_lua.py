"""The plain lock on one instance: *SET key token NX PX ttl, and a Lua script that deletes only its own*.

Rules
- Through redis-py as people use it, without its retries: a retried SET NX reads its own first success as a refusal.
- The owner token is unique per attempt. A SET without a reply may have happened, so it is cleaned up, as is the one
  of a caller that was killed; a connection that broke in the middle is never used again (redis-py closes it).
- EVALSHA; an instance that forgot the script (SCRIPT FLUSH, restart) is sent its source.
- Retries, validity and drift are lockcore's own, so that only the way of locking differs.

Source: the SET command's reference page ("Patterns"); recipes table in the README of this folder.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count
from random import random
from typing import Any, Self

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import (
    BusyLoadingError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.recipes.protocol import RecipeSettings
from lockcore import Denied, InstanceStatus, Lease, Outcome, Tally
from lockcore.clock import NS_PER_MS, NS_PER_S, drift_ns, monotonic_ns
from lockcore.commands import COMPARE_AND_DELETE
from lockcore.errors import InstanceError
from lockcore.membership import Hello
from lockcore.model import Closed
from lockcore.shells.handshake import shake
from lockcore.shells.target import target_of

OBSERVE_EVERY = 64
DRIFT_FACTOR = 0.01  # lockcore's default

GRANTED = Closed(Tally(granted=1))
REFUSED = Tally(refused=1)
ERRORED = Tally(errored=1)
SILENT = Tally(silent=1)
DEFINITE = (ResponseError, BusyLoadingError)  # the instance answered with an error: nothing changed
_KINDS = {OutOfMemoryError: "OOM", ReadOnlyError: "READONLY", BusyLoadingError: "LOADING"}  # redis-py drops the word


class SetNxLuaRecipe:
    """A lock on one instance. Callers share the pool; each takes a connection for one command."""

    def __init__(self, url: str, address: str, hello: Hello, settings: RecipeSettings) -> None:
        timeout_ms = settings.instance_timeout_ms or min(50.0, settings.max_ttl_ms / 4)
        pool = ConnectionPool.from_url(
            url,
            socket_timeout=timeout_ms / 1000,
            socket_connect_timeout=settings.connect_timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            driver_info=None,
        )
        self._client: Redis = Redis(connection_pool=pool)
        self._address, self._hello = address, hello
        self._retry = settings.retry
        self._max_ttl_ms = settings.max_ttl_ms
        self._prefix = settings.key_prefix
        self._token_prefix = secrets.token_hex(16)
        self._tokens = count(1)
        self._commands = 0
        self._errors: Counter[str] = Counter()
        self._down = ""
        self._reply_times_ns: list[int] = []

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """See `Recipe.connect`: the one target must answer and be a primary."""
        url = targets[0]
        try:
            target = target_of(url, settings.connect_timeout_s, settings.key_prefix)
            shaken = shake(target)
        except ValueError as error:
            raise UsageError(str(error)) from error
        except InstanceError as error:
            raise EnvironmentNotReadyError(f"{error}; start it, or name another instance with --target") from error
        shaken.sock.close()
        return cls(url, target.address, shaken.hello, settings)

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        """Lock `resource` for `ttl_ms` (1 … max_ttl_ms), trying for up to `wait_ms`. Raises ValueError beyond."""
        if not 1 <= ttl_ms <= self._max_ttl_ms:
            raise ValueError(f"ttl_ms {ttl_ms} is not 1 … max_ttl_ms ({self._max_ttl_ms})")
        first_ns = monotonic_ns()
        deadline_ns = first_ns + wait_ms * NS_PER_MS
        attempts = 0
        while True:
            attempts += 1
            result = self._attempt(resource, ttl_ms, attempts)
            if isinstance(result, Lease):
                return result
            outcome, tally = result
            now_ns = monotonic_ns()
            start_ns = self._retry.next_start_ns(outcome, attempts, now_ns, deadline_ns, random())
            if start_ns is None:
                return Denied(resource, outcome, tally, attempts, 0, first_ns, now_ns)
            time.sleep((start_ns - now_ns) / NS_PER_S)

    def release(self, lease: Lease, /) -> Outcome:
        """Delete the key if it is still ours. A caller that is killed here has it deleted all the same."""
        try:
            return self._delete(lease.resource, lease.owner_token)
        except BaseException:
            self._delete(lease.resource, lease.owner_token)
            raise

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        """The one instance."""
        return (
            InstanceStatus(
                index=0,
                address=self._address,
                state="down" if self._down else "voting",
                reason=self._down,
                run_id=self._hello.run_id,
                server=self._hello.server,
                release_command="evalsha",
                commands=self._commands,
                writes=self._commands,
                reads=self._commands,
                errors=dict(self._errors),
            ),
        )

    def take_reply_times_ns(self) -> tuple[list[int], ...]:
        """How long (ns) one SET in 64 took since the last call."""
        taken, self._reply_times_ns = self._reply_times_ns, []
        return (taken,)

    def close(self) -> None:
        """Close the pool."""
        self._client.close()
        self._client.connection_pool.disconnect()

    def _attempt(self, resource: str, ttl_ms: int, attempts: int) -> Lease | tuple[Outcome, Tally]:
        number = next(self._tokens)
        token = f"{self._token_prefix}{number:012x}".encode()
        started_ns = monotonic_ns()
        try:
            reply = self._ask("SET", self._prefix + resource, token, "NX", "PX", ttl_ms)
        except DEFINITE:
            return Outcome.UNREACHABLE, ERRORED
        except RedisError:
            self._delete(resource, token)
            return Outcome.UNREACHABLE, SILENT
        except BaseException:
            self._delete(resource, token)
            raise
        granted_ns = monotonic_ns()
        if number % OBSERVE_EVERY == 0:
            self._reply_times_ns.append(granted_ns - started_ns)
        if reply is None:
            return Outcome.CONTENDED, REFUSED
        valid_until_ns = started_ns + ttl_ms * NS_PER_MS - drift_ns(ttl_ms, DRIFT_FACTOR)
        if granted_ns >= valid_until_ns:
            self._delete(resource, token)
            return Outcome.TOO_LATE, GRANTED.tally
        return Lease(resource, token, ttl_ms, started_ns, granted_ns, valid_until_ns, GRANTED, attempts)

    def _delete(self, resource: str, token: bytes) -> Outcome:
        key = self._prefix + resource
        try:
            try:
                deleted = self._ask("EVALSHA", COMPARE_AND_DELETE.sha, 1, key, token)
            except NoScriptError:
                deleted = self._ask("EVAL", COMPARE_AND_DELETE.source, 1, key, token)
        except RedisError:
            return Outcome.UNREACHABLE
        return Outcome.RELEASED if deleted else Outcome.GONE

    def _ask(self, *command: Any) -> Any:
        self._commands += 1
        try:
            reply = self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except NoScriptError:
            raise
        except DEFINITE as error:
            self._errors[_KINDS.get(type(error)) or str(error).partition(" ")[0]] += 1
            raise
        except RedisError as error:
            self._errors[type(error).__name__] += 1
            self._down = f"{type(error).__name__}"
            raise
        self._down = ""
        return reply
