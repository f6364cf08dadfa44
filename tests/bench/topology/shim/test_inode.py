"""A file's true name."""

from pathlib import Path

import pytest

from bench.topology.shim.control import identify_file


def test_it_is_inode_and_birth_and_the_size_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    identity, size = identify_file(path)
    assert (identity.inode, size) == (path.stat().st_ino, 5)
    assert identity.born_ns == 0 or abs(identity.born_ns - path.stat().st_ctime_ns) < 10_000_000_000
    path.write_bytes(b"123")
    assert identify_file(path) == (identity, 3)


def test_a_later_file_was_born_later(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.touch()
    second.touch()
    assert identify_file(first)[0] != identify_file(second)[0]


def test_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        identify_file(tmp_path / "none")
