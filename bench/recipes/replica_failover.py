"""One master and asynchronous replicas: *SET NX PX on whoever says it is the master*.

Flawed, on purpose: do not copy it. The master's OK does not wait for its replicas; one that is promoted without the key
grants it again. What it needs of the fleet stands in the README, "Schedules". The client finds the master by asking all
for their ROLE, at connect and after every error. Source: Redis documentation, "Redis replication".
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import RedisError

from bench.errors import EnvironmentNotReadyError
from bench.recipes.plain import HELD, PlainInstance, PlainRecipe, Refusal
from bench.recipes.protocol import About, RecipeSettings
from lockcore import Lease, Outcome
from lockcore.clock import monotonic_ns

PATIENCE_S = 10.0
_POLL_S = 0.01


def replicate(urls: Sequence[str]) -> None:
    """Make all servers after the first replicas of the first, and wait until they are in step.

    Raises EnvironmentNotReadyError when one is not within 10 s, or does not answer.
    """
    master = urlsplit(urls[0])
    for url in urls[1:]:
        _ask(url, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
        _ask(url, "REPLICAOF", str(master.hostname), str(master.port))
    _ask(urls[0], "CONFIG", "SET", "repl-diskless-sync-delay", "0")
    deadline = time.monotonic() + PATIENCE_S
    for url in urls[1:]:
        while _ask(url, "INFO", "replication").get("master_link_status") != "up":
            if time.monotonic() > deadline:
                raise EnvironmentNotReadyError(
                    f"the replica on port {urlsplit(url).port} was not in step with its master within {PATIENCE_S:g} s"
                )
            time.sleep(_POLL_S)  # no server tells when it is in step


def promote(url: str) -> None:
    """Make a replica a master of its own. Raises EnvironmentNotReadyError when it does not answer."""
    _ask(url, "REPLICAOF", "NO", "ONE")


def _ask(url: str, *command: str) -> Any:
    with Redis.from_url(url, protocol=2, driver_info=None) as client:
        try:
            return client.execute_command(*command)
        except RedisError as error:
            where = f"the server on port {urlsplit(url).port}"
            raise EnvironmentNotReadyError(f"{where} cannot be made master or replica: {error}") from None


class ReplicaFailover(PlainRecipe):
    """The lock of whoever trusts a master's replica. Flawed, on purpose: do not copy it."""

    about = About(
        how="SET NX PX on the master; an asynchronous replica is promoted at once when it dies",
        flaw="the promoted replica may lack the key: a lock that was acknowledged is granted again",
        safe=False,
        shown_by=("kill instance:0, link to the replica frozen",),
        least=2,
        most=None,
        usual=2,
        replicated=True,
    )

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """See `Recipe.connect`: exactly one instance must be a master."""
        recipe = cls([PlainInstance(index, url, settings) for index, url in enumerate(targets)], settings)
        masters = [server.address for server in recipe.servers if _is_master(server)]
        if len(masters) == 1:
            recipe._find_master()
            return recipe
        recipe.close()
        what = f"there are {len(masters)} masters ({', '.join(masters)})" if masters else "no instance is a master"
        raise EnvironmentNotReadyError(
            f"{what}; this recipe needs one, the other instances replicas of it (REPLICAOF), "
            "or servers that lockbench starts itself"
        )

    def __init__(self, servers: Sequence[PlainInstance], settings: RecipeSettings) -> None:
        super().__init__(servers, settings)
        self._master = self.servers[0]

    @property
    def promotion_delay_ms(self) -> int:
        """How long after the master's death a replica may be promoted."""
        return 0

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SET NX PX on the master; after an error the next attempt is made on whoever is the master then."""
        token, started_ns = self.new_token(), monotonic_ns()
        try:
            granted = self._master.ask("SET", self.key(resource), token, "NX", "PX", ttl_ms)
        except RedisError:
            self._find_master()
            raise
        return HELD if granted is None else self.leased(resource, token, ttl_ms, started_ns)

    def give_back(self, lease: Lease) -> Outcome:
        """Compare-and-delete on the master."""
        try:
            deleted = self._master.delete_own(self.key(lease.resource), lease.owner_token)
        except RedisError:
            self._find_master()
            deleted = self._master.delete_own(self.key(lease.resource), lease.owner_token)
        return Outcome.RELEASED if deleted else Outcome.GONE

    def _find_master(self) -> None:
        """Whoever says it is the master, the one after the present first; nobody: the present one stays."""
        present = self._master.index
        for server in (*self.servers[present + 1 :], *self.servers[: present + 1]):
            if _is_master(server):
                self._master = server
                return


class ReplicaDelayedPromotion(ReplicaFailover):
    """The same, in a fleet that waits."""

    about = replace(
        ReplicaFailover.about,
        how="as replica-failover, but a replica is promoted only after the longest TTL",
        flaw="none in exclusion; after the master's death nothing can be locked for a TTL",
        safe=True,
        shown_by=("kill instance:0",),
    )

    @property
    def promotion_delay_ms(self) -> int:
        """The longest TTL: what a lost key can have lasted."""
        return self._max_ttl_ms


def _is_master(server: PlainInstance) -> bool:
    with suppress(RedisError):
        return bool(server.ask("ROLE")[0] == b"master")
    return False
