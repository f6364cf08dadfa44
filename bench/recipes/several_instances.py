"""Locks that use several instances, but do not ask for a quorum of votes.

The first two recipes lock on one instance and copy the lock to the others. The other recipes lock
on the master of a replicated fleet.

`multi-write` is flawed on purpose. Do not copy it. If a caller cannot reach redis-1, the caller
acquires the lock on redis-2. Perhaps redis-1 has already granted the lock to another caller, but
the copy has not arrived at redis-2. In this case, both callers get the lock.

`multi-write-unique-index` adds a database table with a unique index on the resource. The table
rejects a double grant, and the recipe counts the double grant. A new lease replaces the row of an
expired lease. The database is one SQLite file per run. If the run has no folder, the database is in
the memory of the process.

`replica-failover` is also flawed on purpose. The master answers OK without waiting for its
replicas. If a replica without the key becomes the master, it grants the lock again. The section
"Replicas" of docs/fencing.md describes the servers that the recipe needs. To find the master, the
client sends ROLE to the instances when it connects and after every error.

Source: Redis documentation, "Redis replication".
"""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any, Self
from urllib.parse import quote, urlsplit

from redis.exceptions import RedisError

from bench.errors import EnvironmentNotReadyError
from bench.recipes.plain import DEFINITE, PlainInstance, PlainRecipe, Refusal
from bench.recipes.protocol import About, RecipeSettings
from bench.topology.target import client_of, parse_targets
from lockcore import Lease, Outcome, Tally
from lockcore.bench.sockets import failure_of
from lockcore.clock import monotonic_ns


class MultiWrite(PlainRecipe):
    """A lock in which one instance decides, and the other instances get copies of the lock.

    This lock is flawed on purpose. Do not copy it.
    """

    about = About(
        how="SET NX PX on one instance, then a copy to the others; after an error, the client "
        "uses another instance",
        flaw="during a switch, two instances may grant the lock to two clients",
        safe=False,
        least=2,
        most=None,
        usual=3,
        points=("before-copy",),
    )

    @classmethod
    def needed(cls, instances: int) -> int:
        return 1

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        key = self.key(resource)
        token = self.new_token()
        started_ns = monotonic_ns()
        errored = silent = 0
        for turn in range(len(self.servers)):
            server = self.servers[(self.server.index + turn) % len(self.servers)]
            try:
                granted = server.ask("SET", key, token, "NX", "PX", ttl_ms)
            except DEFINITE:
                errored += 1
                continue
            except RedisError:
                silent += 1
                continue
            self.use(server)
            others = len(self.servers) - 1 - errored - silent
            if granted is None:
                return Refusal(Outcome.CONTENDED, Tally(0, 1, errored, silent, others))
            self.pause("before-copy")
            copies = self._copy(server, key, token, ttl_ms)
            tally = Tally(1 + copies, 0, len(self.servers) - 1 - copies)
            return self.leased(resource, token, ttl_ms, started_ns, tally=tally)
        return Refusal(Outcome.UNREACHABLE, Tally(errored=errored, silent=silent))

    def give_back(self, lease: Lease) -> Outcome:
        key = self.key(lease.resource)
        outcome = Outcome.UNREACHABLE
        for server in self.servers:
            with suppress(RedisError):
                deleted = server.delete_own(key, lease.owner_token)
                if server is self.server:
                    outcome = Outcome.RELEASED if deleted else Outcome.GONE
        return outcome

    def _copy(self, origin: PlainInstance, key: str, token: bytes, ttl_ms: int) -> int:
        """Copy the key of a granted lock to the other instances. Returns how many instances have
        confirmed the copy."""
        copies = 0
        for server in self.servers:
            if server is not origin:
                with suppress(RedisError):
                    server.ask("SET", key, token, "PX", ttl_ms)
                    copies += 1
        return copies


_INSERT = """
INSERT INTO lease VALUES (?, ?, ?) ON CONFLICT (resource)
DO UPDATE SET token = excluded.token, valid_until_ns = excluded.valid_until_ns
WHERE lease.valid_until_ns < ?
"""


class MultiWriteUniqueIndex(MultiWrite):
    """A lock like multi-write, but a database table makes the final decision. The table accepts
    only one valid lease of a resource."""

    about = replace(
        MultiWrite.about,
        how="like multi-write, but a lease also needs a row in a database table with a "
        "unique index (SQLite)",
        flaw="none while the database works; the database is the real lock and refuses double "
        "grants",
        safe=True,
    )

    def __init__(self, servers: Sequence[PlainInstance], settings: RecipeSettings) -> None:
        super().__init__(servers, settings)
        # The database is in the memory of this process.
        in_memory = f"file:{quote(settings.key_prefix)}?mode=memory&cache=shared"
        place = settings.folder / "unique-index.sqlite" if settings.folder else in_memory
        self._database = sqlite3.connect(
            place, timeout=1.0, isolation_level=None, check_same_thread=False, uri=True
        )
        self._turn = Lock()
        self._database.execute("PRAGMA journal_mode = WAL")
        # The file is removed with the run's folder, so it does not have to survive a power cut.
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS lease (resource TEXT UNIQUE, token BLOB, "
            "valid_until_ns INTEGER)"
        )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Acquire the lock with the algorithm of multi-write, and then insert a row for the lease
        into the table. If the table rejects the row, multi-write has granted the lock twice."""
        result = super().attempt(resource, ttl_ms)
        if not isinstance(result, Lease):
            return result
        if self.insert(result):
            result.granted_ns = monotonic_ns()
            return result
        self.figures["caught_double_grants"] += 1
        super().give_back(result)
        return Refusal(Outcome.CONTENDED, Tally(refused=len(self.servers)))

    def insert(self, lease: Lease) -> bool:
        """Insert the row of `lease` into the table.

        Returns False if the table has an unexpired row for another lease of the resource.
        """
        with self._turn:
            row = (lease.resource, lease.owner_token, lease.valid_until_ns, monotonic_ns())
            return self._database.execute(_INSERT, row).rowcount == 1

    def give_back(self, lease: Lease) -> Outcome:
        """Delete the row of the lease, and then delete the keys of the lease.

        If the keys were deleted first, the next holder could get the keys while the old row is
        still in the table. The table would then reject the row of the next holder.
        """
        with self._turn:
            self._database.execute("DELETE FROM lease WHERE token = ?", (lease.owner_token,))
        return super().give_back(lease)

    def close(self) -> None:
        super().close()
        self._database.close()


# -- one master and asynchronous replicas ----------------------------------------------------------

PATIENCE_S = 10.0
_POLL_S = 0.01


def replicate(urls: Sequence[str]) -> None:
    """Make all other servers replicas of the first server, and wait until the replicas are in step.

    Raises EnvironmentNotReadyError if a replica is not in step within 10 s, or does not answer.
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
                    f"the replica on port {urlsplit(url).port} did not catch up with its master "
                    f"within {PATIENCE_S:g} s"
                )
            # No server sends a message when a replica is in step.
            time.sleep(_POLL_S)


def _ask(url: str, *command: str) -> Any:
    (target,) = parse_targets([url])
    with client_of(target, PATIENCE_S) as client:
        try:
            return client.execute_command(*command)
        except RedisError as error:
            why = failure_of(target, error)
            raise EnvironmentNotReadyError(
                f"{target.address} cannot become master or replica: {why}"
            ) from None


class ReplicaFailover(PlainRecipe):
    """A lock on a master that may be replaced by its replica.

    This lock is flawed on purpose. Do not copy it.
    """

    about = About(
        how="SET NX PX on the master; when the master dies, an asynchronous replica is promoted "
        "at once",
        flaw="the promoted replica may lack the key, so an acknowledged lock is granted again",
        safe=False,
        least=2,
        most=None,
        usual=2,
        replicated=True,
    )

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """Connect as `RecipeClass.connect` describes. Exactly one instance must be a master."""
        recipe = cls(
            [PlainInstance(index, url, settings) for index, url in enumerate(targets)], settings
        )
        masters = [server.address for server in recipe.servers if _is_master(server)]
        if len(masters) == 1:
            recipe._find_master()
            return recipe
        recipe.close()
        what = (
            f"there are {len(masters)} masters ({', '.join(masters)})"
            if masters
            else "no instance is a master"
        )
        raise EnvironmentNotReadyError(
            f"{what}; this recipe needs exactly one master. Make the other instances its replicas "
            "(REPLICAOF), or use servers that lockbench starts"
        )

    @property
    def promotion_delay_ms(self) -> int:
        """How long (ms) a replica must wait after the master's death before it may be promoted."""
        return 0

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Send SET NX PX to the master. After an error, find the master for the next attempt."""
        try:
            return super().attempt(resource, ttl_ms)
        except RedisError:
            self._find_master()
            raise

    def give_back(self, lease: Lease) -> Outcome:
        try:
            return super().give_back(lease)
        except RedisError:
            self._find_master()
            return super().give_back(lease)

    def _find_master(self) -> None:
        """Find the master, and send later commands to it.

        The search starts at the next instance in the list and ends at the instance that the recipe
        uses now. The recipe uses the first instance that reports the role `master`. If no instance
        reports the role `master`, the recipe does not change its instance.
        """
        present = self.server.index
        for server in (*self.servers[present + 1 :], *self.servers[: present + 1]):
            if _is_master(server):
                self.use(server)
                return


class ReplicaDelayedPromotion(ReplicaFailover):
    """A lock like replica-failover, but a replica is promoted only after the longest TTL has
    passed."""

    about = replace(
        ReplicaFailover.about,
        how="like replica-failover, but a replica is promoted only after the longest TTL",
        flaw="mutual exclusion has no known flaw; after the master's death, no lock is granted "
        "during one TTL",
        safe=True,
    )

    @property
    def promotion_delay_ms(self) -> int:
        return self.settings.max_ttl_ms


def _is_master(server: PlainInstance) -> bool:
    with suppress(RedisError):
        return bool(server.ask("ROLE")[0] == b"master")
    return False
