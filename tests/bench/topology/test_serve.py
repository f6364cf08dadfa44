"""`lockbench fleet` while it runs: which signals end it, what is told, what is put back."""

import os
import signal
import threading
from pathlib import Path

import pytest

from bench.cli.fleet import serve
from bench.topology.fleet import Instance


class FleetOfTwo:
    """A fleet whose second instance dies, then the first; after that it sends this process `number`."""

    def __init__(self, number: signal.Signals) -> None:
        self.instances = tuple(Instance(index, 7000 + index, 1, Path(), Path()) for index in range(2))
        self._number = number
        self._looks = iter([(None, None), (None, -9), (None, -9), (0, -9)])

    def exit_codes(self) -> tuple[int | None, int | None]:
        codes = next(self._looks, None)
        if codes is None:
            os.kill(os.getpid(), self._number)
            return (0, -9)
        return codes


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.cli.fleet._LOOK_S", 0.001)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_each_death_was_told_once(number: signal.Signals) -> None:
    told: list[tuple[int, int]] = []
    ended_by = serve(FleetOfTwo(number), lambda instance, code: told.append((instance.port, code)))  # type: ignore[arg-type]
    assert ended_by is number
    assert told == [(7001, -9), (7000, 0)]


def test_a_signal_sent_as_soon_as_it_says_so_is_not_lost() -> None:
    fleet = FleetOfTwo(signal.SIGTERM)
    ended_by = serve(fleet, lambda *_: None, lambda: os.kill(os.getpid(), signal.SIGINT))  # type: ignore[arg-type]
    assert ended_by is signal.SIGINT


def test_the_handlers_that_were_there_are_put_back() -> None:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in signals]
    serve(FleetOfTwo(signal.SIGTERM), lambda _instance, _code: None)  # type: ignore[arg-type]
    assert [signal.getsignal(number) for number in signals] == before


def test_under_nohup_a_hang_up_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        fleet = FleetOfTwo(signal.SIGHUP)
        assert serve(fleet, lambda _instance, _code: None) is signal.SIGTERM  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGHUP, before)
