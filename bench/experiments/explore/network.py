"""Simulates servers and connections. A server executes commands in the sequence in which they
arrive, and a connection returns the bytes of the replies.

A connection keeps the order of bytes in each direction. A broken connection may still deliver bytes
that were on the way to the server. The client's next connection may send CLIENT KILL to end the
broken connection. After this command, the broken connection delivers nothing more. A real kernel
may also drop the bytes of a connection after a reset.
"""

from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from operator import attrgetter

from hiredis import Reader

from bench.experiments.explore.keyspace import Command, Keyspace
from bench.experiments.explore.schedule import LATENCY_NS, Change
from bench.experiments.explore.world import Process, World, nothing, places

# An old server, which only has scripts, lacks these commands and options.
OLD = frozenset({b"DELIFEQ", b"DELEX", b"IFEQ"})


# A client sends the same bytes to all instances. Without the cache, each instance would parse the
# bytes again. All instances share the result and may not change it, so it is a tuple. The commands
# in the tuple must not be changed either.
@lru_cache(64)
def commands_of(data: bytes) -> tuple[Command, ...]:
    """Return the commands in `data`. If the last command is incomplete, return no commands at
    all."""
    reader = Reader()
    reader.feed(data)
    commands = tuple(iter(reader.gets, False))
    return () if reader.has_data() else commands


class SimulatedServer:
    """One simulated instance.

    `down` is true while the server is dead. `stopped` is true while the server is frozen. The
    server calls the function `when_dead` when it dies.
    """

    def __init__(self, world: World, index: int, rate: float, *, is_old: bool = False) -> None:
        self.world = world
        self.index = index
        self.is_old = is_old
        self.data = Keyspace(
            partial(attrgetter("now_ns"), world), rate, OLD if is_old else frozenset()
        )
        self.visits = places("serve", index)
        self.runs = 0
        self.links: dict[int, SimulatedLink] = {}
        self.connected = 0
        self.down = self.stopped = False
        self.when_dead: Callable[[], object] = nothing

    def follow(self, master: "SimulatedServer") -> None:
        """Become a replica of `master`.

        Each write of the master is copied after LATENCY_NS, if the master is still alive then.
        """
        self.data.role = "slave"

        def copy(key: bytes) -> None:
            if not master.down:
                entry = master.data.entry(key)
                if entry:
                    self.data.put(key, *entry)
                else:
                    self.data.drop(key)

        master.data.changed = lambda key: self.world.later(LATENCY_NS, partial(copy, key))

    def execute(self, command: Command) -> bytes:
        """Execute one command, and return its reply as bytes."""
        if command[0] == b"CLIENT" and command[1] == b"KILL":
            killed = self.links.pop(int(command[3]), None)
            if killed is not None:
                killed.to_server.clear()
            return b"+OK\r\n" if killed else b"-ERR No such client\r\n"
        return self.data.run(command)

    def survives(self, change: Change) -> bool:
        """Apply a fault immediately before the server executes a command.

        Return whether the server still executes the command.
        """
        self.world.note(change.what, self.index, change.for_ns)
        if change.what == "flush":
            self.data.scripts.clear()
            return True
        if change.what == "forget":
            self.data.clear()
            return True
        if change.what == "full":
            self.data.is_full = True
            self.world.later(change.for_ns, partial(setattr, self.data, "is_full", False))
            return True
        if change.what == "stop":
            self.stopped = True
            self.world.later(change.for_ns, self._continue)
            return False
        self.down = True
        for link in list(self.links.values()):
            link.end()
        self.links.clear()
        self.data.clear()
        if change.what == "restart":
            self.world.later(min(change.for_ns, 20 * LATENCY_NS), self._return)
        else:
            self.when_dead()
        return False

    def _return(self) -> None:
        self.down = False
        self.runs = self.runs + 1

    def _continue(self) -> None:
        self.stopped = False
        for link in list(self.links.values()):
            link.serve()


class SimulatedLink:
    """One connection of a simulated process. The connection calls three functions of the client.

    The connection calls `heard(link, data)` when bytes have arrived. The connection calls
    `ended(link)` when the client notices that the connection is broken. The connection calls
    `lost(link)` if it breaks while the client sends. After the client has closed the connection,
    `heard` and `ended` are not called. `is_cut` is true if the server has ended the connection.
    """

    def __init__(
        self,
        process: Process,
        server: SimulatedServer,
        heard: Callable[["SimulatedLink", bytes], object],
        ended: Callable[["SimulatedLink"], object],
        lost: Callable[["SimulatedLink"], object],
    ) -> None:
        self.process = process
        self.server = server
        self.world = process.world
        self.heard = heard
        self.ended = ended
        self.lost = lost
        server.connected += 1
        self.id = server.connected
        self.to_server: deque[tuple[int, int, bytes]] = deque()
        # The first bytes of a command that is still incomplete.
        self._begun = b""
        self.is_open = True
        self.is_cut = False
        self._arrives_ns = self._returns_ns = 0
        server.links[self.id] = self

    def send(self, data: bytes) -> int:
        """Send bytes to the server. At each call, a schedule may make a change. The place of this
        change has the kind `send`.

        The function always returns 0, because no bytes are left to send.
        """
        if not self.is_open:
            self.lost(self)
            return 0
        world = self.world
        change = world.change(self.process.sends)
        due_ns = world.now_ns + LATENCY_NS
        if change is not None:
            world.note(change.what, self.process.number, change.for_ns, self.server.index)
            if change.what == "lose":
                self.close()
                self.lost(self)
                return 0
            if change.what == "late":
                due_ns += change.for_ns
        # The server is gone. The client notices a little later that the connection has ended.
        if self.is_cut:
            return 0
        self._arrives_ns = due_ns = max(self._arrives_ns, due_ns)
        self.to_server.append((due_ns, world.now_ns, data))
        world.at(due_ns, self.serve)
        if change is not None and change.what == "cut":
            self.is_open = False
            world.at(due_ns, partial(self.process.run, partial(self.ended, self)))
        return 0

    def serve(self) -> None:
        """Make the server execute the commands that have arrived. A schedule may make a change
        before the commands are executed, and before the reply leaves. These places have the kinds
        `serve` and `reply`.
        """
        server = self.server
        world = self.world
        arrived = self.to_server
        replies = []
        now_ns = world.now_ns
        while arrived and arrived[0][0] <= now_ns and not server.stopped:
            change = world.change(server.visits)
            if change is not None and not (server.survives(change) and arrived):
                break
            _, sent_ns, data = arrived.popleft()
            data = self._begun + data
            commands = commands_of(data)
            self._begun = b"" if commands else data
            for command in commands:
                reply = server.execute(command)
                replies.append(reply)
                world.seen.append(
                    (now_ns, "call", self.process.number, server.index, sent_ns, command, reply)
                )
        if replies and self.is_open:
            change = world.change(self.process.replies)
            due_ns = world.now_ns + LATENCY_NS
            if change is not None:
                world.note("late reply", self.process.number, change.for_ns, server.index)
                due_ns += change.for_ns
            self._returns_ns = due_ns = max(self._returns_ns, due_ns)
            world.at(due_ns, partial(self._tell, self.heard, b"".join(replies)))

    def _tell(self, listener: Callable[..., object], *more: bytes) -> None:
        """Call `listener` in the client, unless the client has closed the connection."""
        if self.is_open:
            self.process.run(partial(listener, self, *more))

    def close(self) -> None:
        """Close the connection on the client's side. Bytes that are already on the way to the
        server may still arrive.
        """
        self.is_open = False

    def end(self) -> None:
        """End the connection on the server's side.

        Bytes on the way to the server are lost. The client notices a little later that the
        connection has ended.
        """
        self.is_cut = True
        self.to_server.clear()
        self.world.later(LATENCY_NS, partial(self._tell, self.ended))
