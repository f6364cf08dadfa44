"""What one instance offers a lock: *URL → facts, each with what it means*.

Rules: it is asked by lockcore's own handshake, so that what is said here is what a lock will do.
"""

from __future__ import annotations

from bench.errors import UsageError
from bench.scenario.target import parse_target
from bench.topology.doctor import Fact, Status
from lockcore.errors import InstanceError
from lockcore.membership import IdentityKind
from lockcore.shells.handshake import shake
from lockcore.shells.target import target_of

_TIMEOUT_S = 2.0
_ASKED = (
    "no HELLO 3 or CLIENT TRACKING for this user: it is asked once a second whether it was a replica, and a flush is "
    "not noticed; see lockcore/README.md"
)


def examine_target(url: str) -> tuple[Fact, ...]:
    """What the instance at `url` is, by what a restart of it is noticed, and how it releases; or why it cannot vote.

    Takes 2 s at most. Raises UsageError for a URL that cannot be read.
    """
    try:
        target = target_of(parse_target(url), _TIMEOUT_S, "lockbench:")
    except ValueError as error:
        raise UsageError(f"option --target: {error}") from None
    try:
        connected = shake(target)
    except InstanceError as error:
        return (Fact(target.address, error.reason, Status.MISSING, error.detail),)
    connected.sock.close()
    hello, dialect = connected.hello, connected.dialect
    good = Status.OK if hello.identity is IdentityKind.RUN_ID else Status.LIMITED
    return (
        Fact(target.address, hello.server, Status.OK, f"up for {hello.uptime_s} s"),
        Fact("identity", hello.identity.value, good, hello.identity.meaning),
        Fact("flushes", "told", Status.OK) if hello.tells else Fact("flushes", "not told", Status.LIMITED, _ASKED),
        Fact("release", dialect.release_command, Status.OK),
    )
