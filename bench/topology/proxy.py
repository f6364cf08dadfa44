"""Proxies in front of a whole fleet: *ports → ports that can be slow, cut or reset; the owner's end → no proxy*.

Rules: all instances stand behind proxies or none does, so that what is compared is equally far away; a proxy costs
some 50 µs per chunk, and the process is shared, so absolute rates are lower behind it. Nothing is shaped until asked.
Source: bench/topology/proxy_process.py, which holds the protocol's other half.
"""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bench.errors import EnvironmentNotReadyError
from bench.topology.proxy_process import MESSAGE_BYTES

_SCRIPT = Path(__file__).with_name("proxy_process.py")
_ANSWER_S = 10.0
_END_S = 2.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A link as it shall be: chunks of the directions `slow` ("to", "from" the instance) are due after `delay_ns` plus
    U(0, `jitter_ns`); the directions `held` hand over nothing until healed; `reset`: every connection ends with RST."""

    delay_ns: int = 0
    jitter_ns: int = 0
    slow: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    reset: bool = False


CLEAR = Shape()


class Proxies:
    """One proxy per port, in a process of their own. A context manager; safe to use from several threads."""

    def __init__(self, ports: Sequence[int], seed: int = 0) -> None:
        """Stand before these loopback ports. `seed` drives the jitter. Raises EnvironmentNotReadyError."""
        self._lock = threading.Lock()
        self._asked = 0
        self._owner, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._owner.settimeout(_ANSWER_S)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_SCRIPT), str(seed), *map(str, ports)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self.ports: tuple[int, ...] = tuple(self._receive(0)["ports"])
        except OSError as error:
            self.close()
            raise EnvironmentNotReadyError(f"the proxies cannot be started: {error}") from error
        except BaseException:
            self.close()
            raise

    def shape(self, index: int, shape: Shape) -> None:
        """Have the link to instance `index` be like this from now on; returns when it is."""
        wish = {
            "index": index,
            "delay_ns": shape.delay_ns,
            "jitter_ns": shape.jitter_ns,
            "slow": shape.slow,
            "held": shape.held,
            "reset": shape.reset,
        }
        with self._lock:
            self._asked += 1
            try:
                self._owner.send(json.dumps({"id": self._asked, **wish}).encode())
                self._receive(self._asked)
            except OSError as error:
                raise self._gone() from error

    def close(self) -> None:
        """End the proxies and every connection through them. More than once is fine."""
        self._owner.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _receive(self, number: int) -> dict[str, Any]:
        while True:
            message = self._owner.recv(MESSAGE_BYTES)
            if not message:
                raise self._gone()
            answer: dict[str, Any] = json.loads(message)
            if answer["id"] == number:
                return answer

    @staticmethod
    def _gone() -> EnvironmentNotReadyError:
        return EnvironmentNotReadyError("the proxies are closed, or their process was killed: start the run again")
