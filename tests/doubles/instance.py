"""A RESP server that does what the test says: *a script of answers → a real loopback socket that
gives them*.

By default it is honest (keyspace.py). `says["set"]`, `says["release"]`, `says["extend"]`,
`says["other"]` replace the answer to one kind of command: `REFUSE`, `LOSE`, `CLOSE`, `CLOSE_AFTER`,
any bytes (such as `error("OOM …")`), or None for honest again. `pause` makes it stand still like a
stopped process, `resume` lets it go on with what has come in. `one_byte_at_a_time` is what it says.
Nothing here sleeps: the test decides when something happens.
"""

import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from itertools import count
from typing import Any, Self

from hiredis import ProtocolError, Reader

from bench.topology.fleet import HOST, KeptPort
from tests.doubles.keyspace import NIL, OK, Command, Keyspace, error
from tests.lockcore.scripted import kind_of

ANSWER_S = 10.0


class Say(Enum):
    """What an instance does instead of answering."""

    LOSE = "execute, but this reply and all later ones of the connection are lost"
    CLOSE = "close the connection instead of executing"
    CLOSE_AFTER = "execute, then close the connection instead of replying"


LOSE = Say.LOSE
CLOSE = Say.CLOSE
CLOSE_AFTER = Say.CLOSE_AFTER
REFUSE = NIL
Answer = Say | bytes | None


class Instance:
    """One scripted server, listening. `log`: the commands it was told to execute, in order;
    `replied`: replies sent; `connections`: how many it has accepted."""

    _run_ids = count(1)

    def __init__(
        self, dialect: str = "evalsha", *, uptime_s: int = 1_000_000, info: str = ""
    ) -> None:
        self.port = KeptPort()
        self.keyspace = Keyspace(dialect)
        self.uptime_s = uptime_s
        self.info = info
        self.run_id = ""
        self.says: dict[str, Answer] = {}
        self.log: list[Command] = []
        self.connections = 0
        self.replied = 0
        self.one_byte_at_a_time = False
        self._open: dict[int, socket.socket] = {}
        self._muted: set[int] = set()
        self._going = threading.Event()
        self._lock = threading.Lock()
        self._going.set()
        self.start()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://{HOST}:{self.port.number}"

    @property
    def is_connected(self) -> bool:
        """Whether anybody is."""
        return bool(self._open)

    @property
    def keys(self) -> dict[bytes, bytes]:
        """What is held now."""
        return self.keyspace.keys

    def kinds(self) -> list[str]:
        """The kinds of the commands executed, in order, without the handshake's."""
        return [kind for command in list(self.log) if (kind := _kind_of(command)) != "other"]

    def pause(self) -> None:
        """Stand still: what comes in waits, connections stay open."""
        self._going.clear()

    def resume(self) -> None:
        """Go on with what has come in."""
        self._going.set()

    def start(self) -> None:
        """Listen, as a process that has just been started: with a new run id, and nothing forgotten
        but by `kill`."""
        self.run_id = f"{next(self._run_ids):040x}"
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((HOST, self.port.number))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def drop_connections(self) -> None:
        """Reset every connection, as a network does; what was not read by then is lost."""
        for number in list(self._open):
            self._reset(number)

    def kill(self, *, forget: bool = True) -> None:
        """End like kill −9: nothing listens, connections are reset; memory is gone unless a file
        keeps it."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        if forget:
            self.keyspace.clear()

    def close(self) -> None:
        """No more of it."""
        self.resume()
        self.kill()
        self.port.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    # -- its threads -------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self.connections += 1
                    number = self.connections
                    self._open[number] = connection
                threading.Thread(target=self._serve, args=(number, connection), daemon=True).start()

    def _reset(self, number: int) -> None:
        _reset(self._forget(number))

    def _forget(self, number: int) -> socket.socket | None:
        with self._lock:
            return self._open.pop(number, None)

    def _serve(self, number: int, connection: socket.socket) -> None:
        reader: Any = Reader()
        going_on = True
        # a closer look at the port may begin TLS
        with suppress(OSError, ProtocolError):
            while going_on and (data := connection.recv(65536)):
                reader.feed(data)
                going_on = self._execute(number, connection, reader)
        self._forget(number)
        _close(connection)

    def _execute(self, number: int, connection: socket.socket, reader: Any) -> bool:
        """All commands that have come in; False when the connection ends with them."""
        replies = []
        while (command := reader.gets()) is not False:
            if not self._going.wait(ANSWER_S):
                return False
            reply = self._answer(number, command)
            if reply is LOSE:
                self._muted.add(number)
            if not isinstance(reply, bytes) and reply is not LOSE:
                self._send(connection, replies)
                return False
            if isinstance(reply, bytes) and number not in self._muted:
                replies.append(reply)
        self._send(connection, replies)
        return True

    def _send(self, connection: socket.socket, replies: Sequence[bytes]) -> None:
        data = b"".join(replies)
        for piece in (
            [data[i : i + 1] for i in range(len(data))] if self.one_byte_at_a_time else [data]
        ):
            connection.sendall(piece)
        self.replied += len(replies)

    def _answer(self, number: int, command: Command) -> bytes | Say:
        kind = _kind_of(command)
        answer = self.says.get(kind)
        with self._lock:
            if number not in self._open:
                # As in Redis, a client that was killed executes nothing that it has still to read.
                return CLOSE
            if isinstance(answer, bytes) or answer is CLOSE:
                self.log.append(command)
                return answer
            reply = self._reply(number, command)
            self.log.append(command)
        return answer or reply

    def _reply(self, number: int, command: Command) -> bytes:
        name = command[0].upper()
        if name == b"INFO":
            return self._info(command[1].decode())
        if name == b"CLIENT" and command[1] == b"ID":
            return b":%d\r\n" % number
        if name == b"CLIENT" and command[1] == b"KILL":
            # The reply says that it is done: the caller holds the lock.
            _reset(self._open.pop(int(command[3]), None))
            return b":1\r\n"
        if name in (b"AUTH", b"SELECT", b"CLIENT", b"PING"):
            return OK
        return self.keyspace.run(command)

    def _info(self, section: str) -> bytes:
        sections = {
            "server": f"redis_version:0.0.1\r\nredis_mode:standalone\r\nrun_id:{self.run_id}\r\n"
            f"uptime_in_seconds:{self.uptime_s}\r\n{self.info}",
            "replication": "role:master\r\n",
            "cluster": "cluster_enabled:0\r\n",
        }
        text = sections.get(section)
        return (
            error("ERR no such section")
            if text is None
            else b"$%d\r\n%b\r\n" % (len(text), text.encode())
        )


def _reset(connection: socket.socket | None) -> None:
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        _close(connection)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        # wakes its thread
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _kind_of(command: Command) -> str:
    """set, release, extend or other; the probes of a handshake are other."""
    is_probe = len(command) < 2 or any(b"probe-" in part for part in command[1:5])
    return "other" if is_probe else kind_of(command)


class Instances(Sequence[Instance]):
    """N scripted servers, closed together."""

    def __init__(self, *instances: Instance) -> None:
        self._instances = instances

    @classmethod
    def of(cls, number: int, dialect: str = "evalsha", **options: Any) -> Self:
        """`number` alike."""
        return cls(*[Instance(dialect, **options) for _ in range(number)])

    @property
    def urls(self) -> list[str]:
        """One URL per instance, in order."""
        return [instance.url for instance in self._instances]

    @property
    def keys(self) -> list[bytes]:
        """Every key held on any of them."""
        return [key for instance in self._instances for key in instance.keys]

    def pause(self) -> None:
        """All stand still."""
        for instance in self:
            instance.pause()

    def resume(self) -> None:
        """All go on."""
        for instance in self:
            instance.resume()

    def say(self, kind: str, answer: Answer) -> None:
        """All answer that to this kind of command."""
        for instance in self:
            instance.says[kind] = answer

    def be_honest(self) -> None:
        """All answer as it is."""
        for instance in self:
            instance.says.clear()

    def put(self, key: bytes, value: bytes) -> None:
        """Somebody else takes `key` on all of them."""
        for instance in self:
            instance.keyspace.put(key, value)

    def drop(self, key: bytes) -> None:
        """Somebody else removes `key` from all of them."""
        for instance in self:
            instance.keyspace.drop(key)

    def were_told(self, kinds: Sequence[str]) -> bool:
        """Whether each executed commands of just these kinds, in this order."""
        return all(instance.kinds() == kinds for instance in self)

    def __getitem__(self, index: Any) -> Any:
        found = self._instances[index]
        return Instances(*found) if isinstance(index, slice) else found

    def __len__(self) -> int:
        return len(self._instances)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        for instance in self._instances:
            instance.close()
