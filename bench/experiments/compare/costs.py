"""Counts the exact cost of an acquire and its release: *the two sides of a gate → commands, bytes,
round trips and connections of each side*.

Rules
- One caller acquires a free resource through a relay that counts the traffic. The caller makes a
  few cycles, and each cost is the median over these cycles. For round trips the result is the
  minimum instead of the median, because a stall can only add round trips. If any cost of the
  candidate is higher, the gate fails. There is no tolerance.
- The relay keeps the replies of the servers until the client and all servers have been silent for
  `QUIET_S`. The relay then sends all waiting replies to the client at once. Each time the relay
  sends the waiting replies, one round trip ends and the next round trip begins. It does not matter
  how many commands the client sends during a round trip. So the number of round trips depends
  neither on the number of instances nor on the speed of the machine.
- The relay does not count the command INFO and the reply to INFO. lockcore sends INFO up to four
  times a second, because lockcore must notice when databases are swapped. On a slow machine a cycle
  takes longer, so lockcore would send more INFO commands in a cycle. The reply to INFO also has a
  different length each time.
- A child process makes the cycles. When it imports a module, it searches the side's own packages
  first. The child process runs the function `serve` of this file. The child process must import at
  least one module from the side's packages. Without this check, both sides could run the same code,
  and every gate would pass. The child process uses this protocol:

    {"recipe": …, "targets": […], "ttl_ms": …, "folders": […]}    is the first line on stdin. The
                    child process answers `ready`.
    cycle           is every other line. The child process acquires a free resource and releases it.
                    It answers `done`, or `unused` if it imported nothing from the folders.
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

# The child process imports this module. It imports as little else of the bench as possible.
if TYPE_CHECKING:
    from bench.experiments.compare.pairs import CompareOrder, Side

WARM_CYCLES = 2
CYCLES = 7
LEAST_TTL_MS = 10_000
RESOURCE = "cycles"
UNCOUNTED = b"INFO"
# The client waits this long for one instance, because the relay holds replies back.
PATIENCE_MS = 2000.0
QUIET_S = 0.015
CHUNK_BYTES = 65_536
COUNTED = ("commands", "bytes_sent", "bytes_received", "connections")


def count_exactly(order: CompareOrder) -> Exact:
    """Count the costs of the first two sides, and compare them.

    Raises UsageError like `costs_of`.
    """
    try:
        baseline, candidate = (costs_of(side, order.server) for side in order.plan.sides[:2])
    except EnvironmentNotReadyError as error:
        return Exact(skipped=str(error))
    return judge_exact(baseline, candidate)


def costs_of(side: Side, server: str | None) -> Costs:
    """Count the costs of one cycle of a side.

    Raises UsageError if the recipe imports nothing from the side's packages. Raises BenchError if
    the costs cannot be counted.
    """
    scenario = side.scenario
    if find_recipe(scenario.recipe).about.replicated:
        raise EnvironmentNotReadyError(
            f"lockbench cannot count the costs of {scenario.recipe}, because this recipe "
            "needs a master and replicas"
        )
    # The child starts in the root folder. Otherwise Python would import files of the current folder
    # before the side's own packages.
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
    """Send a line to the child and wait for its answer. Return the traffic that the relay counted
    until the answer.

    The two processes exchange lines of plain text, because the child may run another revision of
    the code.
    """
    try:
        child.write(line + "\n")
        answer, counts = relay.until_said(child)
    except EnvironmentNotReadyError as error:
        answer = str(error)
        counts = Counter()
    if answer == "unused":
        raise UsageError(
            "the recipe imports nothing from the named revision or library, so both sides would "
            "run the same code; name a revision or library that the recipe uses, or name "
            "another recipe with --recipe"
        )
    if answer != expected:
        raise EnvironmentNotReadyError(
            "lockbench could not count the costs of one acquire and its release: "
            f"{answer.removeprefix('refused ')}"
        )
    return counts


class Exchange:
    """A counter of the commands and replies that pass through one connection. INFO and the reply to
    INFO do not count.

    A server sends its replies in the order of the commands. A server may also send published
    messages between two replies. Such a message answers no command.
    """

    def __init__(self, count: Callable[[str, int], None]) -> None:
        self._count = count
        self._commands = hiredis.Reader()
        self._replies = hiredis.Reader()
        # The bytes of the incomplete command and of the incomplete reply.
        self._request_bytes = 0
        self._reply_bytes = 0
        # The names of the commands that still wait for a reply.
        self._asked: deque[bytes] = deque()

    def ask(self, chunk: bytes) -> None:
        """Count the commands and bytes in a chunk of data from the client."""
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
        """Count the bytes in a chunk of data from the server."""
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
        """Return the name of the command that `reply` answers, or "" for a published message."""
        is_published = isinstance(reply, PushNotification) and reply[:1] not in (
            [b"subscribe"],
            [b"unsubscribe"],
        )
        return b"" if is_published or not self._asked else self._asked.popleft()


class CountingRelay:
    """A relay between a client and the servers on loopback. The relay listens on `ports`, with one
    port per server in the order of the servers.

    The relay forwards data only while `until_said` is running.
    """

    def __init__(self, targets: Sequence[int]) -> None:
        self._counts: Counter[str] = Counter()
        # The replies held back for each client.
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
        """Wait for the next line from `child`. Then wait until no more data arrives. Return the
        line, and the counts of all traffic during this time."""
        self._counts = Counter()
        quiet = 0
        lines = list[str]()
        self._ready.register(
            child.process.stdout,  # type: ignore[arg-type]
            selectors.EVENT_READ,
            lambda: lines.append(child.read_line()),
        )
        try:
            # A round trip is over when all sides have been silent for QUIET_S. Then `_let_go` hands
            # over the waiting replies, and the client continues. The child's line may come while
            # the child's last command is still under way. The last command belongs to this cycle,
            # too. So the relay stops only after two consecutive looks without data and without a
            # waiting reply.
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
        # The relay passes on data of another protocol and does not count the data. For example, a
        # client that timed out on a busy server may ask whether the server speaks TLS. Without this
        # line, such a request ended the gate with a ProtocolError.
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
        # If both ends were ready in the same look, the work on the first end may already have
        # closed the connection.
        if ends[0] not in self._held:
            return
        # A broken connection counts as a closed connection.
        with contextlib.suppress(OSError):
            if chunk := source.recv(CHUNK_BYTES):
                take(chunk)
                return
        for end in ends:
            self._ready.unregister(end)
            end.close()
        del self._held[ends[0]]

    def _let_go(self) -> bool:
        """Send each client the replies that the relay has kept for this client. If there was at
        least one such reply, count one round trip.

        Returns False if the relay had kept no reply.
        """
        waiting = {client: held for client, held in self._held.items() if held}
        for client, held in waiting.items():
            # A client that has disconnected gets no reply.
            with contextlib.suppress(OSError):
                client.sendall(held)
            held.clear()
        self._counts["round_trips"] += bool(waiting)
        return bool(waiting)


def serve() -> None:
    """Run one cycle for each line on stdin. All cycles are the same, because the resource is always
    free and the caller never retries."""
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
                _say(f"refused the acquire returned {lease} instead of a lease")
                return
            recipe.release(lease)
            _say("done" if _is_used(order["folders"]) else "unused")
    finally:
        recipe.close()


def _is_used(folders: Sequence[str]) -> bool:
    """Return whether this process has imported a module from one of `folders`. Return True if
    `folders` is empty."""
    places = (getattr(module, "__file__", None) or "" for module in tuple(sys.modules.values()))
    return not folders or any(
        Path(place).is_relative_to(folder) for place in places for folder in folders
    )


def _say(text: str) -> None:
    sys.stdout.write(text.replace("\n", " ") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
