"""Ctrl-C: it raises while nothing is at stake, is only counted while something is, and is given back."""

from __future__ import annotations

import os
import signal

import pytest

from bench.experiments.interrupt import Interrupts


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
