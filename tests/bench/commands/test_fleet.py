"""`lockbench fleet` while it runs: a death is told once, and no signal gets lost."""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.program import execute
from bench.topology.fleet import Instance


@dataclass
class Program:
    name: str = "redis"


class FleetOfTwo:
    """A fleet whose second instance dies, then the first; after that it sends this process a
    signal."""

    server = Program()
    folder = Path("/tmp/fleet")

    def __init__(self) -> None:
        self.instances = tuple(Instance(index, 7000 + index, 1, Path()) for index in range(2))
        self._looks = iter([(None, None), (None, -9), (None, -9), (0, -9)])

    def exit_codes(self) -> tuple[int | None, int | None]:
        codes = next(self._looks, None)
        if codes is None:
            os.kill(os.getpid(), signal.SIGTERM)
        return codes or (0, -9)


def test_each_death_is_told_once_until_a_signal_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.topology.fleet.find_server", lambda server: server)
    monkeypatch.setattr(
        "bench.topology.fleet.start_fleet", lambda *_, **__: contextlib.nullcontext(FleetOfTwo())
    )
    assert execute(["fleet", "--quiet"]) == 130
    out, err = capsys.readouterr()
    assert out.splitlines() == ["redis://127.0.0.1:7000", "redis://127.0.0.1:7001"]
    assert err.splitlines() == [
        "lockbench: instance 1 (redis://127.0.0.1:7001) ended with exit code -9",
        "lockbench: instance 0 (redis://127.0.0.1:7000) ended with exit code 0",
    ]
