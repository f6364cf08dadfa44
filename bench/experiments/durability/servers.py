"""Provides running servers for measurements and crashes. The caller chooses the fsync policy, the
number of instances and the disk.

    our own     Each block has a new fleet. The shim in each server counts fsyncs and delays them.
    the user's  The user names these servers with --target. lockbench changes only appendfsync, with
                CONFIG SET, and it always restores the old value.

A child process also runs this module. The child process gets the old settings of the user's
servers. The child process restores these settings when its standard input ends. The standard input
ends if the parent process closes it or dies for any reason. The parent process sends the URLs
through a pipe, so they never appear on a command line.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.experiments.durability.policies import AofPolicy, Policy, server_policy
from bench.experiments.durability.price_result import FsyncCell, FsyncFleet
from bench.measure.server_facts import ServerBinary, SyncLatency
from bench.topology.disk import fdatasync_latency
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.leash import Leash
from bench.topology.probe import inspect, leaked_keys, require_independent
from bench.topology.shim import IGNORED, Control, Preload
from bench.topology.target import client_of, parse_targets
from lockcore.bench.sockets import InstanceTarget
from lockcore.clock import NS_PER_MS

NO_REWRITE = ("--auto-aof-rewrite-percentage", "0")
# A server allows this many connections in addition to the load's connections.
_MAXCLIENTS = 100
_POLICY = "appendfsync"
_ASK_S = 2.0
_TRIES = 3
_REST_S = 0.2
_READY = "holding"


@dataclass(frozen=True, slots=True)
class CellServers:
    """The running servers of one block. `controls` has one entry for the shim of each server. For
    the user's servers, `controls` is empty. The function `become` changes the policy of the
    servers."""

    urls: tuple[str, ...]
    disk: SyncLatency | None
    become: Callable[[Policy], None]
    controls: Sequence[Control] = ()

    @property
    def syncs(self) -> int | None:
        """The number of fsyncs and fdatasyncs that all servers have made so far. Shims in the
        servers count these calls. If the servers have no shims, the number is None.
        """
        return sum(control.syncs for control in self.controls) if self.controls else None

    def syncs_since(self, before: int | None) -> int | None:
        """Return the number of syncs that the servers have made since an earlier moment. At this
        moment, `syncs` had the value `before`. Return None if the number is unknown."""
        return None if before is None or self.syncs is None else self.syncs - before


@contextmanager
def shimmed_fleet(
    instances: int,
    policy: AofPolicy,
    server: ServerBinary,
    disk: Path | None = None,
    config: Sequence[str] = (),
) -> Iterator[tuple[Fleet, list[Control]]]:
    """Start a fleet under the fault shim, and yield the fleet and the shim of each instance. The
    servers of this fleet never rewrite their append-only files.

    Raises EnvironmentNotReadyError if the servers do not start or do not load the shim.
    """
    shim = Preload()
    with start_fleet(
        instances,
        policy,
        server=server,
        base_folder=disk,
        config=(*NO_REWRITE, *config),
        environment=shim.environment,
    ) as fleet:
        controls = [shim.controls[instance.index] for instance in fleet.instances]
        for control, instance in zip(controls, fleet.instances, strict=True):
            if not control.loaded_in(instance.pid):
                raise EnvironmentNotReadyError(
                    f"lockbench can neither count fsyncs nor simulate a power cut: {IGNORED}"
                )
        yield fleet, controls


class OwnServers:
    """The servers that lockbench starts. There is a new fleet for each block. The servers store
    their files in the folder `disk`. If `disk` is None, they use the system's temporary folder."""

    def __init__(self, server: ServerBinary, disk: Path | None) -> None:
        self.server = server
        self._disk = disk
        self.fleet = FsyncFleet(started=True, server=server, instances=None)
        self.identity = f"{server.name} {server.version} {server.sha256} {disk or ''}"
        self.warnings: tuple[str, ...] = ()
        # The problem that occurred when the servers were closed, in words.
        self.trouble = ""

    def why_not(self, policy: Policy) -> str | None:
        """Return the reason why this policy cannot be measured on these servers. Return None if the
        policy can be measured."""
        return (
            without_waitaof(self.server.name, self.server.version) if policy == "waitaof" else None
        )

    @contextmanager
    def serving(self, cell: FsyncCell, _keys: Sequence[str] = ()) -> Iterator[CellServers]:
        """Start servers for the block of `cell`, and yield them. When the context ends, the servers
        end and their files are removed.

        Raises EnvironmentNotReadyError.
        """
        config = ("--maxclients", str(cell.connections + _MAXCLIENTS))
        policy = server_policy(cell.policy)
        with shimmed_fleet(cell.instances, policy, self.server, self._disk, config) as standing:
            fleet, controls = standing
            for control in controls:
                control.words.sync_delay_ns = int(cell.injected_ms * NS_PER_MS)
            disk = fdatasync_latency(fleet.folder, writes=100, budget_s=0.3)
            yield CellServers(fleet.urls, disk, partial(set_policy, fleet.urls), controls)

    def close(self) -> str:
        """Return "". There is nothing to restore, because these servers do not belong to the
        user."""
        return ""


class UserServers:
    """The user's own servers. The method `close` restores the old value of `appendfsync` on all
    these servers."""

    def __init__(
        self, urls: Sequence[str], policies: Iterable[Policy], *, allow_config: bool
    ) -> None:
        """Read the settings of the user's servers.

        Raises UsageError if the measurement has to change `appendfsync` and the user did not allow
        this. Raises EnvironmentNotReadyError.
        """
        self.urls = tuple(urls)
        self.facts = inspect(self.urls)
        require_independent(self.facts)
        self.fleet = FsyncFleet(started=False, server=None, instances=tuple(self.facts))
        self.identity = ", ".join(
            f"{fact.address} {fact.server} {fact.version}" for fact in self.facts
        )
        self.warnings: tuple[str, ...] = ()
        # The problem that occurred when the servers were closed, in words.
        self.trouble = ""
        if unsynced := ", ".join(fact.address for fact in self.facts if fact.no_fsync_on_rewrite):
            warning = (
                f"no-appendfsync-on-rewrite is on at {unsynced}: while Redis rewrites the AOF, "
                "the policy `always` does not sync"
            )
            self.warnings = (warning,)
        requested = {server_policy(policy) for policy in policies if not self.why_not(policy)}
        present = {fact.fsync for fact in self.facts}
        self._before: list[tuple[InstanceTarget, str]] = []
        if requested and (len(requested) > 1 or requested != present):
            if not allow_config:
                raise UsageError(
                    f"these servers run with appendfsync {_listed(present)}, but the measurement "
                    f"needs {_listed(requested)}; add --allow-config, so that lockbench changes "
                    "appendfsync and later restores it, or name the present value with --fsync"
                )
            self._before = [(target, _policy_of(target)) for target in parse_targets(self.urls)]
            order = json.dumps({"urls": self.urls, "values": [value for _, value in self._before]})
            self._leash = Leash(__name__, ready=_READY, say=order + "\n")

    @contextmanager
    def serving(self, cell: FsyncCell, keys: Sequence[str]) -> Iterator[CellServers]:
        """Yield the first servers of the user's list. The cell determines the number of these
        servers. An interrupted load may leave some of `keys` on the servers. Remove these keys at
        the end.
        """
        become = partial(set_policy, self.urls if self._before else ())
        try:
            yield CellServers(self.urls[: cell.instances], None, become)
        finally:
            leaked_keys(self.urls, keys)

    def close(self) -> str:
        """Restore the old setting.

        The returned text is empty if all servers have their old value again. Otherwise the text
        names the servers with a wrong value, and says what the user must do.
        """
        before = self._before
        self._before = []
        if not before:
            return ""
        self._leash.release()
        wrong = {target.address: value for target, value in before}
        for target, value in before:
            with suppress(EnvironmentNotReadyError):
                if _policy_of(target) == value:
                    del wrong[target.address]
        by_hand = ", ".join(
            f"{address} (CONFIG SET {_POLICY} {value})" for address, value in wrong.items()
        )
        if wrong:
            self.trouble = f"{_POLICY} could not be restored; set it by hand on {by_hand}"
        return self.trouble

    def why_not(self, policy: Policy) -> str | None:
        """Return the reason why this policy cannot be measured on the user's servers. Return None
        if the policy can be measured.
        """
        without = [fact.address for fact in self.facts if fact.fsync == "none"]
        if policy == "none" and len(without) < len(self.facts):
            return (
                "lockbench does not switch off the append-only file of servers that it did not "
                "start"
            )
        if policy != "none" and without:
            return (
                f"{without[0]} has no append-only file, and lockbench does not switch on the "
                "append-only file of your own servers"
            )
        reasons = [
            without_waitaof(fact.server, fact.version) for fact in self.facts if policy == "waitaof"
        ]
        return next(filter(None, reasons), None)


# `identity` names the servers. An interrupted matrix is only continued on servers with the same
# identity.
FsyncServers = OwnServers | UserServers


@contextmanager
def lent(servers: FsyncServers) -> Iterator[FsyncServers]:
    """Yield the servers. If the code in the context raises an error, close the servers and then
    raise the error again.

    If the servers cannot be closed properly, raise EnvironmentNotReadyError. If the code in the
    context raised a BenchError, the new error also contains the message of this BenchError.
    """
    try:
        yield servers
    except BaseException as error:
        if trouble := servers.close():
            message = f"{error}; {trouble}" if isinstance(error, BenchError) else trouble
            raise EnvironmentNotReadyError(message) from error
        raise


def set_policy(urls: Sequence[str], policy: Policy) -> None:
    """Set `appendfsync` on all servers to the value for this policy. Do nothing if the policy is
    `none`.

    Raises EnvironmentNotReadyError if a server refuses the change. The message names this server.
    """
    for target in parse_targets(urls) if policy != "none" else ():
        _policy_of(target, server_policy(policy))


def _policy_of(target: InstanceTarget, new_policy: str | None = None) -> str:
    """Return the `appendfsync` of the server. If `new_policy` is not None, set this value first.

    Raises EnvironmentNotReadyError.
    """
    try:
        with client_of(target, _ASK_S) as client:
            if new_policy is not None:
                client.config_set(_POLICY, new_policy)
            return str(client.config_get(_POLICY)[_POLICY])
    except (redis.RedisError, OSError, KeyError) as error:
        raise EnvironmentNotReadyError(
            f"lockbench could not read or set {_POLICY} on the server {target.address}: "
            f"{error}; check that the server answers and that this user may run CONFIG, or "
            "measure the present policy with lockbench run"
        ) from None


def without_waitaof(name: str | None, version: str | None) -> str | None:
    """Return a text that says that a server of this name and version has no WAITAOF. Return None if
    the server has WAITAOF."""
    since = tuple(int(part) for part in (version or "").split(".")[:2] if part.isdecimal())
    has_waitaof = name in ("redis", "valkey") and since >= (7, 2)
    return (
        None
        if has_waitaof
        else f"{name} {version} has no command WAITAOF, which needs version 7.2 or later"
    )


def _listed(policies: Iterable[str | None]) -> str:
    return ", ".join(sorted(policy or "an unknown policy" for policy in policies))


def main() -> None:
    """Wait until standard input ends, and then restore the settings of all servers. The function
    restores all servers in parallel, so that a silent server does not delay the others."""
    order = json.loads(sys.stdin.readline())
    print(_READY, flush=True)  # noqa: T201 - the leash reads it
    while sys.stdin.read(4096):
        pass
    targets = parse_targets(order["urls"])
    with ThreadPoolExecutor(len(targets)) as threads:
        list(threads.map(_put_back, targets, order["values"]))


def _put_back(target: InstanceTarget, value: str) -> None:
    for _ in range(_TRIES):
        with suppress(EnvironmentNotReadyError):
            _policy_of(target, value)
            return
        time.sleep(_REST_S)


if __name__ == "__main__":
    main()
