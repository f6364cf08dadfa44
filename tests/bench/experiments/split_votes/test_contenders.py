"""The gate's words mean the same to everybody who maps them, and nobody starts early."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.experiments.split_votes.contenders import StartingGate


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[tuple[StartingGate, StartingGate]]:
    """The leader's gate and another process's."""
    leader = StartingGate(tmp_path / "gate", 3, create=True)
    other = StartingGate(tmp_path / "gate", 3)
    yield leader, other
    other.close()
    leader.close()


def test_a_seat_is_ready_then_finished_then_ready_for_the_next(gates: tuple[StartingGate, StartingGate]) -> None:
    leader, other = gates
    assert not leader.are_ready(1, 1), "before anybody has said anything"
    for seat in range(2):
        other.ready(seat, 4)
    assert leader.are_ready(2, 4)
    assert not leader.are_ready(3, 4), "the third has not"
    assert not leader.are_finished(1, 4)
    other.finish(0, 4)
    assert leader.are_finished(1, 4)
    assert not leader.are_ready(1, 5)
    other.ready(0, 5)
    assert leader.are_finished(1, 4), "whoever is ready for the next has finished this one"


def test_the_start_and_the_win_are_seen_by_all(gates: tuple[StartingGate, StartingGate]) -> None:
    leader, other = gates
    assert other.start_ns == 0
    leader.open(123_456_789_012_345)
    assert other.start_ns == 123_456_789_012_345
    other.win(7)
    assert leader.is_won(7)
    assert not leader.is_won(8), "a win is of its own trial"


def test_the_file_is_private_and_never_taken_over(tmp_path: Path) -> None:
    StartingGate(tmp_path / "gate", 1, create=True).close()
    assert (tmp_path / "gate").stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError):
        StartingGate(tmp_path / "gate", 1, create=True)
