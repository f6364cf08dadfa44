"""The shared words from Python's side."""

from pathlib import Path

import pytest

from bench.topology.shim import control as control_module
from bench.topology.shim.control import Control, SyncedFile


def test_a_new_one_is_true_and_empty_and_stands_on_real_blocks(tmp_path: Path) -> None:
    control = Control(tmp_path / "map")
    assert (control.files(), control.overflow, control.clock_offset_ns()) == ((), False, 0)
    assert control.synced(control.path) == SyncedFile()
    assert control.path.stat().st_blocks * 512 >= control.path.stat().st_size  # a full disk cannot kill the server
    assert control.path.stat().st_mode & 0o077 == 0
    control.close()
    control.close()


def test_an_existing_file_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "map").touch()
    with pytest.raises(FileExistsError):
        Control(tmp_path / "map")


def test_jumps_add_up_and_a_rate_goes_on_from_there(tmp_path: Path) -> None:
    control = Control(tmp_path / "map")
    control.shift_clock(5_000)
    control.shift_clock(-2_000)
    assert control.clock_offset_ns() == 3_000
    control.set_clock_rate(1.5)
    first = control.clock_offset_ns()
    control.shift_clock(1_000_000_000_000)
    assert 3_000 <= first < control.clock_offset_ns() - 999_999_000_000


def test_a_setting_is_written_beside_the_valid_one_and_then_made_valid(tmp_path: Path) -> None:
    """A server in the middle of a reading goes on with what it began with."""
    control = Control(tmp_path / "map")
    for number in range(1, 20):
        before = control._words.tolist()
        control.shift_clock(7)
        changed = {word for word, value in enumerate(control._words.tolist()) if value != before[word]}
        slot = control_module._CLOCK + number % 8 * 3
        assert changed - {slot, slot + 1, slot + 2} == {control_module._TURN}
        assert control._words[slot] == 7 * number
