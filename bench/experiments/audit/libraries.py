"""Reads the table of the libraries that can be audited: *a folder with libraries.toml → an entry
for each library*.

An entry has some facts about a library, and the audit copies these facts into its result. An entry
also has the calls that the library's README shows, and the promises that its documentation makes.
In the calls, `$ttl_ms`, `$ttl_s` and `$wait_s` stand for the TTL and the waiting time. The driver
really makes each of these calls.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.errors import UsageError
from bench.experiments.judge.library import Library, LibraryWords

HERE = Path(__file__).parent
TABLE = "libraries.toml"
ALGORITHM = "algorithm"


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """One library in a table. `folder` is the folder that contains the table. This folder has one
    subfolder per language, and each subfolder contains the sources of the drivers in its
    language."""

    library: Library
    words: LibraryWords
    folder: Path


def read_libraries(folder: Path = HERE) -> list[LibraryEntry]:
    """Read the table in `folder`, and return its libraries.

    Raises UsageError if there is no table, or if the table is unreadable.
    """
    try:
        return [
            LibraryEntry(
                msgspec.convert({**facts, "name": name}, Library),
                msgspec.convert(facts, LibraryWords),
                folder,
            )
            for name, facts in _table(folder).items()
            if name != ALGORITHM
        ]
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(
            f"{folder / TABLE} is not a table of libraries ({error}); give a folder with a valid "
            "table as --drivers"
        ) from None


def _table(folder: Path) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    return tomllib.loads((folder / TABLE).read_text("utf-8"))


def promise_of(words: LibraryWords, schedule: str) -> str:
    """Return what the library's documentation promises about a schedule. If the documentation
    promises nothing about this schedule, return the library's general promise and the Redlock
    page's sentence about this schedule. Return "" if all of these texts are missing."""
    algorithm = _table(HERE)[ALGORITHM]["promises"].get(schedule)
    page = f'Distributed Locks with Redis: "{algorithm}"' if algorithm else ""
    return words.promises.get(schedule) or "; ".join(filter(None, (words.promise, page)))
