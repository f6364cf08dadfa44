"""RESP servers of known capacity: *commands of a lock → one queue, a time of service each → honest
replies*.

A command that came in at t is done at max(t, end of the one before) + its service, whatever the
threads do meanwhile: errors of sleeping do not add up, and what waits on the socket when a reply
leaves came while the server worked, however late a busy machine lets it be read. The handshake is
free. For one connection at a time.

`QueueingInstance`: each command of a lock takes the same time, and what came together is answered
together. So a lease (SET and release) takes 2 · `service_s`, and the capacity is 1 ÷ (2 ·
`service_s`) leases/s. `ServingInstance`: a SET takes what a `Service` says, a release nothing, and
each is answered when it is done. `held_share` plays the same service without sockets: the capacity
is the rate that half of the probes hold.
"""

import random
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.doubles.instance import Instance, Say, _kind_of
from tests.doubles.keyspace import Command

# when a SET comes (s), when the one before was done → how long it takes (s)
Service = Callable[[float, float], float]


class QueueingInstance(Instance):
    """One server with a queue. `service_s`: seconds of work per command."""

    def __init__(self, service_s: float) -> None:
        self._service_s = service_s
        self._came_s = 0.0
        self._free_s = 0.0
        self._has_more = False
        super().__init__("delifeq")

    def _execute(self, number: int, connection: socket.socket, reader: Any) -> bool:
        self._came_s = self._free_s if self._has_more else time.monotonic()
        return super()._execute(number, connection, reader)

    def _answer(self, number: int, command: Command) -> bytes | Say:
        if (kind := _kind_of(command)) != "other":
            self._serve_one(kind)
        return super()._answer(number, command)

    def start(self) -> None:
        """Listen, with a run id that is no number."""
        super().start()
        self.run_id = f"a{self.run_id[1:]}"

    def _info(self, section: str) -> bytes:
        wanted = ("server", "replication", "cluster") if section == "all" else (section,)
        texts = [super(QueueingInstance, self)._info(one).split(b"\r\n", 1)[1] for one in wanted]
        text = b"\r\n".join(texts)
        return b"$%d\r\n%b\r\n" % (len(text), text) if len(wanted) > 1 else super()._info(section)

    def _serve_one(self, _kind: str) -> None:
        self._free_s = max(self._came_s, self._free_s) + self._service_s

    def _send(self, connection: socket.socket, replies: Sequence[bytes]) -> None:
        time.sleep(max(self._free_s - time.monotonic(), 0.0))
        self._has_more = bool(select.select([connection], [], [], 0)[0])
        super()._send(connection, replies)


class ServingInstance(QueueingInstance):
    """One server whose SETs take what `service` says."""

    def __init__(self, service: Service) -> None:
        self._service = service
        # of a connection's thread: when each of the commands in hand is done
        self._mine = threading.local()
        super().__init__(0.0)

    def _execute(self, number: int, connection: socket.socket, reader: Any) -> bool:
        self._mine.done_s = []
        return super()._execute(number, connection, reader)

    def _answer(self, number: int, command: Command) -> bytes | Say:
        answer = super()._answer(number, command)
        self._mine.done_s.append(0.0 if _kind_of(command) == "other" else self._free_s)
        return answer

    def _serve_one(self, kind: str) -> None:
        if kind == "set":
            self._free_s = max(self._came_s, self._free_s) + self._service(
                self._came_s, self._free_s
            )

    def _send(self, connection: socket.socket, replies: Sequence[bytes]) -> None:
        for reply, done_s in zip(replies, self._mine.done_s, strict=True):
            time.sleep(max(done_s - time.monotonic(), 0.0))
            Instance._send(self, connection, [reply])
        self._has_more = bool(select.select([connection], [], [], 0)[0])


def constant(service_s: float) -> Service:
    """Always the same."""
    return lambda _came_s, _free_s: service_s


def stalling(service_s: float, every_s: float, stall_s: float) -> Service:
    """The same, and whoever comes first in each span of `every_s` takes `stall_s` longer."""
    last = [0]

    def service(came_s: float, free_s: float) -> float:
        span = int(max(came_s, free_s) / every_s)
        is_first = span != last[0]
        last[0] = span
        return service_s + (stall_s if is_first else 0.0)

    return service


def idling(service_s: float, after_s: float, slow_s: float) -> Service:
    """The same, but `slow_s` after so long without a SET: low rates are slow, and higher ones are
    not."""
    return lambda came_s, free_s: slow_s if came_s - free_s > after_s else service_s


def delaying(delay_s: float) -> Service:
    """So much later, however many come: each is served by itself."""
    return lambda came_s, free_s: max(came_s + delay_s - max(came_s, free_s), 0.0)


def held_share(
    service: Service,
    rate: float,
    *,
    limit_s: float,
    share: float,
    is_poisson: bool,
    probes: int = 60,
) -> float:
    """The share of probes of which at most `share` of the SETs take longer than `limit_s`. A probe
    lasts as long as one of `capacity --quick` does: 0.5 s of warm-up, then 2 s, or up to 6 s where
    its percentile needs as many SETs."""
    chance = random.Random(1)
    held = 0
    now_s = 1.0
    free_s = 0.0
    lasts_s = min(max(12 / share / rate, 2.0), 6.0)
    for _ in range(probes):
        begun_s = now_s
        late = 0
        all_of_them = 0
        while now_s < begun_s + 0.5 + lasts_s:
            now_s += chance.expovariate(rate) if is_poisson else 1 / rate
            free_s = max(now_s, free_s) + service(now_s, free_s)
            if now_s >= begun_s + 0.5:
                all_of_them += 1
                late += free_s - now_s > limit_s
        held += late <= share * all_of_them
        now_s = max(now_s, free_s) + 1.0  # drained
    return held / probes


def capacity_of(service: Service, most: float, **slo: Any) -> float:
    """The highest rate below `most` that half of the probes hold; lower ones may not (`idling`)."""
    rate = most
    while held_share(service, rate, **slo) < 0.5:
        rate /= 1.02
    return rate
