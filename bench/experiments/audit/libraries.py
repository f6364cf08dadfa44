"""The libraries that can be audited: *a folder with libraries.toml → an entry per library*.

Rules: an entry has the facts about the library that a result stores. An entry also has the
library's calls as its README shows them, and the promises of its documentation. `$ttl_ms`, `$ttl_s`
and `$wait_s` stand for the requested values. The table contains only calls that the driver makes.
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
    """A library of a table. `folder` is the folder of the table. This folder also holds the
    drivers' sources, in one folder per language."""

    library: Library
    words: LibraryWords
    folder: Path


def read_libraries(folder: Path = HERE) -> list[LibraryEntry]:
    """Return the libraries of the table in `folder`.

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
    """Return the library's promise about a schedule. Without a promise about the schedule, return
    the library's general promise and the sentence of the Redlock page about the schedule. Return ""
    if neither exists."""
    algorithm = _table(HERE)[ALGORITHM]["promises"].get(schedule)
    page = f'Distributed Locks with Redis: "{algorithm}"' if algorithm else ""
    return words.promises.get(schedule) or "; ".join(filter(None, (words.promise, page)))
