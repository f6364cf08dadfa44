"""Defines the terms for prices, losses and the planner's page. The module also explains each of
these terms that occurs in tables. All functions are pure.

A way combines a policy, the restart of a crashed server, and the behaviour of clients towards the
restarted server.
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
    "appendfsync": "the time at which Redis syncs its append-only file: never by itself (no), "
    "once a second (everysec), or before each reply (always); none means that "
    "there is no append-only file",
    "granted twice": "a second client got a lock while the lease of the first client was valid",
    "restart": "at once means that the server starts directly after the crash; delayed means that "
    "it starts when the longest TTL is over",
    "clients abstain": "clients ignore votes of a restarted server until the longest TTL is over",
    "disk": "raw means that no delay was added; +2 ms means that every fsync took 2 ms longer, as "
    "on cloud volumes",
}


def terms(*names: str) -> dict[str, str]:
    """Return the meaning of each word in `names`. The words occur in tables."""
    return {name: TERMS[name] for name in names}


def disk_name(added_ms: float) -> str:
    """Return the name that tables show for a disk. If lockbench adds a delay to each fsync, the
    name is this delay, such as `+2 ms`. Otherwise the name is `raw disk`."""
    return f"+{added_ms:g} ms" if added_ms else "raw disk"


def server_policy(policy: Policy) -> AofPolicy:
    """Return the value of `appendfsync` for this policy. For `waitaof`, this value is `everysec`.
    For every other policy, the value of `appendfsync` is the name of the policy."""
    return "everysec" if policy == "waitaof" else policy


class Way(NamedTuple):
    """A way to run the servers. A way has three settings: the policy, the time of a crashed
    server's restart, and the behaviour of clients. Clients either trust a restarted server or let
    it abstain."""

    policy: Policy
    restart: Restart
    abstention: bool

    @property
    def back(self) -> str:
        """A text that describes how a crashed server restarts."""
        if self.restart == "delayed":
            return self.restart
        return "at once, clients abstain" if self.abstention else "at once"

    @property
    def waits(self) -> bool:
        """True if the vote of a restarted server counts only after the longest TTL has passed."""
        return self.abstention or self.restart == "delayed"
