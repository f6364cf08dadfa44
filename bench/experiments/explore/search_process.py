"""A process that plays schedules: *numbers → what came of them; one that broke a recipe → the same on real servers*.

Started by name (bench.topology.child); it sees virtual time from its first import of a recipe on. On real servers the
clients, their connections and whatever comes differently are simulated as before, but in real time, and each command is
executed by a real server when its turn comes. What a server does by itself cannot be forced: a clock that runs fast, a
full disk, a replica that lags.
"""

import gc
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from types import SimpleNamespace

from msgspec import Struct

from bench.experiments.explore.keyspace import Command
from bench.experiments.explore.play import ENGINE, Play
from bench.experiments.explore.result import Broken
from bench.experiments.explore.schedule import Schedule, follow
from bench.experiments.explore.search import Hunt, every, hunt, numbered, schedule_of, setting_of
from bench.experiments.explore.sockets import take_over
from bench.experiments.explore.world import START_NS
from bench.topology.child import orders, say
from lockcore.clock import NS_PER_S

REPLY_S = 5.0


class SearchOrder(Struct):
    """Play schedules `first` … `first + count` of `seed`; `most`: else those with at most so many changes, one branch
    in `count` from `first` on; `again`: else that one, on the real servers at `ports`, which are empty."""

    recipe: str
    seed: int
    first: int
    count: int
    most: int | None = None
    again: Broken | None = None
    ports: tuple[int, ...] = ()


def main() -> None:
    """Obey until there are no more orders."""
    take_over()
    gc.freeze()
    gc.set_threshold(50_000)  # play.py collects what a schedule leaves
    for order in orders(SearchOrder):
        say(answer(order))


def answer(order: SearchOrder) -> Hunt:
    """What came of an order."""
    from bench.recipes.registry import find_recipe

    setting, first = setting_of(order.recipe, find_recipe(order.recipe).about), order.first
    if order.again is not None:
        return _replayed(schedule_of(setting, order.again), order.ports)
    if order.most is not None:
        return hunt(every(setting, order.most, first, order.count), first)
    return hunt((numbered(setting, number, order.seed) for number in range(first, first + order.count)), first)


def _replayed(schedule: Schedule, ports: Sequence[int]) -> Hunt:
    """Play it in real time."""
    began_ns = list[int]()

    def until(now_ns: int) -> None:
        """Real time from the first moment on in which something may come differently."""
        if now_ns >= START_NS:
            began_ns.append(time.monotonic_ns() - now_ns)
            time.sleep(max(began_ns[0] + now_ns - time.monotonic_ns(), 0) / NS_PER_S)

    play = Play(schedule.setting, follow(schedule.changes))
    play.world.until = until
    try:
        with ExitStack() as stack:
            for server, port in zip(play.servers, ports, strict=True):
                server.data = data = stack.enter_context(closing(RealKeyspace(port)))  # type: ignore[assignment]
                server.is_old = schedule.setting.recipe == ENGINE
                data.clear()
            played = play.run()
    except OSError as error:
        return Hunt(raised=f"{type(error).__name__}: {error}")
    return Hunt(played=1, raised=played.raised, rule=played.broken)


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


if __name__ == "__main__":
    main()
