"""multi-write with the mitigation said to be used: *granted, then a row that must be unique in a database*.

A double grant is caught by the unique index: the second row is rejected, and counted (`caught_double_grants`). What
then excludes is the database; the lock in front of it only saves it work. Rows of expired leases are replaced.
Rules: one SQLite file per run, in its shared folder, for the processes of one host (a lease's end is of this host's
monotonic clock). SQLite waits for other processes by blocking this one, for a second at most.
Source: the table in the README of this folder; SQLite's "Isolation" and "UNIQUE constraints".
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha1
from pathlib import Path
from threading import Lock

from bench.recipes.instance import Instance
from bench.recipes.multi_write import MultiWrite
from bench.recipes.plain import Refusal
from bench.recipes.protocol import RecipeSettings
from lockcore import Lease, Outcome, Tally
from lockcore.clock import monotonic_ns


class UniqueIndex:
    """Which lease a resource has, in a table whose index admits one."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
        self._turn = Lock()
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = OFF")  # the file ends with the run
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS lease (resource TEXT UNIQUE, token BLOB, valid_until_ns INTEGER)"
        )

    def insert(self, lease: Lease) -> bool:
        """False when the index rejects the row: another lease of the resource is there, and not expired."""
        with self._turn, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute(
                "DELETE FROM lease WHERE resource = ? AND valid_until_ns < ?", (lease.resource, monotonic_ns())
            )
            try:
                self._database.execute(
                    "INSERT INTO lease VALUES (?, ?, ?)", (lease.resource, lease.owner_token, lease.valid_until_ns)
                )
            except sqlite3.IntegrityError:
                return False
        return True

    def delete(self, lease: Lease) -> None:
        """Remove the row of this lease, if it is still there."""
        with self._turn:
            self._database.execute("DELETE FROM lease WHERE token = ?", (lease.owner_token,))

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._database.close()


class MultiWriteUniqueIndex(MultiWrite):
    """As multi-write, and the database has the last word."""

    about = replace(
        MultiWrite.about,
        how="as multi-write; then a row with a unique index in a database (SQLite)",
        flaw="none while the database lives: it is the lock, and catches the double grants of multi-write",
        safe=True,
    )

    def __init__(self, servers: Sequence[Instance], settings: RecipeSettings) -> None:
        super().__init__(servers, settings)
        name = sha1(settings.key_prefix.encode(), usedforsecurity=False).hexdigest()[:16]
        self._path = (settings.folder or Path(tempfile.gettempdir())) / f"unique-index-{name}.sqlite"
        self._private = settings.folder is None
        self._index = UniqueIndex(self._path)

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Granted once the row is in; a rejected one is a double grant that was caught."""
        result = super().attempt(resource, ttl_ms)
        if not isinstance(result, Lease):
            return result
        if self._index.insert(result):
            result.granted_ns = monotonic_ns()
            return result
        self.figures["caught_double_grants"] += 1
        super().give_back(result)
        return Refusal(Outcome.CONTENDED, Tally(refused=len(self.servers)))

    def give_back(self, lease: Lease) -> Outcome:
        """The row first: the next holder's is then never in its way."""
        self._index.delete(lease)
        return super().give_back(lease)

    def close(self) -> None:
        """Close the connections and the database."""
        super().close()
        self._index.close()
        if self._private:
            for path in self._path.parent.glob(f"{self._path.name}*"):
                path.unlink(missing_ok=True)
