"""The power goes: *kill -9, then every file cut to what the disk had promised to keep → a restart on that*.

Rules
- `kill -9` alone keeps the page cache and proves nothing. The shim's ledger says how long each file was when its last
  successful fsync *began*; everything behind that is lost, as in the worst case (a kernel may have written more).
- `torn` keeps a seed-driven part of the lost tail, so that a record may end in the middle.
- File names are taken as durable: Redis syncs the folder of its manifest.

Source: fdatasync(2); the ledger in bench/topology/shim/fault_shim.c.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.topology.faults.injection import Delayed
from bench.topology.faults.params import Param, flag
from bench.topology.faults.processes import RESTART_PARAMS
from bench.topology.faults.site import Need
from bench.topology.fleet import Instance
from bench.topology.shim.build import CONTROL_FILE, LIBRARY_FILE
from bench.topology.shim.control import Control, identify_file


@dataclass(frozen=True, slots=True)
class Cut:
    """What became of one file: it had `size_bytes`, of which `durable_bytes` were synced, and keeps `kept_bytes`.

    `in_flight`: syncs that were running when the server died; with one, even `kill -9` may lose writes (everysec
    postpones them).
    """

    name: str
    size_bytes: int
    durable_bytes: int
    kept_bytes: int
    in_flight: int


def cut_power(instance: Instance, control: Control, torn: random.Random | None = None) -> tuple[Cut, ...]:
    """Cut every file of a *dead* instance to what was durable; `torn` draws how much of the rest stays.

    Raises EnvironmentNotReadyError when the ledger does not know all files, OSError when one cannot be cut.
    """
    if control.overflow:
        raise EnvironmentNotReadyError(f"instance {instance.index} synced more files than the shim's ledger holds")
    return tuple(_cut(path, instance.folder, control, torn) for path in _files(instance))


def _cut(path: Path, folder: Path, control: Control, torn: random.Random | None) -> Cut:
    known, size = control.synced(path), identify_file(path)[1]
    durable = kept = min(known.durable_bytes, size)
    if torn is not None:
        kept = torn.randint(durable, size)
    if kept < size:
        os.truncate(path, kept)
    return Cut(str(path.relative_to(folder)), size, durable, kept, known.in_flight)


def _files(instance: Instance) -> Iterator[Path]:
    ours = {instance.log_path.name, CONTROL_FILE, LIBRARY_FILE}
    for path in sorted(instance.folder.rglob("*")):
        if path.is_file() and not (path.parent == instance.folder and path.name in ours):
            yield path


class PowerCut(Delayed):
    """`kill -9` and the loss of what was not synced; started again after `delay`."""

    params = (*RESTART_PARAMS, Param("torn", flag, False, "keep a random part of the tail that was not synced"))

    always_needs = frozenset({Need.SHIM})

    def begin(self) -> None:
        """Cut."""
        torn = random.Random(self.order.seed) if self.order.params["torn"] else None
        with self.site.lock(self.index):
            self.site.fleet.kill(self.index)
            cuts = cut_power(self.site.fleet.instances[self.index], self.site.control(self.index), torn)
        self.detail["lost_bytes"] = sum(cut.size_bytes - cut.kept_bytes for cut in cuts)
        self.detail["files"] = [asdict(cut) for cut in cuts]

    def end(self) -> None:
        """Start it again on what was kept, and wait until it answers."""
        with self.site.lock(self.index):
            self.site.fleet.restart(self.index)
