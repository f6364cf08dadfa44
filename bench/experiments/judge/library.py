"""Defines the data that starts a client. The data describes the library, contains the text of each
library call, and contains the command that starts the client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import msgspec

from bench.measure.section import Section, says

# The folder from which `bench` was imported.
ROOT = Path(__file__).parents[3]
Language = Literal["lockcore", "python", "node", "go", "rust", "java"]


class Library(Section, frozen=True):
    """A lock library, or a lock with a planted fault."""

    name: Annotated[str, says("the name of the library's lock")]
    kind: Annotated[Language, says("the language of the client")]
    home: Annotated[
        str, says("the library's folder in the cache; empty: lockbench's own environment")
    ] = ""
    packages: Annotated[tuple[str, ...], says("the packages that the library needs")] = ()
    instances: Annotated[
        tuple[int, ...], says("the numbers of instances that the lock supports")
    ] = (1, 3, 5)


class LibraryWords(msgspec.Struct, frozen=True):
    """The text of each step, which shows the code that a user of the library would write.

    `promise` quotes a statement from the library's documentation, with its place. For some
    schedules the documentation has a more specific statement. `promises` maps the name of such a
    schedule to this statement.
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
        """Return the text of the step `do`, which shows the TTL and the longest wait."""
        text: str = getattr(self, do)
        return Template(text).substitute(
            ttl_ms=ttl_ms, ttl_s=f"{ttl_ms / 1000:g}", wait_s=f"{wait_ms / 1000:g}"
        )


@dataclass(frozen=True, slots=True)
class LibraryDriver:
    """A library that lockbench can start. The program that `command` starts reads an order on
    stdin. The program gets the environment variables of lockbench and the variables in
    `environment`.
    """

    library: Library
    words: LibraryWords
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
