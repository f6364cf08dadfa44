"""A setting of somebody else's servers, borrowed: *servers, a name → the change; later everything as it was*.

Rules
- The value each server had is read first, and handed to a process of its own that puts it back when its standard input
  ends: by our leaving, by Ctrl-C, by any death of ours.
- What was put back is looked at; a server that could not be asked is named, with the value to set by hand.
- Nothing is written to a configuration file (no CONFIG REWRITE). URLs travel through a pipe, never on a command line.

Source: CONFIG GET and CONFIG SET; pipe(7).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import redis

from bench.errors import EnvironmentNotReadyError
from bench.topology.child import Leash
from bench.topology.target import Target, parse_targets

TIMEOUT_S = 2.0
_TRIES, _REST_S = 3, 0.2
_READY = "holding"
Said = TypeVar("Said")


class BorrowedSetting:
    """The setting `name` on all `urls`, ours until `give_back`. `before`: what each had, by address."""

    def __init__(self, urls: Sequence[str], name: str) -> None:
        """Read it everywhere and make sure that it will be put back. Raises EnvironmentNotReadyError."""
        self._targets, self._name = parse_targets(urls), name
        self.before = {target.address: _get(target, name) for target in self._targets}
        order = json.dumps({"urls": list(urls), "name": name, "values": list(self.before.values())})
        self._leash = Leash("bench.topology.borrowed_setting", ready=_READY, say=order + "\n")

    def set(self, value: str) -> None:
        """Set it on all servers. Raises EnvironmentNotReadyError naming the one that refuses."""
        for target in self._targets:
            _set(target, self._name, value)

    def give_back(self) -> None:
        """Put it back everywhere. Raises EnvironmentNotReadyError naming servers that are not as they were."""
        self._leash.release()
        wrong = []
        for target in self._targets:
            value = self.before[target.address]
            try:
                restored = _get(target, self._name) == value
            except EnvironmentNotReadyError:
                restored = False
            if not restored:
                wrong.append(f"{target.address} (CONFIG SET {self._name} {value})")
        if wrong:
            raise EnvironmentNotReadyError(f"{self._name} could not be put back; set it by hand on {', '.join(wrong)}")


def _get(target: Target, name: str) -> str:
    values = _asked(target, f"CONFIG GET {name}", lambda client: client.config_get(name))
    if name not in values:
        raise EnvironmentNotReadyError(f"{target.address} has no setting {name}")
    return str(values[name])


def _set(target: Target, name: str, value: str) -> None:
    _asked(target, f"CONFIG SET {name}", lambda client: client.config_set(name, value))


def _asked(target: Target, command: str, ask: Callable[[redis.Redis], Said]) -> Said:
    try:
        with target.client(TIMEOUT_S) as client:
            return ask(client)
    except (redis.RedisError, OSError) as error:
        raise EnvironmentNotReadyError(
            f"{target.address} does not take {command}: {error}; let this user run CONFIG, or measure "
            "the policy it has with lockbench run"
        ) from None


def main() -> None:
    """Read the order, say so, wait for the end of standard input, put everything back."""
    order = json.loads(sys.stdin.readline())
    targets = parse_targets(order["urls"])
    print(_READY, flush=True)  # noqa: T201 - the leash reads it
    while sys.stdin.read(4096):
        pass
    for target, value in zip(targets, order["values"], strict=True):
        for _ in range(_TRIES):
            with suppress(EnvironmentNotReadyError):
                _set(target, order["name"], value)
                break
            time.sleep(_REST_S)


if __name__ == "__main__":
    main()
