"""The shim against a real file system: *one server on ext4, its power cut → what is lost there and by the ledger*.

Rules: locks are taken one after the other until the server is frozen; then the file system is shut down hard, mounted
again, and its append-only file read, beside what the shim's ledger calls durable at that moment. They agree when the
ledger never promises more than the disk kept, and both show the policy's pattern: `no` loses all, everysec some, always
none. Where there is no root or no loop device it is skipped, with that reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from redis import Redis, RedisError

from bench.errors import BenchError
from bench.experiments.crash.crashing_fleet import NO_REWRITE, append_only_files, keys_in
from bench.experiments.crash.result import Compared, CrossCheck, Policy
from bench.topology.disk import LoopDisk
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import ServerBinary
from bench.topology.shim import LIBRARY_FILE, Control, shim_library
from lockcore.clock import NS_PER_S, monotonic_ns

COMPARED: tuple[Policy, ...] = ("no", "everysec", "always")
LOAD_S = (1.2, 2.1)
TTL_MS = 60_000
_KEY = "lockbench:check:"


def cross_check(server: ServerBinary, skipped: str | None, show: Callable[[str], None], seed: int = 1) -> CrossCheck:
    """Look whether they agree; `skipped`: why nobody looks, None = it is looked at."""
    if skipped is not None:
        return CrossCheck("skipped", skipped)
    found: list[Compared] = []
    for policy in COMPARED:
        show(f"shim: checked against ext4 that is shut down, {policy}")
        try:
            found.append(compare(server, policy, Random(f"{seed} {policy}")))
        except (BenchError, OSError, RedisError) as error:
            return CrossCheck("skipped", str(error), tuple(found))
    return judge(found)


def judge(found: Sequence[Compared]) -> CrossCheck:
    """Whether shim and file system agree."""
    wrong = [f"{one.policy}: {reason}" for one in found for reason in _differences(one)]
    return CrossCheck("differs" if wrong else "agrees", "; ".join(wrong) or None, tuple(found))


def _differences(one: Compared) -> Iterator[str]:
    if one.durable_bytes > one.kept_bytes:
        yield f"the ledger promised {one.durable_bytes:,} bytes, the disk kept {one.kept_bytes:,}"
    patterns: Mapping[str, Callable[[int], bool]] = {
        "no": lambda lost: lost == one.acknowledged,
        "everysec": lambda lost: lost > 0,
        "always": lambda lost: lost == 0,
    }
    for name, lost in (("the disk", one.lost), ("the shim", one.lost_by_shim)):
        if not one.acknowledged or not patterns[one.policy](lost):
            yield f"{name} lost {lost:,} of {one.acknowledged:,} locks"


def compare(server: ServerBinary, policy: Policy, dice: Random) -> Compared:
    """Cut the power of one server on a disk of its own. Raises BenchError, OSError or RedisError."""
    with LoopDisk() as disk:
        with _server_on(disk, server, policy) as (fleet, control):
            acknowledged = _load(fleet, dice.uniform(*LOAD_S))
            fleet.stop(0)
            files = append_only_files(disk.folder)
            written = b"".join(path.read_bytes() for path in files)
            durable = sum(control.synced(path).durable_bytes for path in files)
            disk.cut_power()
            fleet.kill(0)
        disk.mount_again()
        kept = append_only_files(disk.folder)
        on_disk, by_shim = keys_in(path.read_bytes() for path in kept), keys_in([written[:durable]])
        return Compared(
            policy,
            len(acknowledged),
            len(acknowledged - on_disk),
            len(acknowledged - by_shim),
            sum(path.stat().st_size for path in kept),
            durable,
        )


@contextmanager
def _server_on(disk: LoopDisk, server: ServerBinary, policy: str) -> Iterator[tuple[Fleet, Control]]:
    """One server whose files are on `disk`; the ledger is not, as it must outlive it."""
    controls: list[Control] = []

    def environment(_index: int, folder: Path) -> Mapping[str, str]:
        disk.take_the_place_of(folder)
        (folder / LIBRARY_FILE).write_bytes(shim_library())
        control = Control(folder.parent / "ledger.map")
        controls.append(control)
        return {"LD_PRELOAD": f"./{LIBRARY_FILE}", "LOCKBENCH_SHIM": str(control.path)}

    try:
        with start_fleet(1, policy, server=server, environment=environment, config=NO_REWRITE) as fleet:
            yield fleet, controls[0]
    finally:
        for control in controls:
            control.close()


def _load(fleet: Fleet, load_s: float) -> set[str]:
    """Take locks one after the other for so long; the keys that were acknowledged."""
    until_ns = monotonic_ns() + round(load_s * NS_PER_S)
    keys: set[str] = set()
    with Redis.from_url(fleet.urls[0]) as client:
        while monotonic_ns() < until_ns:
            key = f"{_KEY}{len(keys)}"
            if client.set(key, "owner", nx=True, px=TTL_MS):
                keys.add(key)
    return keys
