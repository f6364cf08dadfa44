"""One server as the recipes talk to it: *a command → its reply, counted*.

Rules
- Through redis-py as people use it, without its retries: a retried SET NX reads its own first success as a refusal.
- A connection that broke in the middle is never used again (redis-py closes it).
- EVALSHA; an instance that forgot the script (SCRIPT FLUSH, restart) is sent its source.

Source: bench.topology.target; EVALSHA's reference page.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from redis import Redis
from redis.exceptions import (
    BusyLoadingError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from bench.errors import UsageError
from bench.recipes.protocol import RecipeSettings
from bench.topology.target import connection_pool
from lockcore import InstanceStatus
from lockcore.clock import monotonic_ns
from lockcore.commands import COMPARE_AND_DELETE, Script
from lockcore.errors import InstanceError
from lockcore.membership import Hello
from lockcore.shells.handshake import shake
from lockcore.shells.target import target_of

OBSERVE_EVERY = 61  # a prime, so that every kind of command has its turn
DEFINITE = (ResponseError, BusyLoadingError)  # the instance answered with an error: nothing changed
_KINDS = {OutOfMemoryError: "OOM", ReadOnlyError: "READONLY", BusyLoadingError: "LOADING"}  # redis-py drops the word


class PlainInstance:
    """A pool of connections to one server. Callers share it; each takes a connection for one command.

    `trouble`: why it could not be used last time (an exception of lockcore or redis-py), None while it answers.
    """

    def __init__(self, index: int, url: str, settings: RecipeSettings) -> None:
        """Connect to `url` once and ask what it is. Raises UsageError for a URL that cannot be read."""
        timeout_ms = settings.instance_timeout_ms or min(50.0, settings.max_ttl_ms / 4)
        try:
            target = target_of(url, settings.connect_timeout_s, settings.key_prefix)
        except ValueError as error:
            raise UsageError(str(error)) from error
        pool = connection_pool(
            target.options, timeout_s=timeout_ms / 1000, connect_timeout_s=settings.connect_timeout_s
        )
        self.index, self.address = index, target.address
        self.trouble: InstanceError | RedisError | None = None
        self._client: Redis = Redis(connection_pool=pool)
        self._hello: Hello | None = None
        self._commands = 0
        self._reply_times_ns: list[int] = []
        self._errors: Counter[str] = Counter()
        try:
            shaken = shake(target)
        except InstanceError as error:
            self.trouble = error
        else:
            self._hello = shaken.hello
            shaken.sock.close()

    def ask(self, *command: object) -> Any:
        """The reply to `command`. Raises RedisError: one of DEFINITE if nothing changed, else it may have happened."""
        self._commands += 1
        asked_ns = monotonic_ns()
        try:
            reply = self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except NoScriptError:
            raise
        except DEFINITE as error:
            self._errors[_KINDS.get(type(error)) or str(error).partition(" ")[0]] += 1
            raise
        except RedisError as error:
            self._errors[type(error).__name__] += 1
            self.trouble = error
            raise
        self.trouble = None
        if self._commands % OBSERVE_EVERY == 0:
            self._reply_times_ns.append(monotonic_ns() - asked_ns)
        return reply

    def run(self, script: Script, keys: tuple[str, ...], *arguments: object) -> Any:
        """The reply of a Lua script. Raises as `ask`."""
        try:
            return self.ask("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return self.ask("EVAL", script.source, len(keys), *keys, *arguments)

    def delete_own(self, key: str, token: bytes) -> bool:
        """Delete `key` if it holds `token`, in one step; False when it did not. Raises as `ask`."""
        return bool(self.run(COMPARE_AND_DELETE, (key,), token))

    @property
    def status(self) -> InstanceStatus:
        """What it is and what was exchanged."""
        trouble = self.trouble
        reason = str(trouble) if isinstance(trouble, InstanceError) else type(trouble).__name__
        return InstanceStatus(
            index=self.index,
            address=self.address,
            state="down" if trouble else "voting",
            reason=reason if trouble else "",
            run_id=self._hello.run_id if self._hello else "",
            server=self._hello.server if self._hello else "",
            release_command="evalsha",
            commands=self._commands,
            writes=self._commands,
            reads=self._commands,
            errors=dict(self._errors),
        )

    def take_reply_times_ns(self) -> list[int]:
        """How long (ns) one command in 61 took since the last call."""
        taken, self._reply_times_ns = self._reply_times_ns, []
        return taken

    def close(self) -> None:
        """Close the pool. Idempotent."""
        self._client.close()
        self._client.connection_pool.disconnect()
