"""The shim from Python's side: a compiler that fails; the shared words; a file's true name."""

import subprocess
import time
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.topology import shim
from bench.topology.shim import Control, identity, shim_library


def test_the_source_has_no_warning(tmp_path: Path) -> None:
    strict = [
        "cc",
        *shim._FLAGS,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(tmp_path / "x.so"),
        str(shim.SOURCE),
    ]
    done = subprocess.run(strict, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim, "_FLAGS", ("--no-such-flag",))
    monkeypatch.setattr(shim.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(
        EnvironmentNotReadyError, match="cannot compile the fault shim: .*no-such-flag"
    ):
        shim_library.__wrapped__()
    assert list(tmp_path.iterdir()) == []


def test_a_new_one_is_true_and_empty_and_stands_on_real_blocks(tmp_path: Path) -> None:
    control = Control(tmp_path / "map")
    assert (control.files(), control.words.overflow, control.ahead_ns(time.time_ns())) == ([], 0, 0)
    assert control.synced(control.path).durable_bytes == 0
    # a full disk cannot kill the server
    assert control.path.stat().st_blocks * 512 >= control.path.stat().st_size
    assert control.path.stat().st_mode & 0o077 == 0


def test_jumps_add_up_and_a_rate_goes_on_from_there(tmp_path: Path) -> None:
    control = Control(tmp_path / "map")
    control.shift_clock(5_000)
    control.shift_clock(-2_000)
    assert control.ahead_ns(time.time_ns()) == 3_000
    control.set_clock_rate(1.5)
    first = control.ahead_ns(time.time_ns())
    control.shift_clock(1_000_000_000_000)
    assert 3_000 <= first < control.ahead_ns(time.time_ns()) - 999_999_000_000


def test_a_setting_is_written_beside_the_valid_one_and_then_made_valid(tmp_path: Path) -> None:
    """A server in the middle of a reading goes on with what it began with."""
    control = Control(tmp_path / "map")
    for number in range(1, 20):
        before = bytes(control.words)
        slot = number % 8
        control.shift_clock(7)
        assert control.words.clocks[slot].offset_ns == 7 * number
        after = bytearray(bytes(control.words))
        for field, width in ((shim.ControlWords.turn, 8), (shim.ControlWords.clocks, 24)):
            start = field.offset + (slot * width if width > 8 else 0)
            after[start : start + width] = before[start : start + width]
        assert bytes(after) == before, "nothing else has changed"


def test_a_file_is_inode_and_birth_whatever_is_written_to_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    later = tmp_path / "b"
    path.write_bytes(b"12345")
    known = identity(path)
    assert known[0] == path.stat().st_ino
    assert known[1] == 0 or abs(known[1] - path.stat().st_ctime_ns) < 10_000_000_000
    path.write_bytes(b"123")
    assert identity(path) == known
    later.touch()
    assert identity(later) != known
    with pytest.raises(FileNotFoundError):
        identity(tmp_path / "none")
