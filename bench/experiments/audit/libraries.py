"""Each library's own words: *a name → its calls as its README writes them, and what it promises*.

Rules: `libraries.toml` says nothing that the drivers do not do; a library without words is told in the words of the
steps. In a call `$ttl_ms`, `$ttl_s` and `$wait_s` are what was asked for.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from string import Template

from msgspec import Struct, convert


class LibraryWords(Struct, frozen=True):
    """The code of each step. `promise`: what its documentation says, and where; `promises`: nearer, by schedule."""

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
        return Template(text).substitute(ttl_ms=ttl_ms, ttl_s=f"{ttl_ms / 1000:g}", wait_s=f"{wait_ms / 1000:g}")


def promise_of(name: str, schedule: str) -> str:
    """What the documentation of a library says to a schedule; "" if nothing was found."""
    own, algorithm = words_of(name), words_of("algorithm").promises.get(schedule)
    page = f'Distributed Locks with Redis: "{algorithm}"' if algorithm else ""
    return own.promises.get(schedule) or "; ".join(filter(None, (own.promise, page)))


def words_of(name: str) -> LibraryWords:
    """Return the words of a peer or control called `name`."""
    return _all().get(name, LibraryWords())


@cache
def _all() -> dict[str, LibraryWords]:
    text = (resources.files(__package__) / "libraries.toml").read_text("utf-8")
    return convert(tomllib.loads(text), dict[str, LibraryWords])
