"""Proxies in front of a whole fleet: *ports → ports that can be slow, cut or reset; the owner's end → no proxy*.

Rules: all instances stand behind proxies or none does, so that what is compared is equally far away; a proxy costs
some 50 µs per chunk, and the process is shared, so absolute rates are lower behind it. Nothing is shaped until asked.
Source: bench/topology/proxy_process.py, which holds the protocol's other half.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from bench.topology.child import Answer, Servant

_SCRIPT = Path(__file__).with_name("proxy_process.py")
_GONE = "the proxies are closed, or their process was killed: start the run again"


@dataclass(frozen=True, slots=True)
class Shape:
    """A link as it shall be: chunks of the directions `slow` ("to", "from" the instance) are due after `delay_s` plus
    U(0, `jitter_s`); the directions `held` hand over nothing until healed; `reset`: every connection ends with RST."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    slow: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    reset: bool = False


CLEAR = Shape()


class _Answer(Answer):
    ports: tuple[int, ...] = ()


class Proxies:
    """One proxy per port, in a process of their own. A context manager; safe to use from several threads."""

    def __init__(self, ports: Sequence[int], seed: int = 0) -> None:
        """Stand before these loopback ports. `seed` drives the jitter. Raises EnvironmentNotReadyError."""
        self._servant = Servant(_SCRIPT, [str(seed), *map(str, ports)], _Answer, gone=_GONE)
        self.ports = self._servant.hello.ports

    def shape(self, index: int, shape: Shape) -> None:
        """Have the link to instance `index` be like this from now on; returns when it is."""
        self._servant.ask(index=index, **asdict(shape))

    def close(self) -> None:
        """End the proxies and every connection through them. More than once is fine."""
        self._servant.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()
