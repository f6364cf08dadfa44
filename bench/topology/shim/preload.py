"""The shim in every server of a fleet: *start_fleet's environment hook → a Control per instance*.

Rules: the library is copied into each server's own folder and preloaded as `./…`, because LD_PRELOAD cannot hold a path
with a space and a server starts in its folder. A preload that is already set stays, behind ours. Whether a server took
it is asked, never assumed. Source: ld.so(8).
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from bench.topology.shim.build import shim_library
from bench.topology.shim.control import Control

LIBRARY_FILE, CONTROL_FILE = "fault-shim.so", "fault-shim.map"
IGNORED = "the server ignores LD_PRELOAD (it is linked statically, or setuid)"


class Preload:
    """Hands `environment` to `start_fleet`; afterwards `controls[index]` is instance `index`'s shim."""

    def __init__(self, cache: Path | None = None) -> None:
        """Have the library ready. Raises EnvironmentNotReadyError when it cannot be compiled."""
        self._library = shim_library(cache)
        self.controls: dict[int, Control] = {}

    def environment(self, index: int, folder: Path) -> Mapping[str, str]:
        """What instance `index` in `folder` gets; called at every start of it, also after a kill."""
        if index not in self.controls:
            shutil.copyfile(self._library, folder / LIBRARY_FILE)
            self.controls[index] = Control(folder / CONTROL_FILE)
        before = os.environ.get("LD_PRELOAD")
        preload = f"./{LIBRARY_FILE}" + (f":{before}" if before else "")
        return {"LD_PRELOAD": preload, "LOCKBENCH_SHIM": f"./{CONTROL_FILE}"}

    def close(self) -> None:
        """Let go of all mappings; the servers must have ended, or go on as they were set."""
        for control in self.controls.values():
            control.close()
        self.controls.clear()
