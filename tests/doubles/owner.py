"""A process that owns others, to be ended in every way: *code → the process, the first line it said*."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DEADLINE_S = 30.0


@contextmanager
def owner(code: str, *words: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `code` in a session of its own; killed at the end."""
    command, pipe = [sys.executable, "-c", code, *words], subprocess.PIPE
    settings = {"stdin": pipe, "stdout": pipe, "stderr": subprocess.DEVNULL, "env": {**os.environ, **environ}}
    with subprocess.Popen(command, text=True, start_new_session=True, **settings) as process:  # type: ignore[call-overload]
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def ended(pidfd: int) -> bool:
    """Whether the process ends within the deadline."""
    return bool(select.select([pidfd], [], [], DEADLINE_S)[0])
