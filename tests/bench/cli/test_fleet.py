"""`lockbench fleet` while it runs: a death is told once, and no signal gets lost."""

import os
import signal
from pathlib import Path

import pytest

from bench.cli.run import serve
from bench.topology.fleet import Instance


class FleetOfTwo:
    """A fleet whose second instance dies, then the first; after that it sends this process a signal."""

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
    monkeypatch.setattr("bench.cli.run._LOOK_S", 0.001)
    serve(FleetOfTwo(), lambda: None)  # type: ignore[arg-type]
    assert capsys.readouterr().err.splitlines() == [
        "lockbench: instance 1 (redis://127.0.0.1:7001) ended with exit code -9",
        "lockbench: instance 0 (redis://127.0.0.1:7000) ended with exit code 0",
    ]


def test_a_signal_sent_as_soon_as_it_says_so_ends_it_before_the_first_look() -> None:
    serve(FleetOfTwo(), lambda: os.kill(os.getpid(), signal.SIGINT))  # type: ignore[arg-type]


def test_a_signal_ends_it() -> None:
    serve(FleetOfTwo(), lambda: signal.setitimer(signal.ITIMER_REAL, 0.05) and None)  # type: ignore[arg-type, func-returns-value]
