"""A disk that can be full, and is nowhere."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.topology import loop_disk
from bench.topology.loop_disk import MemoryDisk


@pytest.fixture
def disk() -> Iterator[MemoryDisk]:
    try:
        one = MemoryDisk()
    except EnvironmentNotReadyError as error:
        pytest.skip(str(error))
    yield one
    one.close()


def test_it_takes_a_folders_place_and_goes_without_a_trace(disk: MemoryDisk, tmp_path: Path) -> None:
    mounts = Path("/proc/self/mountinfo").read_text()
    folder = tmp_path / "instance"
    folder.mkdir()
    disk.take_the_place_of(folder)
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "file").write_text("here")
    assert (disk.folder / "a" / "file").read_text() == "here"
    assert Path("/proc/self/mountinfo").read_text() == mounts
    disk.close()
    disk.close()
    assert not folder.exists()
    folder.unlink()  # as rmtree does with a link


def test_it_is_full_at_once_and_has_room_again(disk: MemoryDisk) -> None:
    file = os.open(disk.folder / "file", os.O_WRONLY | os.O_CREAT)
    assert os.write(file, b"x" * 100_000) == 100_000
    disk.make_full()
    os.write(file, b"y" * 4096)  # the last page has room for some of it
    with pytest.raises(OSError, match="No space left") as full:
        os.write(file, b"y" * 4096)
    assert full.value.errno == errno.ENOSPC
    assert os.fstat(file).st_size < 100_000 + 4096
    disk.make_full()
    disk.make_room()
    disk.make_room()
    assert os.write(file, b"z" * 1_000_000) == 1_000_000
    os.close(file)


def test_what_cannot_be_made_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_disk, "_FSOPEN", 100_000)
    with pytest.raises(EnvironmentNotReadyError, match="no disk in memory can be made .* needs root and Linux 5.2"):
        MemoryDisk()
