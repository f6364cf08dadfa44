"""Connects recipes to simulated servers without a change to the code of the recipes. The recipes
use redis-py as usual, but redis-py uses simulated sockets.

A search process calls `take_over` before it imports recipes. After this call, the functions of
`time`, `threading.Thread` and `threading.Condition` work in the simulated world. The connections of
redis-py lead to the servers of this world. A thread that is not simulated still gets real time.
"""

import _thread
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from bench.experiments.explore.engine_client import RETRY
from bench.experiments.explore.network import SimulatedLink, SimulatedServer
from bench.experiments.explore.outside import Outside
from bench.experiments.explore.schedule import TTL_MS
from bench.experiments.explore.world import Actor, here
from bench.recipes.protocol import RecipeSettings
from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from redis.connection import Connection

# The time that all wall clocks show when a world's clock shows zero.
WALL_NS = 1_700_000_000 * NS_PER_S
# The port of server 0. The ports of the other servers follow.
PORT = 1


class Scene:
    """The variables of this module. `servers` holds the servers of the current world, and `worlds`
    is the number of worlds that were created so far.
    """

    servers: tuple[SimulatedServer, ...] = ()
    worlds = 0


def url_of(index: int) -> str:
    """Return the URL at which a recipe finds server `index`."""
    return f"redis://simulated:{PORT + index}"


# Locks that are not recipes. The key is the lock's name in a setting. The value is a function that
# connects the lock to the servers at these URLs.
OWN_LOCKS: dict[str, Callable[[Sequence[str]], object]] = {}


def connect(recipe: str, servers: tuple[SimulatedServer, ...]) -> object:
    """Return a connected recipe of lockbench or another package.

    The caller must be the simulated thread that will use the recipe.
    """
    from bench.recipes.registry import find_recipe

    if Scene.servers != servers:
        Scene.servers = servers
        Scene.worlds = Scene.worlds + 1
    if recipe in OWN_LOCKS:
        return OWN_LOCKS[recipe]([url_of(server.index) for server in servers])
    # A recipe may keep state outside of its servers. The prefix keeps the states of different
    # worlds apart.
    prefix = f"{os.getpid()}-{Scene.worlds}:"
    settings = RecipeSettings(key_prefix=prefix, max_ttl_ms=TTL_MS, retry=RETRY)
    locker: Any = find_recipe(recipe).connect(
        [url_of(server.index) for server in servers], settings
    )
    if servers[-1].data.role == "slave":
        promote = partial(setattr, servers[1].data, "role", "master")
        servers[0].when_dead = lambda: servers[0].world.later(
            locker.promotion_delay_ms * NS_PER_MS, promote
        )
    return locker


class _SimulatedSocket:
    """A connected socket of a simulated process, with the methods that redis-py uses."""

    def __init__(self, server: SimulatedServer, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._buffer = bytearray()
        self._waiting: tuple[Actor, int] | None = None
        self._is_over = False
        self._link = SimulatedLink(here().process, server, self._heard, self._ended, self._lost)

    def sendall(self, data: bytes) -> None:
        if here().world.is_over:
            self._lost(self._link)
        self._link.send(data)

    def _lost(self, _link: SimulatedLink) -> None:
        raise ConnectionResetError("the simulated connection broke")

    def recv_into(self, buffer: bytearray, *_more: int) -> int:
        """Wait for bytes, copy them to `buffer`, and return the number of copied bytes.

        Return 0 if the connection has ended. Raises TimeoutError if no bytes arrive in time. Raises
        BlockingIOError if the socket does not wait.
        """
        if not self.can_read(self._timeout_s):
            raise BlockingIOError if not self._timeout_s else TimeoutError("timed out")
        count = min(len(buffer), len(self._buffer))
        buffer[:count] = self._buffer[:count]
        del self._buffer[:count]
        return count

    def can_read(self, timeout_s: float | None) -> bool:
        """Return whether bytes, or the end of the connection, arrive within the timeout (s)."""
        actor = here()
        world = here().world
        end_ns = FAR_FUTURE_NS if timeout_s is None else world.now_ns + int(timeout_s * NS_PER_S)
        while not self._buffer and not self._is_over and world.now_ns < end_ns:
            self._waiting = actor, actor.turn
            actor.wait(end_ns)
        return bool(self._buffer) or self._is_over

    def recv(self, _count: int, _flags: int = 0) -> bytes:
        """Return no bytes. redis-py calls this method only to test for an ended connection."""
        return b""

    def _heard(self, link: SimulatedLink, data: bytes) -> None:
        if link.is_open:
            self._buffer += data
            self._go_on()

    def _ended(self, _link: SimulatedLink) -> None:
        self._is_over = True
        self._go_on()

    def _go_on(self) -> None:
        waiting = self._waiting
        self._waiting = None
        if waiting is not None:
            waiting[0].go(waiting[1])

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def fileno(self) -> int:
        """Return a real descriptor for a selector.

        If the simulated connection has ended, the descriptor reports the end of its data. Otherwise
        the descriptor never reports data.
        """
        return (_ENDED if self._is_over or not self._link.is_open else _QUIET)[0].fileno()

    def close(self, *_how: int) -> None:
        self._link.close()

    shutdown = close


_QUIET = socket.socketpair()
_ENDED = socket.socketpair()
_ENDED[1].close()


def _connect(connection: "Connection") -> _SimulatedSocket:
    """Return a simulated socket. This function replaces redis-py's Connection._connect.

    Raises ConnectionRefusedError if the server is down.
    """
    server = Scene.servers[connection.port - PORT]
    if server.down:
        raise ConnectionRefusedError(111, "the simulated server is down")
    return _SimulatedSocket(server, connection.socket_timeout)


def _reading(real: Callable[..., bool]) -> Callable[..., bool]:
    """Return a replacement for redis-py's Connection.can_read.

    The original function would test the file descriptor in real time.
    """

    def can_read(connection: Any, timeout: float | None = 0) -> bool:
        sock = connection._sock
        return real(connection, 0) or (
            isinstance(sock, _SimulatedSocket) and sock.can_read(timeout)
        )

    return can_read


class _SimulatedThread:
    """A thread that a recipe starts in a simulated process.

    An exception ends only this thread, as in a real process. However, the verdict on the recipe is
    then "not known".
    """

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **_more: object,
    ) -> None:
        # The thread is a threading.Timer, or an object of a user's class with a `run` method.
        if target is None:
            Outside.note(f"a thread ({type(self).__name__})")
        elif str(getattr(target, "__module__", "")).startswith("concurrent.futures"):
            # The queue of the pool would block this whole process.
            Outside.note("a pool of threads")
        self._target = None if target is None else partial(target, *args, **(kwargs or {}))

    def start(self) -> None:
        actor = getcurrent()
        if isinstance(actor, Actor):
            actor.process.start(self._run)
        else:
            # While a recipe is imported, its thread runs in real time, because the import may wait
            # for the thread's result. `Outside` still notices the thread.
            _thread.start_new_thread(partial(self._run), ())

    def _run(self) -> None:
        try:
            if self._target is not None:
                self._target()
        except Exception as error:  # noqa: BLE001 - of a recipe; the row says it
            Outside.first = (
                Outside.first or f"a thread of the recipe raised {type(error).__name__}: {error}"
            )

    def join(self, timeout: float | None = None) -> None:
        """Return at once. The thread ends when the simulated world ends."""


class _SimulatedCondition:
    """A threading.Condition for the simulated threads of one process.

    The condition needs no lock, because no other simulated thread runs between two waits.
    """

    def __init__(self, _lock: object = None) -> None:
        self._waiting: list[tuple[Actor, int]] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_raised: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        actor = here()
        self._waiting.append((actor, actor.turn))
        actor.wait(
            FAR_FUTURE_NS if timeout is None else actor.world.now_ns + int(timeout * NS_PER_S)
        )
        return True

    def notify(self, n: int = 1) -> None:
        for actor, turn in self._waiting[:n]:
            actor.world.later(0, partial(actor.wake, turn))
        del self._waiting[:n]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


def take_over() -> None:
    """Prepare this process for simulations. The preparation cannot be undone."""

    # A recipe may be code of another package, which reads `time` and starts threads by itself. So
    # the functions in the modules `time` and `threading` are replaced. Each replacement checks its
    # caller. An actor of a world gets virtual time, and any other caller gets real time. So this
    # process can still talk to its parent and wait for real servers. A function that is not
    # replaced here would run in real time. outside.py notices such functions, and the recipe is
    # then "not known".
    def virtual(real: Callable[..., Any], of: Callable[..., Any]) -> Callable[..., Any]:
        def either(*arguments: float) -> object:
            actor = getcurrent()
            return of(actor, *arguments) if isinstance(actor, Actor) else real(*arguments)

        return either

    time.monotonic_ns = virtual(time.monotonic_ns, lambda actor: actor.world.now_ns)
    time.monotonic = virtual(time.monotonic, lambda actor: actor.world.now_ns / NS_PER_S)
    time.time_ns = virtual(
        time.time_ns, lambda actor: WALL_NS + actor.world.now_ns + actor.process.ahead_ns
    )
    time.time = virtual(time.time, lambda _actor: time.time_ns() / NS_PER_S)
    time.sleep = virtual(
        time.sleep, lambda actor, s: actor.wait(actor.world.now_ns + int(s * NS_PER_S))
    )
    threading.Thread = _SimulatedThread  # type: ignore[misc, assignment]
    threading.Condition = _SimulatedCondition  # type: ignore[misc, assignment]

    import redis.retry
    from redis.connection import Connection

    import lockcore.clock

    # The function must be replaced before a recipe imports it from lockcore.clock.
    lockcore.clock.monotonic_ns = time.monotonic_ns
    redis.retry.sleep = time.sleep  # type: ignore[attr-defined]
    import bench.recipes.plain
    from lockcore.bench import Hello
    from lockcore.bench.sockets import Connected, InstanceTarget

    def shake(target: InstanceTarget) -> Connected:
        index = int(target.address.rpartition(":")[2]) - PORT
        hello = Hello(f"server-{index}", 1_000_000, "simulated", 0)
        return Connected(_QUIET[0].dup(), hello, None)  # type: ignore[arg-type]

    Connection._connect = _connect  # type: ignore[method-assign]
    Connection.can_read = _reading(Connection.can_read)  # type: ignore[method-assign]
    bench.recipes.plain.shake = shake  # type: ignore[attr-defined]
