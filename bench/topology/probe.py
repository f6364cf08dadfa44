"""This module asks running instances for data: *URLs → facts, counters, leaked keys, and the
reasons why instances do not answer*.

Rules: lockbench asks all instances in parallel, and each step has its own time-out. If an ACL
forbids a command (INFO, CONFIG, COMMAND), the facts from that command are None, and a warning
reports the reason.

Source: the replies of Redis 7.0 and Valkey 9.1.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from secrets import token_hex
from statistics import median
from typing import Any, TypeVar

import redis
from redis.exceptions import NoPermissionError, ResponseError

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.measure.fleet_facts import InfoDelta
from bench.measure.server_facts import InstanceFacts
from bench.topology.hazards import SETTINGS, Hazard, hazards_of, persistence_of
from bench.topology.target import KEY_PREFIX, client_of, parse_targets
from lockcore.bench import InstanceError
from lockcore.bench.sockets import (
    PATIENCE_S,
    SENTINEL,
    InstanceTarget,
    dialect_of,
    failure_of,
    look,
    shake,
)
from lockcore.clock import NS_PER_S

_AOF_COUNTERS = ("aof_delayed_fsync", "aof_rewrites")
_AOF_NOW = (
    "aof_enabled",
    "aof_current_size",
    "aof_base_size",
    "aof_pending_bio_fsync",
    "aof_last_write_status",
    "aof_last_bgrewrite_status",
)
_COMMAND = "cmdstat_"
# The longest time (s) of each step.
TIMEOUT_S = 2.0
# The time (s) between two readings of InfoWatch.
EVERY_S = 2.0
_KEYS_PER_COMMAND = 500
_PINGS = 15
_MOST_THREADS = 32
# The fields of INFO.
Info = Mapping[str, Any]
Answer = TypeVar("Answer")
# redis-py raises these errors if a reply does not fit its command.
_NONSENSE = (ValueError, TypeError, AttributeError, LookupError)
# These commands have no key, so they cannot request a lock.
_NO_KEY = frozenset(
    (
        "acl",
        "auth",
        "client",
        "cluster",
        "command",
        "config",
        "dbsize",
        "echo",
        "flushall",
        "function",
        "hello",
        "info",
        "latency",
        "memory",
        "ping",
        "pubsub",
        "quit",
        "readonly",
        "readwrite",
        "reset",
        "role",
        "script",
        "select",
        "slowlog",
        "time",
        "wait",
    )
)


@dataclass(frozen=True, slots=True)
class InfoSnapshot:
    """The INFO of one instance at `taken_ns` (monotonic).

    If there is no INFO, `values` is None and `missing` gives the reason.
    """

    address: str
    taken_ns: int
    values: Info | None
    missing: str | None


def delta(before: InfoSnapshot, after: InfoSnapshot) -> InfoDelta:
    """Return the changes of the counters of one instance between two snapshots. Both snapshots have
    the same address."""
    elapsed_s = (after.taken_ns - before.taken_ns) / NS_PER_S
    old = before.values
    new = after.values
    if old is None or new is None:
        return InfoDelta(
            after.address, f"no counters: {before.missing or after.missing}", elapsed_s
        )
    if old.get("run_id") != new.get("run_id"):
        return InfoDelta(
            after.address,
            "no counters, because the instance restarted",
            elapsed_s,
        )

    def increase(*names: str) -> Any:
        if not all(name in values for name in names for values in (old, new)):
            return None
        # Servers report CPU times with six decimals.
        return round(sum(new[name] - old[name] for name in names), 6)

    return InfoDelta(
        after.address,
        None,
        elapsed_s,
        cpu_s=increase("used_cpu_sys", "used_cpu_user"),
        commands_processed=increase("total_commands_processed"),
        calls={
            name.removeprefix(_COMMAND): calls
            for name, stat in new.items()
            if name.startswith(_COMMAND)
            and (calls := stat["calls"] - old.get(name, {"calls": 0})["calls"])
        },
        expired_keys=increase("expired_keys"),
        evicted_keys=increase("evicted_keys"),
        aof={name: new[name] for name in _AOF_NOW if name in new}
        | {name: change for name in _AOF_COUNTERS if (change := increase(name)) is not None},
    )


def inspect(
    urls: Sequence[str], *, allow_missing: bool = False, channels: bool = False
) -> tuple[InstanceFacts, ...]:
    """Ask every instance for its facts, and return the facts in the order of `urls`.

    If `channels` is true, each check includes the channels to which a lock publishes. Raises
    UsageError. Raises EnvironmentNotReadyError if an instance is unreachable and `allow_missing` is
    false. This error names every unreachable instance with the reason.
    """

    def unreachable(target: InstanceTarget, why: str) -> InstanceFacts:
        return InstanceFacts(0, target.address, target.is_tls, unreachable=why)

    answers = _ask(urls, partial(_described, channels=channels), unreachable, closer=True)
    facts = tuple(replace(fact, index=index) for index, fact in enumerate(answers))
    missing: dict[str, list[str]] = {}
    for fact in facts:
        if fact.unreachable:
            missing.setdefault(fact.unreachable, []).append(fact.address)
    if missing and not allow_missing:
        reasons = "; ".join(
            f"{', '.join(addresses)} ({reason})" for reason, addresses in missing.items()
        )
        number = sum(map(len, missing.values()))
        advice = (
            "; use --allow-missing to continue without these targets"
            if number < len(facts) / 2
            else ""
        )
        raise EnvironmentNotReadyError(
            f"lockbench cannot use {number} of {len(facts)} targets: {reasons}{advice}"
        )
    return facts


def require_independent(facts: Sequence[InstanceFacts]) -> None:
    """Raise EnvironmentNotReadyError unless these instances are independent.

    No instance may be a cluster node or a replica, and no server may appear twice.
    """
    first: dict[str, InstanceFacts] = {}
    for fact in facts:
        if fact.cluster:
            raise EnvironmentNotReadyError(
                f"{fact.address} runs in cluster mode, but locks need independent instances; name "
                "another server"
            )
        if fact.role == "replica":
            raise EnvironmentNotReadyError(
                f"{fact.address} is a replica; name an independent primary"
            )
        twin = first.setdefault(fact.run_id or f"not told, #{fact.index}", fact)
        if twin is not fact:
            raise EnvironmentNotReadyError(
                f"{twin.address} and {fact.address} are the same server, but each server may vote "
                "only once; leave one out"
            )


def info_snapshot(urls: Sequence[str]) -> tuple[InfoSnapshot, ...]:
    """Read the INFO counters of every instance.

    If an instance does not answer or forbids INFO, `values` is None, and `missing` gives the
    reason.
    """

    def snapshot(client: redis.Redis, target: InstanceTarget) -> InfoSnapshot:
        values = client.info("all")
        return InfoSnapshot(target.address, time.monotonic_ns(), values, None)

    return _ask(
        urls,
        snapshot,
        lambda target, why: InfoSnapshot(target.address, time.monotonic_ns(), None, why),
    )


def leaked_keys(urls: Sequence[str], names: Iterable[str]) -> tuple[int | None, ...]:
    """Unlink all keys with these full `names`. The function does not scan the keys of an instance.

    For each instance, return how many of these keys existed, or None if this number is unknown.
    """
    remaining = iter(names)
    chunks = tuple(iter(lambda: tuple(islice(remaining, _KEYS_PER_COMMAND)), ()))

    def unlink(client: redis.Redis, _target: InstanceTarget) -> int | None:
        return sum(int(_command(client, "UNLINK", *chunk)) for chunk in chunks)

    return _ask(urls, unlink, lambda *_silence: None)


def key_counts(urls: Sequence[str]) -> tuple[int | None, ...]:
    """Return the number of keys of each instance, counted over all its databases.

    If an instance does not report this number, the number is None.
    """

    def count(client: redis.Redis, _target: InstanceTarget) -> int | None:
        return sum(int(database["keys"]) for database in client.info("keyspace").values())

    return _ask(urls, count, lambda *_silence: None)


def _ask(
    urls: Sequence[str],
    question: Callable[[redis.Redis, InstanceTarget], Answer],
    silent: Callable[[InstanceTarget, str], Answer],
    *,
    closer: bool = False,
) -> tuple[Answer, ...]:
    """Return the answer of each instance.

    If an instance does not answer, this function calls `silent` with the reason. The result of
    `silent` then counts as the answer of the instance. If `closer` is true, the function opens one
    more connection to find out why an instance does not answer.
    """
    targets = parse_targets(urls)

    def ask_one(target: InstanceTarget) -> Answer:
        try:
            with client_of(target, TIMEOUT_S) as client:
                return question(client, target)
        except (redis.RedisError, OSError, *_NONSENSE) as error:
            return silent(target, _reason(target, error, closer=closer))

    with ThreadPoolExecutor(min(len(targets) or 1, _MOST_THREADS)) as threads:
        return tuple(threads.map(ask_one, targets))


def _reason(target: InstanceTarget, error: Exception, *, closer: bool) -> str:
    """Return a text that explains why the instance does not answer and what the user should do.

    A server may refuse a connection with one line and then close the connection. The connection
    pool of redis-py drops this line and reports only "Connection not ready". So if `closer` is
    true, this function uses lockcore's code to open a new connection. The code of lockcore reads
    this line. If the error is a time-out, this function calls `look` and opens no new connection.
    """
    if not closer:
        return str(failure_of(target, error))
    if isinstance(error, redis.TimeoutError):
        return str(failure_of(target, error, peer=look(target, min(PATIENCE_S, TIMEOUT_S))))
    try:
        shake(target).sock.close()
    except InstanceError as refusal:
        return refusal.detail or refusal.reason
    return str(failure_of(target, error))


def denied_names(url: str, *, channels: bool = False) -> str:
    """Return an error text if this user may not use the keys of a run. The text gives the reason
    and a way to repair the problem.

    `channels`: if true, the function also checks the channels of a run. The function returns "" if
    the user may use the keys and channels, or if the answer is unknown.
    """

    def ask(client: redis.Redis, _target: InstanceTarget) -> str:
        _require_names(client, channels=channels)
        return ""

    return _ask([url], ask, lambda _target, why: why)[0]


def _require_names(client: redis.Redis, *, channels: bool) -> None:
    """Raise NoPermissionError if this user may not use the keys of a run.

    If `channels` is true, the function also raises NoPermissionError if the user may not use the
    channels of a run. The check writes nothing. The server first checks whether the user may use
    the key. After that, SET with IFEQ writes nothing, because the key does not exist. If the user
    may not call GET or SET at all, the check ignores the error. This error says nothing about the
    allowed key names. The error also does not matter to a recipe that needs neither GET nor SET.
    The user must be allowed to call PUBLISH, because a lock that publishes always needs PUBLISH.
    """
    prefix = f"{KEY_PREFIX}{token_hex(8)}:"
    questions = [("GET", f"{prefix}probe"), ("SET", f"{prefix}probe", "x", "IFEQ", "x", "PX", "1")]
    if channels:
        questions.append(("PUBLISH", f"{prefix}handoff:probe", ""))
    for words in questions:
        try:
            _command(client, *words)
        except NoPermissionError as error:
            if words[0] == "PUBLISH" or " run " not in str(error):
                raise
        except ResponseError:
            # Other code reports other refusals, such as READONLY.
            continue


def _described(client: redis.Redis, target: InstanceTarget, *, channels: bool) -> InstanceFacts:
    # If an instance refuses PING, this is an answer, too.
    with contextlib.suppress(NoPermissionError):
        client.ping()
    warnings: list[str] = []
    info: Info = {}
    try:
        info = client.info("all")
    except NoPermissionError:
        # A program other than a server, such as a proxy, may refuse INFO in another way.
        warnings.append("this user may not call INFO, so the values that INFO reports are unknown")
    config: dict[str, str] = _allowed(lambda: _configured(client), "CONFIG GET", warnings) or {}
    if info.get("redis_mode") == "sentinel":
        return InstanceFacts(0, target.address, target.is_tls, unreachable=SENTINEL)
    _require_names(client, channels=channels)
    dialect = dialect_of(target)
    if dialect is None:
        warnings.append(
            "no compare-and-delete command, and this user may not call EVAL, so the way to "
            "release is unknown"
        )
    warnings += target.ignored
    server = None
    if info:
        server = "valkey" if "valkey_version" in info else "redis"
    cluster = bool(info["cluster_enabled"]) if "cluster_enabled" in info else None
    fsync = config.get("appendfsync") if info.get("aof_enabled", 1) else "none"
    rewrite = config.get("no-appendfsync-on-rewrite")
    no_fsync_on_rewrite = None if rewrite is None else rewrite == "yes"
    return InstanceFacts(
        0,
        target.address,
        target.is_tls,
        server=server,
        version=info.get("valkey_version", info.get("redis_version")),
        run_id=info.get("run_id"),
        role={"master": "primary", "slave": "replica"}.get(str(info.get("role"))),
        cluster=cluster,
        fsync=fsync,
        no_fsync_on_rewrite=no_fsync_on_rewrite,
        maxmemory_bytes=info.get("maxmemory"),
        maxmemory_policy=info.get("maxmemory_policy"),
        hazards=tuple(hazard.sentence for hazard in hazards_of(info, config) if hazard.advice),
        release_command=None if dialect is None else dialect.release_command,
        warnings=tuple(warnings),
    )


def _configured(client: redis.Redis) -> dict[str, str]:
    """Return the settings on which a lock depends.

    Each setting has its own request, because servers before 7.0 accept only one name per request.
    CONFIG GET * would also return passwords.
    """
    configured: dict[str, str] = {}
    for name in ("*append*", *SETTINGS):
        configured |= {str(key): str(value) for key, value in client.config_get(name).items()}
    return configured


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings that one instance reports.

    `reply_s`: the median time (s) of a few PINGs, or None if no PING was sent.
    """

    hazards: tuple[Hazard, ...] = ()
    persistence: str = ""
    reply_s: float | None = None
    warnings: tuple[str, ...] = ()


def settings_of(url: str) -> ServerSettings:
    """Ask the instance at `url` for its settings.

    If the instance does not answer, the settings are empty.
    """

    def ask(client: redis.Redis, _target: InstanceTarget) -> ServerSettings:
        warnings: list[str] = []
        info: Info = _allowed(lambda: client.info("all"), "INFO", warnings) or {}
        config: dict[str, str] = _allowed(lambda: _configured(client), "CONFIG GET", warnings) or {}
        fsync = config.get("appendfsync") if info.get("aof_enabled", 1) else "none"
        reply_s = _allowed(lambda: _reply_s(client), "PING", warnings)
        return ServerSettings(
            hazards_of(info, config), persistence_of(info, fsync), reply_s, tuple(warnings)
        )

    return _ask([url], ask, lambda *_silence: ServerSettings())[0]


def _reply_s(client: redis.Redis) -> float:
    """Return the median time of a few PINGs, in seconds."""
    times = []
    for _ in range(_PINGS):
        began_ns = time.monotonic_ns()
        client.ping()
        times.append((time.monotonic_ns() - began_ns) / NS_PER_S)
    return median(times)


def _allowed(ask: Callable[[], Answer], command: str, warnings: list[str]) -> Answer | None:
    try:
        return ask()
    except ResponseError as error:
        lacking = "allowed for this user" if isinstance(error, NoPermissionError) else "available"
        warnings.append(f"{command} is not {lacking}, so the values from this command are unknown")
    return None


def _command(client: redis.Redis, *words: str) -> Any:
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


def commands_between(before: Sequence[InfoSnapshot], after: Sequence[InfoSnapshot]) -> list[int]:
    """Return the number of commands with a key that each server executed between two snapshots.

    Commands in `_NO_KEY` do not count. If a server does not report the counters of its commands,
    the number for this server is 0.
    """
    return [_with_a_key(delta(*looks).calls) for looks in zip(before, after, strict=True)]


def _with_a_key(calls: Mapping[str, int]) -> int:
    return sum(number for name, number in calls.items() if name.partition("|")[0] not in _NO_KEY)


class InfoWatch:
    """A thread that reads INFO of all instances every two seconds.

    `infos`: the INFO of each instance. Before the first reading, this list is empty. If an instance
    does not answer, its entry is None. `also`: a function that returns more fields for the INFO of
    an instance. The thread calls this function with the index of each instance that has answered.
    """

    def __init__(
        self, urls: Sequence[str], also: Callable[[int], Info] = lambda _index: {}
    ) -> None:
        self._urls = urls
        self._also = also
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="info", daemon=True)
        self.infos: Sequence[Info | None] = ()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Read INFO once more, and then stop the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _ask_on(self) -> None:
        pause_s = 0.0
        stopped = False
        while not stopped:
            stopped = self._stop.wait(pause_s)
            pause_s = EVERY_S
            with contextlib.suppress(BenchError, OSError):
                infos = [snapshot.values for snapshot in info_snapshot(self._urls)]
                self.infos = [
                    info and {**info, **self._also(index)} for index, info in enumerate(infos)
                ]
