"""The shim's power cut beside that of a real file system, an ext4 that is shut down hard, where
root allows one.

Locks are taken one after the other until the server is frozen; then the file system is shut down,
mounted again, and the append-only file read, beside what the ledger called durable at that moment.
The ledger must never promise more than the disk kept, and both must show the policy's pattern: `no`
loses all, everysec some, always none.
"""

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis

from bench.errors import EnvironmentNotReadyError
from bench.experiments.durability.cut import append_only_files, keys_in
from bench.experiments.durability.policies import AOF_POLICIES
from bench.experiments.durability.servers import NO_REWRITE
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.shim import LIBRARY_FILE, Control, shim_library
from lockcore.clock import NS_PER_S, monotonic_ns
from tests.doubles import loop_disk
from tests.doubles.loop_disk import LoopDisk

pytestmark = pytest.mark.integration
LOAD_S = (1.2, 2.1)
PATTERNS: Mapping[str, Callable[[int, int], bool]] = {
    "no": lambda lost, acknowledged: lost == acknowledged,
    "everysec": lambda lost, _acknowledged: lost > 0,
    "always": lambda lost, _acknowledged: lost == 0,
}


@dataclass(frozen=True)
class Compared:
    """One policy under the shim and on a real disk at once: locks, and bytes of the append-only
    file."""

    policy: str
    acknowledged: int
    lost: int
    lost_by_shim: int
    kept_bytes: int = 50
    durable_bytes: int = 50


def differences(one: Compared) -> Iterator[str]:
    if one.durable_bytes > one.kept_bytes:
        yield f"the ledger promised {one.durable_bytes:,} bytes, the disk kept {one.kept_bytes:,}"
    for name, lost in (("the disk", one.lost), ("the shim", one.lost_by_shim)):
        if not one.acknowledged or not PATTERNS[one.policy](lost, one.acknowledged):
            yield f"{name} lost {lost:,} of {one.acknowledged:,} locks"


def compare(policy: str) -> Compared:
    with a_disk() as disk:
        with server_on(disk, policy) as (fleet, control):
            acknowledged = load(fleet, random.Random(policy).uniform(*LOAD_S))
            fleet.stop(0)
            files = append_only_files(disk.folder)
            written = b"".join(path.read_bytes() for path in files)
            durable = sum(control.synced(path).durable_bytes for path in files)
            disk.cut_power()
            fleet.kill(0)
        disk.mount_again()
        kept = append_only_files(disk.folder)
        on_disk = keys_in(path.read_bytes() for path in kept)
        by_shim = keys_in([written[:durable]])
        lost = len(acknowledged - on_disk)
        lost_by_shim = len(acknowledged - by_shim)
        kept_bytes = sum(path.stat().st_size for path in kept)
        return Compared(policy, len(acknowledged), lost, lost_by_shim, kept_bytes, durable)


def a_disk() -> LoopDisk:
    try:
        return LoopDisk()
    except EnvironmentNotReadyError as error:
        pytest.skip(str(error))


@contextmanager
def server_on(disk: LoopDisk, policy: str) -> Iterator[tuple[Fleet, Control]]:
    """One server whose files are on `disk`; the ledger is not, as it must outlive it."""
    controls: list[Control] = []

    def environment(_index: int, folder: Path) -> Mapping[str, str]:
        disk.take_the_place_of(folder)
        (folder / LIBRARY_FILE).write_bytes(shim_library())
        controls.append(Control(folder.parent / "ledger.map"))
        return {"LD_PRELOAD": f"./{LIBRARY_FILE}", "LOCKBENCH_SHIM": str(controls[0].path)}

    with start_fleet(1, policy, environment=environment, config=NO_REWRITE) as fleet:
        yield fleet, controls[0]


def load(fleet: Fleet, load_s: float) -> set[str]:
    """Take locks one after the other for so long; the keys that were acknowledged."""
    until_ns = monotonic_ns() + round(load_s * NS_PER_S)
    keys: set[str] = set()
    with Redis.from_url(fleet.urls[0]) as client:
        while monotonic_ns() < until_ns:
            key = f"lockbench:check:{len(keys)}"
            if client.set(key, "owner", nx=True, px=60_000):
                keys.add(key)
    return keys


def test_the_shim_loses_what_ext4_loses() -> None:
    found = [compare(policy) for policy in AOF_POLICIES[1:]]
    assert [one.policy for one in found] == list(PATTERNS)
    assert [reason for one in found for reason in differences(one)] == []


def test_shim_and_disk_agree_by_pattern_and_the_ledger_never_promises_more() -> None:
    fine = [
        Compared("no", 100, 100, 100, 0, 0),
        Compared("everysec", 100, 20, 22),
        Compared("always", 100, 0, 0),
    ]
    assert [reason for one in fine for reason in differences(one)] == []
    for wrong in (
        Compared("everysec", 100, 20, 20, 40, 50),
        Compared("everysec", 100, 20, 0),
        Compared("everysec", 100, 0, 20),
        Compared("always", 100, 1, 0),
        Compared("always", 100, 0, 1),
        Compared("no", 100, 50, 100),
        Compared("always", 0, 0, 0),
    ):
        assert list(differences(wrong))


def test_an_ext4_that_is_shut_down_keeps_what_was_synced_and_no_more() -> None:
    with a_disk() as disk:
        with (disk.folder / "file").open("ab", buffering=0) as file:
            file.write(b"x" * 1000)
            os.fsync(file.fileno())
            file.write(b"y" * 5000)
            disk.cut_power()
            with pytest.raises(OSError, match="Input/output error"):
                file.write(b"z")
        disk.mount_again()
        assert (disk.folder / "file").read_bytes() == b"x" * 1000
        disk.close()
        disk.close()


def test_nobody_else_may_use_what_is_mounted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_disk, "_MOUNT_TRIES", 2)
    with a_disk() as disk, (disk.folder / "file").open("wb"):
        disk.cut_power()
        with pytest.raises(EnvironmentNotReadyError, match="still in use"):
            disk.mount_again()
