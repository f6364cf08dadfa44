"""Claim: owner tokens are unique: *many processes that make tokens at once → collisions, ns each*.

Rules: every process makes its tokens in a loop as tight as Python's, which no lock does: what does not collide here
does not collide there. `microseconds` (time and client id) is there because it was recommended, and collides.
Source: the Redlock text, "Correct implementation with a single instance"; RFC 9562 for uuid1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.errors import EnvironmentNotReadyError
from bench.experiments.safety_matrix.row import Finding, Ground, find

PROCESSES = 4
QUICK_COUNT, FULL_COUNT = 20_000, 200_000
GUESSABLE = (
    "20 random bytes cannot be guessed; uuid1 tells its clock and its host, time and client id are known to anybody: "
    "harmless among friends, as a token is no password"
)
_ROOT = Path(__file__).parents[3]
_PATIENCE_S = 60.0


def makers(client: int) -> dict[str, Callable[[], bytes]]:
    """How a client makes a token, by name."""
    return {
        "urandom": lambda: os.urandom(20),
        "uuid1": lambda: uuid.uuid1().bytes,
        "microseconds": lambda: b"%d:%d" % (time.time_ns() // 1000, client),
    }


def owner_tokens(ground: Ground) -> Finding:
    """Collisions over all processes: none of random ones, some of those made of a time."""
    notes = _made(ground.scratch, QUICK_COUNT if ground.quick else FULL_COUNT)
    figures: dict[str, float | None] = {}
    for name in makers(0):
        tokens = [token for client in range(PROCESSES) for token in _read(ground.scratch, name, client)]
        figures[f"{name}_collisions"] = len(tokens) - len(set(tokens))
        figures[f"{name}_ns"] = round(sum(note[name] for note in notes) / len(notes))
    shown = bool(figures["microseconds_collisions"])
    return find(
        ("confirmed", "refuted"),
        figures,
        {
            "tokens of time and client id were made within a microsecond": shown
            or (figures["microseconds_ns"] or 0) < 1000
        },
        holds=shown,
        broken=bool(figures["urandom_collisions"] or figures["uuid1_collisions"]),
        reason=GUESSABLE,
    )


def _made(folder: Path, count: int) -> list[dict[str, Any]]:
    """Have all processes make `count` tokens of each kind; what each says of its speed."""
    command = [sys.executable, "-m", __name__, str(folder), str(count)]
    processes = [
        subprocess.Popen([*command, str(client)], cwd=_ROOT, stdout=subprocess.PIPE, text=True)
        for client in range(PROCESSES)
    ]
    try:
        said = [process.communicate(timeout=_PATIENCE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if not all(said):
        raise EnvironmentNotReadyError("a process that makes owner tokens ended early")
    return [json.loads(text) for text in said]


def _read(folder: Path, name: str, client: int) -> list[str]:
    return (folder / f"{name}-{client}.txt").read_text("ascii").split()


def main() -> None:
    """Make tokens as one client and say on stdout how long one took, ns by kind."""
    folder, count, client = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    took_ns = {}
    for name, make in makers(client).items():
        began_ns = time.perf_counter_ns()
        tokens = [make() for _ in range(count)]
        took_ns[name] = (time.perf_counter_ns() - began_ns) / count
        (folder / f"{name}-{client}.txt").write_text("\n".join(token.hex() for token in tokens), "ascii")
    sys.stdout.write(json.dumps(took_ns))


if __name__ == "__main__":
    main()
