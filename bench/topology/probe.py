"""Questions to running instances: *URLs → facts, counters, leaked keys; a clear reason for each that stays silent*.

Rules: all instances are asked in parallel, each step within its own time-out, so a stopped instance delays nobody. What
an ACL forbids (INFO, CONFIG, COMMAND) becomes None and a warning: foreign targets need not trust us. Shows no secret.
Source: INFO, CONFIG GET and COMMAND INFO of Redis 7.0 and Valkey 9.1.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, TypeVar

import redis
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, ResponseError

from bench.errors import BenchError, EnvironmentNotReadyError, secrets
from bench.measure.run_result import InfoDelta as InfoDelta  # noqa: PLC0414 - importers change one by one
from bench.measure.run_result import InstanceFacts as InstanceFacts  # noqa: PLC0414 - importers change one by one
from bench.measure.section import Count, says
from bench.topology.target import Target, parse_targets

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


@dataclass(frozen=True, slots=True)
class InfoSnapshot:
    """One instance's INFO at `taken_ns` (monotonic), or None and why in `missing`."""

    address: str
    taken_ns: int
    values: Mapping[str, Any] | None
    missing: str | None


def delta(before: InfoSnapshot, after: InfoSnapshot) -> InfoDelta:
    """Return what one instance did from `before` to `after`, two snapshots of the same address."""
    elapsed_s = (after.taken_ns - before.taken_ns) / 1e9
    old, new = before.values, after.values
    if old is None or new is None:
        return InfoDelta(after.address, f"no counters: {before.missing or after.missing}", elapsed_s)
    if old.get("run_id") != new.get("run_id"):
        return InfoDelta(after.address, "no counters: it restarted in between", elapsed_s)

    def increase(*names: str) -> Any:
        if not all(name in values for name in names for values in (old, new)):
            return None
        return sum(new[name] - old[name] for name in names)

    calls, usec_per_call = _commands(old, new)
    aof = {name: new[name] for name in _AOF_NOW if name in new}
    aof |= {name: change for name in _AOF_COUNTERS if (change := increase(name)) is not None}
    return InfoDelta(
        after.address,
        None,
        elapsed_s,
        cpu_s=_rounded(increase("used_cpu_sys", "used_cpu_user")),
        children_cpu_s=_rounded(increase("used_cpu_sys_children", "used_cpu_user_children")),
        commands_processed=increase("total_commands_processed"),
        calls=calls,
        usec_per_call=usec_per_call,
        expired_keys=increase("expired_keys"),
        evicted_keys=increase("evicted_keys"),
        input_bytes=increase("total_net_input_bytes"),
        output_bytes=increase("total_net_output_bytes"),
        aof=aof,
    )


def _commands(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, float]]:
    calls: dict[str, int] = {}
    usec_per_call: dict[str, float] = {}
    for name, stat in new.items():
        if not name.startswith(_COMMAND):
            continue
        before = old.get(name, {"calls": 0, "usec": 0})
        count = stat["calls"] - before["calls"]
        if count > 0:
            command = name.removeprefix(_COMMAND)
            calls[command] = count
            usec_per_call[command] = round((stat["usec"] - before["usec"]) / count, 3)
    return calls, usec_per_call


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)  # the servers' own resolution


TIMEOUT_S = 2.0
EVERY_S = 2.0  # between two looks of InfoWatch
_KEYS_PER_COMMAND = 500
_MOST_THREADS = 32
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class LeakCount:
    """Keys of a run still on one instance."""

    address: Annotated[str, says("host:port or socket path, without secrets")]
    found: Annotated[int | None, says("of the names asked for; null: not_checked says why")]
    unlinked: Annotated[Count, says("removed")]
    not_checked: Annotated[str | None, says("why they could not be looked for")]


@dataclass(frozen=True, slots=True)
class _Silence:
    """Why an instance gave no answer."""

    reason: str


def inspect(
    urls: Sequence[str], *, allow_missing: bool = False, timeout_s: float = TIMEOUT_S
) -> tuple[InstanceFacts, ...]:
    """Ask every instance what it is; the facts stand in the order of `urls`.

    `timeout_s` (> 0) bounds each step of each instance. Raises UsageError for a URL that cannot be read and
    EnvironmentNotReadyError naming every unreachable instance and why, unless `allow_missing`.
    """
    targets = parse_targets(urls)
    facts: list[InstanceFacts] = []
    for index, (target, answer) in enumerate(zip(targets, _ask(targets, _describe, timeout_s), strict=True)):
        if isinstance(answer, _Silence):
            facts.append(InstanceFacts(index, target.address, target.tls, unreachable=answer.reason))
        else:
            facts.append(InstanceFacts(index, target.address, target.tls, **answer))
    if not allow_missing:
        there = sum(fact.unreachable is None for fact in facts)
        without = ", or go on without them by --allow-missing" if there > len(facts) // 2 else ""
        require_reachable(facts, f"start them{without}")
    return tuple(facts)


def require_reachable(facts: Sequence[InstanceFacts], advice: str) -> None:
    """Raise EnvironmentNotReadyError, naming who does not answer and why, with `advice`, unless all of them do."""
    missing = [f"{fact.address} ({fact.unreachable})" for fact in facts if fact.unreachable]
    if missing:
        told = "; ".join(missing)
        raise EnvironmentNotReadyError(f"{len(missing)} of {len(facts)} targets cannot be used: {told}; {advice}")


def require_independent(facts: Sequence[InstanceFacts]) -> None:
    """Raise EnvironmentNotReadyError unless these are independent: no cluster node, no replica, no server twice."""
    first: dict[str, str] = {}
    for fact in facts:
        if fact.cluster:
            raise EnvironmentNotReadyError(f"{fact.address} runs in cluster mode: locks need independent instances")
        if fact.role == "replica":
            raise EnvironmentNotReadyError(f"{fact.address} is a replica: give the address of an independent primary")
        if fact.run_id is not None and fact.run_id in first:
            both = f"{first[fact.run_id]} and {fact.address}"
            raise EnvironmentNotReadyError(f"{both} are the same server: every instance counts once")
        if fact.run_id is not None:
            first[fact.run_id] = fact.address


def info_snapshot(urls: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> tuple[InfoSnapshot, ...]:
    """Read every instance's counters now; one that does not answer or forbids INFO has `values` None and says why."""
    targets = parse_targets(urls)
    snapshots = []
    for target, answer in zip(targets, _ask(targets, _info, timeout_s), strict=True):
        if isinstance(answer, _Silence):
            snapshots.append(InfoSnapshot(target.address, time.monotonic_ns(), None, answer.reason))
        else:
            snapshots.append(InfoSnapshot(target.address, *answer, None))
    return tuple(snapshots)


def leaked_keys(urls: Sequence[str], names: Iterable[str], *, timeout_s: float = 1.0) -> tuple[LeakCount, ...]:
    """Count which of the full key `names` exist on each instance, and unlink those; never scans.

    An instance that does not answer within `timeout_s` (> 0) per step is reported as not checked.
    """
    targets = parse_targets(urls)
    chunks = tuple(_chunks(names, _KEYS_PER_COMMAND))

    def count_and_unlink(client: redis.Redis) -> tuple[int, int]:
        found = unlinked = 0
        for chunk in chunks:
            here = _command(client, "EXISTS", *chunk)
            found += here
            unlinked += _command(client, "UNLINK", *chunk) if here else 0
        return found, unlinked

    counts = []
    for target, answer in zip(targets, _ask(targets, count_and_unlink, timeout_s), strict=True):
        if isinstance(answer, _Silence):
            counts.append(LeakCount(target.address, None, 0, answer.reason))
        else:
            counts.append(LeakCount(target.address, *answer, None))
    return tuple(counts)


def _ask(
    targets: Sequence[Target], question: Callable[[redis.Redis], _Answer], timeout_s: float
) -> list[_Answer | _Silence]:
    def ask_one(target: Target) -> _Answer | _Silence:
        client = target.client(timeout_s)
        try:
            return question(client)
        except (redis.RedisError, OSError) as error:
            return _Silence(_reason(target, error, timeout_s))
        finally:
            client.connection_pool.disconnect()

    with ThreadPoolExecutor(min(len(targets), _MOST_THREADS)) as threads:
        return list(threads.map(ask_one, targets))


def _describe(client: redis.Redis) -> dict[str, Any]:
    with contextlib.suppress(NoPermissionError):  # an answer, too
        client.ping()
    warnings: list[str] = []
    info: dict[str, Any] = _allowed(lambda: client.info("all"), "INFO", warnings) or {}
    config: dict[str, str] = _allowed(lambda: client.config_get("*append*"), "CONFIG GET", warnings) or {}
    native = _allowed(lambda: _command(client, "COMMAND INFO", "DELEX", "DELIFEQ"), "COMMAND INFO", warnings)
    rewrite = config.get("no-appendfsync-on-rewrite")
    return {
        "server": "valkey" if "valkey_version" in info else ("redis" if info else None),
        "version": info.get("valkey_version", info.get("redis_version")),
        "run_id": info.get("run_id"),
        "process_id": info.get("process_id"),
        "uptime_s": info.get("uptime_in_seconds"),
        "role": {"master": "primary", "slave": "replica"}.get(str(info.get("role"))),
        "cluster": bool(info["cluster_enabled"]) if "cluster_enabled" in info else None,
        "fsync": config.get("appendfsync") if info.get("aof_enabled", 1) else "none",
        "no_fsync_on_rewrite": None if rewrite is None else rewrite == "yes",
        "maxmemory_bytes": info.get("maxmemory"),
        "maxmemory_policy": info.get("maxmemory_policy"),
        "release_command": _release_command(native),
        "warnings": tuple(warnings),
    }


def _release_command(native: list[Any] | None) -> str | None:
    if native is None:
        return None
    return "delex" if native[0] else "delifeq" if native[1] else "evalsha"


def _allowed(ask: Callable[[], Any], command: str, warnings: list[str]) -> Any:
    try:
        return ask()
    except NoPermissionError:
        warnings.append(f"{command} is not allowed for this user: what it would tell is unknown")
    except ResponseError:
        warnings.append(f"{command} is not available: what it would tell is unknown")
    return None


def _command(client: redis.Redis, *words: str) -> Any:
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


def _info(client: redis.Redis) -> tuple[int, dict[str, Any]]:
    values: dict[str, Any] = client.info("all")
    return time.monotonic_ns(), values


def _reason(target: Target, error: Exception, timeout_s: float) -> str:
    text = secrets()(error).rstrip(".")
    if isinstance(error, NoPermissionError):
        return f"not allowed: {text}"
    if isinstance(error, AuthenticationError):
        return f"wrong or missing user name or password: {text}"
    if isinstance(error, BusyLoadingError):
        return "still loading its data: wait until it is ready"
    if isinstance(error, redis.TimeoutError):
        return f"no answer within {timeout_s:g} s{': is it a plain port? then redis://' if target.tls else ''}"
    if isinstance(error, redis.exceptions.InvalidResponse):
        return f"it does not speak the Redis protocol: {text.removeprefix('Protocol Error: ')}"
    if "SSL" in text:
        return f"TLS failed: {text}"
    if "refused" in text:
        return "connection refused: nothing listens there"
    if ("closed by server" in text or "reset by peer" in text) and not target.tls:
        return "it closed the connection: is it a TLS port? then rediss://"
    text = re.sub(rf"^Error -?\d+ connecting to {re.escape(target.address)}\. ", "", text)
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _chunks(names: Iterable[str], size: int) -> Iterable[list[str]]:
    remaining = iter(names)
    while chunk := list(islice(remaining, size)):
        yield chunk


class InfoWatch:
    """INFO of all instances every other second, asked in a thread of its own.

    `infos`: by instance, None for one that does not answer, in the order of `urls`; empty before the first answers.
    `also(index)`: what is known besides of an instance that answered.
    """

    def __init__(self, urls: Sequence[str], also: Callable[[int], Mapping[str, Any]] | None = None) -> None:
        self._urls, self._also = urls, also
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="info", daemon=True)
        self.infos: Sequence[Mapping[str, Any] | None] = ()

    def start(self) -> None:
        """Ask from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Ask once more, and no more."""
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
            self._ask()

    def _ask_on(self) -> None:
        while not self._stop.is_set():
            self._ask()
            self._stop.wait(EVERY_S)

    def _ask(self) -> None:
        with contextlib.suppress(BenchError, OSError):
            snapshots = info_snapshot(self._urls)
            self.infos = tuple(self._completed(index, one.values) for index, one in enumerate(snapshots))

    def _completed(self, index: int, values: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return values if values is None or self._also is None else {**values, **self._also(index)}
