"""Commands in processes of their own, and what tests ask of them: of servers, processes, ports,
Locust's own table."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jsonschema
import psutil
from redis import Redis

from bench.measure.section import schema_of
from bench.topology.child import is_alive
from bench.topology.fleet import Fleet

ROOT = Path(__file__).parents[2]
CALM = ("--instance-timeout", "2500ms", "--think", "fixed:10ms")
"""For a load that is neither about time-outs nor about speed: nothing times out by itself on a busy
machine, and two cores are not filled. A fixture of its own would hide it: it stands where the load
is described."""


def started(folder: Path, *words: object, **environ: str) -> subprocess.Popen[str]:
    """`lockbench …` in `folder`, where it puts its private folders, too."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench", *map(str, words)],
        cwd=folder,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **environ},
    )


def cut_short(process: subprocess.Popen[str], at: str, running: int = 1) -> str:
    """Ctrl-C at the line of progress that begins so: its stdout; 130, no traceback, no process is
    left."""
    assert process.stderr is not None
    assert any(line.startswith(at) for line in process.stderr)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= running
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    all_end(child.pid for child in family)
    return out


def targets(fleet: Fleet) -> tuple[str, ...]:
    """The options that name a fleet's servers."""
    return tuple(word for url in fleet.urls for word in ("--target", url))


def keys(fleet: Fleet) -> int:
    total = 0
    for url in fleet.urls:
        with Redis.from_url(url) as client:
            total += client.dbsize()
    return total


def until(reached: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Return when it is `reached`; looked at rarely, as a look may cost what is waited for its
    core."""
    deadline = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.05)


def all_end(pids: Iterable[int]) -> None:
    """Every one of `pids` ends: within a second on an idle machine, and a zombie is no process any
    more."""
    family = list(pids)
    until(lambda: not any(map(is_alive, family)), "the end of all processes", 30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def result_in(folder: Path, kind: type) -> dict[str, Any]:
    """The stored result, which meets the schema of its kind."""
    document: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema_of(kind, "urn:x")).validate(document)
    return document


def counts(rows: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    return {row["name"]: (row["num_requests"], row["num_failures"]) for row in rows}


def answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(get(url))
    return False


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()  # type: ignore[no-any-return]
