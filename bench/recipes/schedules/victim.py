"""A client that is a process of its own, to be killed: *an order on stdin → it stands at a pause point until its end*.

Rules: it acquires; where its gate is closed it says `standing` on stdout and waits for its death. It also ends when its
parent closes its stdin, so none outlives a schedule. Source: `Victim`, which starts it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from bench.errors import EnvironmentNotReadyError
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe

ROOT = Path(__file__).parents[3]


class Victim:
    """A running victim, which stands at `point` when the constructor returns. A context manager that kills it.

    Raises EnvironmentNotReadyError when it did not come to that point.
    """

    def __init__(self, recipe: str, urls: Sequence[str], settings: RecipeSettings, ttl_ms: int, point: str) -> None:
        order = {
            "recipe": recipe,
            "urls": list(urls),
            "key_prefix": settings.key_prefix,
            "folder": str(settings.folder) if settings.folder else None,
            "ttl_ms": ttl_ms,
            "point": point,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.recipes.schedules.victim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline().strip()
        if said != "standing":
            self.kill()
            raise EnvironmentNotReadyError(f"a client of {recipe} did not come to {point}: {said or 'it ended'}")

    def kill(self) -> None:
        """SIGKILL: nothing more is sent."""
        self._process.kill()
        self.leave()

    def leave(self) -> None:
        """Close its stdin, as the end of this process would: it ends. Returns when it has."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.kill()


def _stand(order: dict[str, Any]) -> None:
    def gate(reached: str) -> None:
        if reached == order["point"]:
            _say("standing")
            threading.Event().wait()

    folder = Path(order["folder"]) if order["folder"] else None
    told = RecipeSettings(key_prefix=order["key_prefix"], folder=folder, gate=gate)
    result = find_recipe(order["recipe"]).connect(order["urls"], told).acquire("r0", order["ttl_ms"], 0)
    _say(f"it got past: {result!r}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Obey the order on stdin, and end when stdin does."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_stand, args=(order,), daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
