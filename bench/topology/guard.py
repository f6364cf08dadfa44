"""The parent's end of the guard process: *start, signal, states, close → what the guard did*.

Rules: Ctrl-C may come at any point. Closing needs no answer: the end of file is the request, the guard's own end is the
reply. Only the process that made a Guard may close it; a forked child's copy does nothing.
Source: bench/topology/guard_process.py, which holds the protocol's other half; bench.topology.child.
"""

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import EnvironmentNotReadyError
from bench.topology.child import Servant

_SCRIPT = Path(__file__).with_name("guard_process.py")
_GONE = "the fleet is closed, or its guard process was killed (its servers ended with it): start it again"


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server as its guard sees it: `exit_code` is None while it lives and minus the signal that killed it."""

    pid: int
    exit_code: int | None
    stopped: bool


class Guard:
    """Owns a private folder and the servers started in it; both end with this object's process, however that ends."""

    def __init__(self, temp_root: Path, prefix: str = "lockbench-fleet-") -> None:
        """Start the guard with a fresh folder `prefix`… (0700) in `temp_root`. Raises EnvironmentNotReadyError."""
        self._owner = os.getpid()
        self._servant = Servant(_SCRIPT, [str(self._owner), str(temp_root), prefix], gone=_GONE)
        hello = self._servant.hello
        if "error" in hello:
            self._servant.close()
            raise EnvironmentNotReadyError(
                f"no private folder can be made in {temp_root}: {hello['error']}; set TMPDIR to another folder"
            )
        self.folder = Path(hello["folder"])

    def start(self, index: int, argv: Sequence[str], folder: Path, log: Path, env: Mapping[str, str]) -> int:
        """Start a server in `folder`, output appended to `log`, `env` on top of our environment; return its pid."""
        place = {"cwd": str(folder), "log": str(log), "env": dict(env)}
        pid: int = self._ask({"do": "start", "index": index, "argv": list(argv), **place})["pid"]
        return pid

    def signal(self, index: int, number: signal.Signals) -> None:
        """Send a signal to server `index` and its children; none if it has ended. Does not wait for the effect."""
        self._ask({"do": "signal", "index": index, "signal": int(number)})

    def states(self) -> dict[int, ServerState]:
        """What every started server does now."""
        return {int(index): ServerState(**state) for index, state in self._ask({"do": "states"})["states"].items()}

    def close(self) -> None:
        """Kill all servers and remove the folder; returns when both are gone. More than once is fine."""
        if os.getpid() == self._owner:
            self._servant.close()
            shutil.rmtree(self.folder, ignore_errors=True)  # already gone, unless the guard was killed

    def _ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        answer = self._servant.ask(request)
        if "error" in answer:
            raise EnvironmentNotReadyError(f"the fleet's guard could not {request['do']} a server: {answer['error']}")
        return answer
