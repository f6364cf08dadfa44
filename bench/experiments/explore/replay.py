"""A schedule on real servers: *the smallest that broke a recipe, ports → what came of it there*.

The clients, their connections and whatever comes differently are simulated as before, but in real time, and each
command is executed by a real server when its turn comes. What a server does by itself cannot be forced: a clock that
runs fast, a full disk, a replica that lags.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from bench.experiments.explore.keyspace import Command
from bench.experiments.explore.play import ENGINE, Play, Played
from bench.experiments.explore.result import Broken
from bench.experiments.explore.schedule import Change, Place, Setting, follow
from bench.experiments.explore.search import setting_of
from bench.experiments.explore.world import START_NS
from bench.recipes.registry import find_recipe
from lockcore.clock import NS_PER_MS, NS_PER_S

UNFORCED = {"full": "a full disk cannot be forced"}
REPLY_S = 5.0


class RealKeyspace:
    """A real server in the place of a simulated one's data."""

    def __init__(self, port: int) -> None:
        """Connect to an empty server. Raises OSError."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=REPLY_S)
        self._replies = self._socket.makefile("rb")
        self.role, self.is_full = "master", False
        self.scripts = SimpleNamespace(clear=lambda: self.run([b"SCRIPT", b"FLUSH"]))

    def run(self, command: Command) -> bytes:
        """Execute one command; its reply as it came. Raises OSError."""
        words = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in command)
        self._socket.sendall(b"*%d\r\n%b" % (len(command), words))
        return self._reply()

    def _reply(self) -> bytes:
        line = self._replies.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server ended the connection")
        if line[:1] == b"$" and line != b"$-1\r\n":
            return line + self._replies.read(int(line[1:]) + 2)
        if line[:1] == b"*":
            return line + b"".join(self._reply() for _ in range(max(int(line[1:]), 0)))
        return line

    @property
    def keys(self) -> Mapping[bytes, bytes]:
        """What is held now; of a key that is no string, what GET says."""
        names = self.run([b"KEYS", b"*"]).split(b"\r\n")[2::2]
        return {name: self.run([b"GET", name]).split(b"\r\n", 1)[-1].removesuffix(b"\r\n") for name in names if name}

    def clear(self) -> None:
        """A restart without persistence."""
        self.run([b"FLUSHALL"])
        self.scripts.clear()

    def close(self) -> None:
        """Close the connection."""
        self._replies.close()
        self._socket.close()


def unforced(recipe: str, broken: Broken) -> str:
    """Why a schedule cannot be played on real servers, "" if it can."""
    if find_recipe(recipe).about.replicated:
        return "replication cannot be forced"
    return next((UNFORCED[change.what] for change in broken.changes if change.what in UNFORCED), "")


def replay(recipe: str, broken: Broken, ports: Sequence[int]) -> Played:
    """Play the schedule in real time on the empty servers at `ports`. Raises OSError."""
    changes = {
        Place(one.where, one.who, one.visit): Change(one.what, int(one.for_ms * NS_PER_MS)) for one in broken.changes
    }
    play = Play(_setting(recipe, broken), follow(changes))
    servers = [RealKeyspace(port) for port in ports]
    try:
        for server, data in zip(play.servers, servers, strict=True):
            data.clear()
            server.data = data  # type: ignore[assignment]
            server.is_old = recipe == ENGINE
        play.world.until = _RealTime().until
        return play.run()
    finally:
        for data in servers:
            data.close()


def _setting(recipe: str, broken: Broken) -> Setting:
    told: dict[str, Any] = {
        name: getattr(broken, name) for name in ("clients", "callers", "resources", "rounds", "seed")
    }
    starts_ns = tuple(int(start_ms * NS_PER_MS) for start_ms in broken.starts_ms)
    usual = setting_of(recipe, find_recipe(recipe).about)
    hold_ns = int(broken.hold_ms * NS_PER_MS)
    return replace(usual, **told, hold_ns=hold_ns, extends=broken.extends, starts_ns=starts_ns)


class _RealTime:
    """Real time from the first moment on in which something may come differently."""

    def __init__(self) -> None:
        self._begun_ns = 0

    def until(self, now_ns: int) -> None:
        """Return when it is that time."""
        if now_ns >= START_NS:
            self._begun_ns = self._begun_ns or time.monotonic_ns() - now_ns
            time.sleep(max(self._begun_ns + now_ns - time.monotonic_ns(), 0) / NS_PER_S)
