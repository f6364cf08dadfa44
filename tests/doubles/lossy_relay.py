"""Relays before servers that lose words: *ports, a share → ports of its own, behind which pushed
messages get lost*.

Replies pass as they are; of the messages a server pushes to subscribers the given share is cut out,
drawn from a seed.
"""

import asyncio
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Self

from bench.topology.fleet import HOST

MESSAGE = re.compile(rb">3\r\n\$7\r\nmessage\r\n\$(\d+)\r\n[^\r]*\r\n\$(\d+)\r\n")
START = b">3\r\n$7\r\nmessage\r\n"
CRLF = 2


class LossyRelay:
    """Listening while entered; `ports` stand for `targets`, in their order.

    `lost`, `passed`: messages so far.
    """

    def __init__(self, targets: Sequence[int], share: float) -> None:
        self.targets = targets
        self.share = share
        self.ports = list[int]()
        self.lost = 0
        self.passed = 0
        self._rng = Random(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="lossy-relay", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        for target in self.targets:
            server = asyncio.run_coroutine_threadsafe(self._listen(target), self._loop).result(10.0)
            self.ports.append(server.sockets[0].getsockname()[1])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    async def _listen(self, target: int) -> asyncio.Server:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            from_server, to_server = await asyncio.open_connection(HOST, target)
            ways = (self._pass(reader, to_server), self._lose(from_server, writer))
            await asyncio.gather(*ways, return_exceptions=True)

        return await asyncio.start_server(relay, HOST, 0)

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(1 << 16):
                writer.write(chunk)
        writer.close()

    async def _lose(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = b""
        with suppress(OSError):
            while chunk := await reader.read(1 << 16):
                sent, kept = self._cut(kept + chunk)
                writer.write(sent)
        writer.close()

    def _cut(self, data: bytes) -> tuple[bytes, bytes]:
        """What goes on, and what waits for the rest of its message."""
        sent = b""
        while (at := data.find(b">3\r\n")) >= 0:
            sent = sent + data[:at]
            data = data[at:]
            head = MESSAGE.match(data)
            end = head.end() + int(head[2]) + CRLF if head else 0
            if (head is None and len(data) < 1 << 12 and not _is_another(data)) or (
                head and len(data) < end
            ):
                return sent, data
            end = end or 1
            is_lost = head is not None and self._rng.random() < self.share
            self.lost = self.lost + is_lost
            self.passed = self.passed + (head is not None and not is_lost)
            sent = sent if is_lost else sent + data[:end]
            data = data[end:]
        beginnings = (b">3\r", b">3", b">")
        tail = next((len(start) for start in beginnings if data.endswith(start)), 0)
        return sent + data[: len(data) - tail], data[len(data) - tail :]


def _is_another(data: bytes) -> bool:
    """A push of another kind."""
    return not START.startswith(data[: len(START)]) and not data.startswith(START)
