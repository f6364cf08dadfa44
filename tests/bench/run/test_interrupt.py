"""Ctrl-C: it raises while nothing is at stake, is only counted while something is, and is given
back."""

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from bench.errors import EXIT_INTERRUPTED, InconclusiveError
from bench.run.experiment import Done
from bench.run.interrupt import Interrupts
from bench.run.run import Order, run_scenario
from bench.scenario import load


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_raises_until_it_is_only_counted(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        interrupts.raising = False
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert interrupts.count == 3
    assert signal.getsignal(number) == before


def test_an_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            assert interrupts.count == 0
    finally:
        signal.signal(signal.SIGHUP, before)


class Dying:
    """Ctrl-C comes while it is finalised, where Python drops exceptions."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_a_signal_that_python_drops_in_a_finaliser_is_raised_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            _finalise_and_wait()
        assert interrupts.count == 1
    assert signal.getsignal(signal.SIGALRM) == before
    assert "ignored" not in capsys.readouterr().err


def _finalise_and_wait() -> None:
    dying = Dying()
    del dying
    time.sleep(30)


def test_a_signal_dropped_at_the_very_end_is_raised_by_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        Dying()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_what_a_step_has_only_counted_ends_the_experiment_around_it() -> None:
    with Interrupts() as around:
        with pytest.raises(KeyboardInterrupt):
            _only_counted()
        assert around.count == 1


def test_a_step_on_its_own_that_has_counted_ends_in_order() -> None:
    assert _only_counted() == 1


def _only_counted() -> int:
    with Interrupts() as step:
        step.raising = False
        signal.raise_signal(signal.SIGINT)
    return step.count


def run_while(monkeypatch: pytest.MonkeyPatch, folder: Path, error: Exception | None) -> int:
    """The exit code of a run in which Ctrl-C is only counted, and which then ends well, or by
    `error`."""

    def run_on(_servers: object, _order: Order, interrupts: Interrupts, _show: object) -> Done:
        interrupts.raising = False
        interrupts.note()
        if error:
            raise error
        return Done({}, None, 0)

    monkeypatch.setattr("bench.run.run.open_servers", lambda *_, **__: nullcontext())
    monkeypatch.setattr("bench.run.run.run_on", run_on)
    order = Order(load(None, {}), "x", ["lockbench", "run"], folder)
    with Interrupts() as interrupts:
        return run_scenario(order, interrupts, lambda _: None).exit_code


def test_ctrl_c_while_a_run_is_put_away_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run_while(monkeypatch, tmp_path, None) == EXIT_INTERRUPTED


def test_ctrl_c_in_a_run_that_fails_comes_before_its_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_while(
            monkeypatch, tmp_path, InconclusiveError("the load ended before its measured time")
        )
