"""Terms for prices, losses and the planner's page: *policies, crashes, ways of restart, disks →
their names and meanings*. Pure.

A way combines a policy, the restart of a crashed server, and how clients treat the restarted
server.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

# Each policy does more for durability than the previous one.
AofPolicy = Literal["none", "no", "everysec", "always"]
Policy = Literal[AofPolicy, "waitaof"]
Restart = Literal["at-once", "delayed"]
CrashKind = Literal["shutdown", "kill", "kill-slow-fsync", "power-cut", "power-cut-torn"]
AOF_POLICIES: tuple[AofPolicy, ...] = get_args(AofPolicy)
POLICIES: tuple[Policy, ...] = get_args(Policy)
RESTARTS: tuple[Restart, ...] = get_args(Restart)
# How tables and pictures name each kind of crash.
KINDS: Mapping[CrashKind, str] = {
    "shutdown": "SHUTDOWN",
    "kill": "kill -9",
    "kill-slow-fsync": "kill -9, slow",
    "power-cut": "power cut",
    "power-cut-torn": "power cut, torn",
}
TERMS = {
    "appendfsync": (
        "the time at which Redis syncs its append-only file: never by itself (no), "
        "once a second (everysec), or before each reply (always); none means that "
        "there is no append-only file"
    ),
    "granted twice": "a second client got a lock while the lease of the first was valid",
    "restart": (
        "at once: the server starts directly after the crash; delayed: the server "
        "starts when the longest TTL is over"
    ),
    "clients abstain": (
        "clients do not count votes of a restarted server until the longest TTL is over"
    ),
    "disk": "raw: no added delay; +2 ms: every fsync took 2 ms longer, as on cloud volumes",
}


def terms(*names: str) -> dict[str, str]:
    """Return the meanings of these table words."""
    return {name: TERMS[name] for name in names}


def disk_name(added_ms: float) -> str:
    """Return a disk's name: the delay that is added to each fsync, or `raw`."""
    return f"+{added_ms:g} ms" if added_ms else "raw disk"


def server_policy(policy: Policy) -> AofPolicy:
    """Return the policy of the servers. It is everysec for `waitaof`, and the same policy
    otherwise."""
    return "everysec" if policy == "waitaof" else policy


class Way(NamedTuple):
    """A way to run the servers. It has a policy, the restart of a crashed server, and whether
    clients let this server abstain."""

    policy: Policy
    restart: Restart
    abstention: bool

    @property
    def back(self) -> str:
        """The way of restart, in words."""
        if self.restart == "delayed":
            return self.restart
        return "at once, clients abstain" if self.abstention else "at once"

    @property
    def waits(self) -> bool:
        """True if no vote of a restarted server counts before the longest TTL has passed."""
        return self.abstention or self.restart == "delayed"
