"""The base class of all recipes that use redis-py. A recipe only defines how to make one attempt
and how to release. The base class adds the methods `acquire` and `release`.

Rules
- The recipes use redis-py in the usual way, but without its retries. A retried SET NX can be
  refused because the first try succeeded and only its reply was lost. The recipe would then treat
  its own lock as the lock of another caller.
- The default retry policy is the policy of lockcore, but a recipe may have its own policy. A recipe
  with a TTL computes the validity and the drift in the same way as lockcore.
- If a command fails, the outcome of the attempt is UNREACHABLE. The base class does not clean up
  after such an attempt, but a recipe may clean up.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from random import random
from typing import Any, ClassVar, NamedTuple, Self

from redis import Redis
from redis.client import PubSub
from redis.exceptions import (
    BusyLoadingError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.recipes.protocol import About, RecipeSettings, reach_of
from bench.topology.target import connection_pool
from lockcore import Denied, InstanceStatus, Lease, Outcome, Tally
from lockcore.bench import (
    COMPARE_AND_DELETE,
    Closed,
    Hello,
    InstanceError,
    InstanceRefusedError,
    Script,
)
from lockcore.bench.sockets import shake, target_of
from lockcore.clock import NS_PER_MS, NS_PER_S, drift_ns, monotonic_ns

# The base observes one command in this many. The number is prime, so that the base observes every
# kind of command.
OBSERVE_EVERY = 61
# These exceptions mean that the instance answered with an error. So nothing changed.
DEFINITE = (ResponseError, BusyLoadingError)
# redis-py drops the first word of these errors.
_KINDS = {OutOfMemoryError: "OOM", ReadOnlyError: "READONLY", BusyLoadingError: "LOADING"}


class PlainInstance:
    """A pool of connections to one server. All callers share the pool. For each command, a caller
    takes a connection from the pool.

    `trouble` is the exception of lockcore or redis-py that shows why the last command failed. If
    the last command did not fail, `trouble` is None.
    """

    def __init__(self, index: int, url: str, settings: RecipeSettings) -> None:
        """Connect to `url` once and ask the server for its name, version and run id.

        Raises UsageError for a URL that cannot be read.
        """
        timeout_ms = settings.instance_timeout_ms or min(50.0, settings.max_ttl_ms / 4)
        try:
            target = target_of(url, settings.connect_timeout_s, settings.key_prefix)
        except ValueError as error:
            raise UsageError(str(error)) from error
        pool_of = partial(
            connection_pool, target.options, connect_timeout_s=settings.connect_timeout_s
        )
        self.index = index
        self.address = target.address
        self.trouble: InstanceError | RedisError | None = None
        self._client: Redis = Redis(connection_pool=pool_of(timeout_s=timeout_ms / 1000))
        # This client has a longer timeout, because it sends commands that block.
        self._patient: Redis = Redis(connection_pool=pool_of(timeout_s=timeout_ms / 1000 + 1.0))
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
        """Send `command` and return the reply.

        Raises RedisError. If the exception is one of DEFINITE, the command has not changed
        anything. If the exception is any other RedisError, the server may have executed the
        command.
        """
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

    def block(self, seconds: float, *command: object) -> object:
        """Send a command that blocks for up to `seconds`, and return the reply. `seconds` becomes
        the last argument of the command.

        Raises RedisError.
        """
        self._commands += 1
        return self._patient.execute_command(*command, seconds)  # type: ignore[no-untyped-call]

    def listener(self) -> PubSub:
        """Return a client that can subscribe. When the client subscribes for the first time, it
        gets its own connection."""
        ear: PubSub = self._patient.pubsub()  # type: ignore[no-untyped-call]
        return ear

    def run(self, script: Script, keys: tuple[str, ...], *arguments: object) -> Any:
        """Run a Lua script and return its reply. Raises the same errors as `ask`."""
        try:
            return self.ask("EVALSHA", script.sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return self.ask("EVAL", script.source, len(keys), *keys, *arguments)

    def delete_own(self, key: str, token: bytes) -> bool:
        """Delete `key` in one step if its value is `token`. Returns whether `key` was deleted.
        Raises the same errors as `ask`."""
        return bool(self.run(COMPARE_AND_DELETE, (key,), token))

    @property
    def status(self) -> InstanceStatus:
        """The state of the instance, and the number of commands that this client sent."""
        trouble = self.trouble
        state = "voting"
        reason = ""
        if trouble:
            state = "down"
            is_instance_error = isinstance(trouble, InstanceError)
            reason = str(trouble) if is_instance_error else type(trouble).__name__
        run_id = self._hello.run_id if self._hello else ""
        server = self._hello.server if self._hello else ""
        return InstanceStatus(
            index=self.index,
            address=self.address,
            state=state,
            reason=reason,
            run_id=run_id,
            server=server,
            release_command="evalsha",
            commands=self._commands,
            writes=self._commands,
            reads=self._commands,
            errors=dict(self._errors),
        )

    def take_reply_times_ns(self) -> list[int]:
        """Return the reply times (ns) since the last call. The class measures the reply time of one
        command in 61."""
        times_ns = self._reply_times_ns
        self._reply_times_ns = []
        return times_ns

    def close(self) -> None:
        """Close the pool. Idempotent."""
        for client in (self._client, self._patient):
            client.close()
            client.connection_pool.disconnect()


# This value is lockcore's default.
DRIFT_FACTOR = 0.01
# A lock without a TTL counts as valid for this time, which is longer than any run.
FOREVER_NS = 86_400 * NS_PER_S


class Refusal(NamedTuple):
    """The outcome and the votes of an attempt that did not get the lock."""

    outcome: Outcome
    tally: Tally


# A function of a resource and a TTL in ms. It returns a lease or a refusal.
Attempt = Callable[[str, int], Lease | Refusal]
HELD = Refusal(Outcome.CONTENDED, Tally(refused=1))
GRANTED = Tally(granted=1)


class PlainRecipe:
    """A lock that sends its commands through redis-py, one after the other. Create it with
    `connect`."""

    about: ClassVar[About]

    def __init__(self, servers: Sequence[PlainInstance], settings: RecipeSettings) -> None:
        self.servers = tuple(servers)
        self.settings = settings
        self.use(self.servers[0])
        self.pause = reach_of(settings.pause, settings.seed, settings.process, settings.gate)
        self.figures: Counter[str] = Counter()
        self._token_prefix = secrets.token_hex(16)
        self._tokens = count(1)

    # -- what a recipe is --------------------------------------------------------------------------

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Try to lock once. The default is one SET NX PX with a new owner token. A recipe may
        override this method. Raises RedisError."""
        token = self.new_token()
        started_ns = monotonic_ns()
        if self.ask("SET", self.key(resource), token, "NX", "PX", ttl_ms) is None:
            return HELD
        return self.leased(resource, token, ttl_ms, started_ns)

    def give_back(self, lease: Lease) -> Outcome:
        """Release the lease and return RELEASED or GONE. This method never deletes another caller's
        lock. In a flawed recipe, the method may delete another caller's lock.

        Raises RedisError.
        """
        deleted = self.server.delete_own(self.key(lease.resource), lease.owner_token)
        return Outcome.RELEASED if deleted else Outcome.GONE

    def abandon(self, lease: Lease) -> None:
        """Handle the lease of a caller that was killed. The base class does nothing, but a subclass
        may release the lease.

        Raises RedisError.
        """

    def next_start_ns(
        self, outcome: Outcome, attempts: int, now_ns: int, deadline_ns: int
    ) -> int | None:
        """Return the time of the next attempt (ns), or None if there is no other attempt."""
        return self.settings.retry.next_start_ns(outcome, attempts, now_ns, deadline_ns, random())

    def rest(self, resource: str, outcome: Outcome, delay_ns: int) -> None:
        """Wait for `delay_ns`. A subclass may end the wait when there is a reason for a new
        attempt."""
        time.sleep(delay_ns / NS_PER_S)

    @classmethod
    def needed(cls, instances: int) -> int:
        """Return the number of instances that must answer when the recipe connects."""
        return instances

    # -- what a recipe is made of ------------------------------------------------------------------

    def use(self, server: PlainInstance) -> None:
        """Send later commands to `server`, if the recipe uses one instance."""
        self.server = server
        self.ask = server.ask

    def key(self, resource: str) -> str:
        return self.settings.key_prefix + resource

    def new_token(self) -> bytes:
        """Return a new owner token. Nobody can guess the token, and no other attempt has the same
        token.
        """
        return f"{self._token_prefix}{next(self._tokens):012x}".encode()

    def wall_ms(self) -> int:
        """Return the wall clock of this client, in ms since 1970."""
        return time.time_ns() // NS_PER_MS + self.settings.skew_ms

    def leased(
        self,
        resource: str,
        token: bytes,
        ttl_ms: int,
        started_ns: int,
        *,
        valid_until_ns: int | None = None,
        tally: Tally = GRANTED,
    ) -> Lease:
        """Return a lease that begins now.

        If `valid_until_ns` is not given, the lease is valid until started + TTL − drift.
        """
        if valid_until_ns is None:
            valid_until_ns = started_ns + ttl_ms * NS_PER_MS - drift_ns(ttl_ms, DRIFT_FACTOR)
        return Lease(
            resource, token, ttl_ms, started_ns, monotonic_ns(), valid_until_ns, Closed(tally)
        )

    def delete(self, resource: str) -> Outcome:
        """Delete the resource's key with a plain DEL, without a check of its value."""
        return Outcome.RELEASED if self.ask("DEL", self.key(resource)) else Outcome.GONE

    # -- what callers see --------------------------------------------------------------------------

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        servers = [PlainInstance(index, url, settings) for index, url in enumerate(targets)]
        troubles = [server.trouble for server in servers if server.trouble is not None]
        refused = [trouble for trouble in troubles if isinstance(trouble, InstanceRefusedError)]
        if refused or len(servers) - len(troubles) < cls.needed(len(servers)):
            trouble = (refused or troubles)[0]
            raise EnvironmentNotReadyError(
                f"{trouble}; correct that, or name another instance with --target"
            )
        return cls(servers, settings)

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        """Lock `resource` for `ttl_ms` (1 … max_ttl_ms). Try for up to `wait_ms`.

        Raises ValueError if `ttl_ms` is outside this range.
        """
        return self.acquire_by(self.attempt, resource, ttl_ms, wait_ms)

    def acquire_by(
        self, attempt: Attempt, resource: str, ttl_ms: int, wait_ms: int
    ) -> Lease | Denied:
        """Acquire the lock as `acquire` does, but use the function `attempt` for each attempt."""
        if not 1 <= ttl_ms <= self.settings.max_ttl_ms:
            raise ValueError(
                f"ttl_ms {ttl_ms} is not in 1 … max_ttl_ms ({self.settings.max_ttl_ms})"
            )
        first_ns = monotonic_ns()
        deadline_ns = first_ns + wait_ms * NS_PER_MS
        attempts = split_votes = 0
        lost_ns: list[int] = []
        while True:
            attempts += 1
            begun_ns = monotonic_ns()
            result = self._try(attempt, resource, ttl_ms)
            if isinstance(result, Lease):
                result.attempts = attempts
                result.split_votes = split_votes
                result.lost_ns = lost_ns
                try:
                    self.pause("after-grant")
                except BaseException:
                    self._abandon(result)
                    raise
                return result
            outcome, tally = result
            lost_ns.append(begun_ns)
            split_votes += outcome is Outcome.SPLIT_VOTE
            now_ns = monotonic_ns()
            start_ns = self.next_start_ns(outcome, attempts, now_ns, deadline_ns)
            if start_ns is None:
                return Denied(
                    resource, outcome, tally, attempts, split_votes, first_ns, now_ns, lost_ns
                )
            self.rest(resource, outcome, start_ns - now_ns)

    def release(self, lease: Lease, /) -> Outcome:
        """Give the lease back with the recipe's `give_back`."""
        try:
            self.pause("before-release")
            return self.give_back(lease)
        except RedisError:
            return Outcome.UNREACHABLE
        except BaseException:
            self._abandon(lease)
            raise

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        return tuple(server.status for server in self.servers)

    def take_reply_times_ns(self) -> tuple[list[int], ...]:
        return tuple(server.take_reply_times_ns() for server in self.servers)

    def close(self) -> None:
        for server in self.servers:
            server.close()

    @staticmethod
    def _try(attempt: Attempt, resource: str, ttl_ms: int) -> Lease | Refusal:
        try:
            return attempt(resource, ttl_ms)
        except DEFINITE:
            return Refusal(Outcome.UNREACHABLE, Tally(errored=1))
        except RedisError:
            return Refusal(Outcome.UNREACHABLE, Tally(silent=1))

    def _abandon(self, lease: Lease) -> None:
        with suppress(RedisError):
            self.abandon(lease)
