"""Which libraries can be audited: *a folder with libraries.toml → an entry per library*.

Rules: an entry holds what a result stores of the library, its calls as its README writes them, and
what its documentation promises. `$ttl_ms`, `$ttl_s` and `$wait_s` stand for what is asked for.
The table says nothing that the driver does not do.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

import msgspec

from bench.errors import UsageError
from bench.experiments.audit.result import Library

HERE = Path(__file__).parent
TABLE = "libraries.toml"
ALGORITHM = "algorithm"


class LibraryWords(msgspec.Struct, frozen=True):
    """The code of each step.

    `promise`: what its documentation says, and where; `promises`: nearer, by schedule.
    """

    connect: str = "connects"
    acquire: str = "acquire, for $ttl_ms ms"
    release: str = "release"
    extend: str = "extend, by $ttl_ms ms"
    held: str = "is it held?"
    hold: str = "with lock: body, for $ttl_ms ms"
    fork: str = "a forked child: acquire"
    promise: str = ""
    promises: Mapping[str, str] = {}

    def call(self, do: str, ttl_ms: int, wait_ms: int) -> str:
        """The code of a step."""
        text: str = getattr(self, do)
        return Template(text).substitute(
            ttl_ms=ttl_ms, ttl_s=f"{ttl_ms / 1000:g}", wait_s=f"{wait_ms / 1000:g}"
        )

    def promise_of(self, schedule: str) -> str:
        """What the documentation says to a schedule; "" if nothing was found."""
        algorithm = _table(HERE)[ALGORITHM]["promises"].get(schedule)
        page = f'Distributed Locks with Redis: "{algorithm}"' if algorithm else ""
        return self.promises.get(schedule) or "; ".join(filter(None, (self.promise, page)))


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
