"""What an acquire costs, counted: *the two sides of a gate → commands, bytes, round trips and
connections, exactly*.

Rules
- One caller, a free resource, a relay in between that counts; the median of some cycles (round
  trips: the least, as a stall can only add). More fails, without a tolerance.
- Replies are held back until everybody has been silent for `QUIET_S`, then all go at once: what a
  client sends between two such moments is one round trip, however many instances it speaks to,
  whatever the machine's speed.
- INFO and its reply are not counted. A client sends it by the clock (lockcore asks four times a
  second at most whether databases were swapped), so a slow machine would see more of it in a cycle,
  and its length changes from call to call.
- The cycles are taken by a process of the side's own packages, which is this file started by name
  (`serve`). It imports something of them, or the side would be the same code as the other, and
  every gate would pass:

    {"recipe": …, "targets": […], "ttl_ms": …, "folders": […]}    the first line on stdin, answered
                    by `ready`
    cycle           one acquire of a free resource and its release, answered by `done`; `unused`
                    where no folder was
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import hiredis
from hiredis import PushNotification

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.experiments.compare.judge import Costs, judge_exact
from bench.experiments.compare.result import Exact
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe
from bench.topology.child import Child
from bench.topology.fleet import HOST, start_fleet
from bench.topology.server import find_server
from lockcore import Lease

# The process that takes the cycles imports this module, and as little else of the bench as
# possible.
if TYPE_CHECKING:
    from bench.experiments.compare.pairs import CompareOrder, Side

WARM_CYCLES = 2
CYCLES = 7
LEAST_TTL_MS = 10_000
RESOURCE = "cycles"
UNCOUNTED = b"INFO"
# The client waits so long for one instance, as replies are held back while they are counted.
PATIENCE_MS = 2000.0
QUIET_S = 0.015
CHUNK_BYTES = 65_536
COUNTED = ("commands", "bytes_sent", "bytes_received", "connections")


def count_exactly(order: CompareOrder) -> Exact:
    """Return the costs of the first two sides beside each other.

    Raises UsageError as `costs_of`.
    """
    try:
        baseline, candidate = (costs_of(side, order.server) for side in order.plan.sides[:2])
    except EnvironmentNotReadyError as error:
        return Exact(skipped=str(error))
    return judge_exact(baseline, candidate)


def costs_of(side: Side, server: str | None) -> Costs:
    """Return what a cycle costs.

    Raises UsageError where nothing of the side's packages is used, BenchError.
    """
    scenario = side.scenario
    if find_recipe(scenario.recipe).about.replicated:
        raise EnvironmentNotReadyError(
            f"{scenario.recipe} needs a master and replicas: nothing was counted"
        )
    # In the current folder, its files would be imported before the side's own packages.
    folder = Path(os.sep)
    with (
        start_fleet(scenario.instances, "none", server=find_server(server)) as fleet,
        contextlib.closing(CountingRelay([instance.port for instance in fleet.instances])) as relay,
        Child(
            "the process that takes the locks", __name__, environ=side.environ(), folder=folder
        ) as child,
    ):
        order = {
            "recipe": scenario.recipe,
            "targets": [f"redis://{HOST}:{port}" for port in relay.ports],
            "ttl_ms": max(scenario.ttl_ms, LEAST_TTL_MS),
            "folders": side.python_path,
        }
        _asked(child, json.dumps(order), "ready", relay)
        cycles = [_asked(child, "cycle", "done", relay) for _ in range(WARM_CYCLES + CYCLES)][
            WARM_CYCLES:
        ]
    return {
        **{name: median(cycle[name] for cycle in cycles) for name in COUNTED},
        "round_trips": min(cycle["round_trips"] for cycle in cycles),
    }


def _asked(child: Child, line: str, expected: str, relay: CountingRelay) -> Counter[str]:
    """What was exchanged until the answer.

    Plain words, no messages: the process may be that of another revision.
    """
    try:
        child.write(line + "\n")
        answer, counts = relay.until_said(child)
    except EnvironmentNotReadyError as error:
        answer = str(error)
        counts = Counter()
    if answer == "unused":
        raise UsageError(
            "the recipe imports nothing of a revision or library that was named: both "
            "sides would be the same code, "
            "and every gate would pass; name what it locks with, or with --recipe the "
            "lock that is in there"
        )
    if answer != expected:
        raise EnvironmentNotReadyError(
            f"the costs of a cycle could not be counted: {answer.removeprefix('refused ')}"
        )
    return counts


class Exchange:
    """One connection's commands and replies, counted as they come; without INFO, and without its
    reply.

    Replies come in the order of the commands. What a server publishes comes between them and
    belongs to no command.
    """

    def __init__(self, count: Callable[[str, int], None]) -> None:
        self._count = count
        self._commands = hiredis.Reader()
        self._replies = hiredis.Reader()
        # the bytes of the command, and of the reply, that are not whole yet
        self._request_bytes = 0
        self._reply_bytes = 0
        # the names of the commands that have no reply yet
        self._asked: deque[bytes] = deque()

    def ask(self, chunk: bytes) -> None:
        """Count what the client sends."""
        for line in chunk.splitlines(keepends=True):
            self._request_bytes += len(line)
            self._commands.feed(line)
            command = self._commands.gets()
            if command is False:
                continue
            name = bytes(command[0]).upper() if isinstance(command, list) and command else b""
            self._asked.append(name)
            if name != UNCOUNTED:
                self._count("commands", 1)
                self._count("bytes_sent", self._request_bytes)
            self._request_bytes = 0

    def answer(self, chunk: bytes) -> None:
        """Count what the server sends."""
        for line in chunk.splitlines(keepends=True):
            self._reply_bytes += len(line)
            self._replies.feed(line)
            reply = self._replies.gets()
            if reply is False:
                continue
            if self._command_of(reply) != UNCOUNTED:
                self._count("bytes_received", self._reply_bytes)
            self._reply_bytes = 0

    def _command_of(self, reply: object) -> bytes:
        """The name of the command that `reply` answers, empty for what was published."""
        is_published = isinstance(reply, PushNotification) and reply[:1] not in (
            [b"subscribe"],
            [b"unsubscribe"],
        )
        return b"" if is_published or not self._asked else self._asked.popleft()


class CountingRelay:
    """Stands before loopback ports; `ports` are its own, in the same order.

    It relays while `until_said` waits.
    """

    def __init__(self, targets: Sequence[int]) -> None:
        self._counts: Counter[str] = Counter()
        # the waiting replies of each client
        self._held: dict[socket.socket, bytearray] = {}
        self._ready = selectors.DefaultSelector()
        self.ports = []
        for target in targets:
            listener = socket.create_server((HOST, 0))
            self._ready.register(
                listener, selectors.EVENT_READ, partial(self._accept, listener, target)
            )
            self.ports.append(listener.getsockname()[1])

    def until_said(self, child: Child) -> tuple[str, Counter[str]]:
        """The next line of `child`, and what went through until then and until nothing was under
        way any more."""
        self._counts = Counter()
        quiet = 0
        lines = list[str]()
        self._ready.register(
            child.process.stdout,  # type: ignore[arg-type]
            selectors.EVENT_READ,
            lambda: lines.append(child.read_line()),
        )
        try:
            # A round trip is over when nobody has sent for QUIET_S. Then `_let_go` hands over all
            # replies that wait, and the client goes on. The child's line may come while its last
            # command is still under way, and that command belongs to this cycle, too. So the relay
            # stops only after two looks in a row in which nothing came and no reply waited.
            while not lines or quiet < 2:
                ready = self._ready.select(QUIET_S)
                for key, _ in ready:
                    key.data()
                quiet = 0 if ready or self._let_go() else quiet + 1
        finally:
            self._ready.unregister(child.process.stdout)  # type: ignore[arg-type]
        return lines[0], self._counts

    def close(self) -> None:
        """Close every connection."""
        for key in list(self._ready.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._ready.close()

    def _accept(self, listener: socket.socket, target: int) -> None:
        client = listener.accept()[0]
        server = socket.create_connection((HOST, target))
        self._counts["connections"] += 1
        self._held[client] = bytearray()
        exchange = Exchange(self._count)
        # Another protocol is handed on and not counted. A client that has waited in vain for a busy
        # server asks whether that speaks TLS, and a gate ended there with a fault of lockbench.
        foreign = contextlib.suppress(hiredis.ProtocolError)

        def ask(chunk: bytes) -> None:
            with foreign:
                exchange.ask(chunk)
            server.sendall(chunk)

        def hold(chunk: bytes) -> None:
            with foreign:
                exchange.answer(chunk)
            self._held[client] += chunk

        for source, take in ((client, ask), (server, hold)):
            self._ready.register(
                source, selectors.EVENT_READ, partial(self._read, source, (client, server), take)
            )

    def _count(self, name: str, more: int) -> None:
        self._counts[name] += more

    def _read(
        self, source: socket.socket, ends: tuple[socket.socket, ...], take: Callable[[bytes], None]
    ) -> None:
        # Both ends were ready in this look, and the other one has closed the connection.
        if ends[0] not in self._held:
            return
        # A connection that broke counts as one that ended.
        with contextlib.suppress(OSError):
            if chunk := source.recv(CHUNK_BYTES):
                take(chunk)
                return
        for end in ends:
            self._ready.unregister(end)
            end.close()
        del self._held[ends[0]]

    def _let_go(self) -> bool:
        """Hand over all replies that wait: the end of one round trip.

        False when there were none.
        """
        waiting = {client: held for client, held in self._held.items() if held}
        for client, held in waiting.items():
            # A client that has gone gets no reply.
            with contextlib.suppress(OSError):
                client.sendall(held)
            held.clear()
        self._counts["round_trips"] += bool(waiting)
        return bool(waiting)


def serve() -> None:
    """Take cycles as stdin wishes: nobody else wants the resource and nothing is retried, so every
    cycle is alike."""
    order = json.loads(sys.stdin.readline())
    settings = RecipeSettings(
        key_prefix="lockbench:cycles:", max_ttl_ms=order["ttl_ms"], instance_timeout_ms=PATIENCE_MS
    )
    try:
        recipe = find_recipe(order["recipe"]).connect(order["targets"], settings)
    except BenchError as error:
        _say(f"refused {error}")
        return
    try:
        _say("ready")
        for _ in sys.stdin:
            lease = recipe.acquire(RESOURCE, order["ttl_ms"], 0)
            if not isinstance(lease, Lease):
                _say(f"refused the lock was not granted: {lease}")
                return
            recipe.release(lease)
            _say("done" if _is_used(order["folders"]) else "unused")
    finally:
        recipe.close()


def _is_used(folders: Sequence[str]) -> bool:
    """Whether something was imported from these folders, if there are any."""
    places = (getattr(module, "__file__", None) or "" for module in tuple(sys.modules.values()))
    return not folders or any(
        Path(place).is_relative_to(folder) for place in places for folder in folders
    )


def _say(text: str) -> None:
    sys.stdout.write(text.replace("\n", " ") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
