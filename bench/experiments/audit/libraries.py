"""Which libraries can be audited: *a folder with libraries.toml → an entry per library*.

Rules: an entry holds what a result stores of the library, its calls as its README writes them, and
what its documentation promises. `$ttl_ms`, `$ttl_s` and `$wait_s` stand for what is asked for.
The table says nothing that the driver does not do.
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
    """A library of a table. `folder`: where the table is, and below it the sources of its drivers,
    in a folder per language."""

    library: Library
    words: LibraryWords
    folder: Path


def read_libraries(folder: Path = HERE) -> list[LibraryEntry]:
    """The libraries of the table in `folder`.

    Raises UsageError when there is none, or one that cannot be read.
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
            f"{folder / TABLE} is not a table of libraries ({error}); name the folder of one with "
            "--drivers"
        ) from None


def _table(folder: Path) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    return tomllib.loads((folder / TABLE).read_text("utf-8"))


def promise_of(words: LibraryWords, schedule: str) -> str:
    """What the documentation says to a schedule; "" if nothing was found."""
    algorithm = _table(HERE)[ALGORITHM]["promises"].get(schedule)
    page = f'Distributed Locks with Redis: "{algorithm}"' if algorithm else ""
    return words.promises.get(schedule) or "; ".join(filter(None, (words.promise, page)))
