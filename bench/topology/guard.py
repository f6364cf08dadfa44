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

import msgspec

from bench.errors import EnvironmentNotReadyError
from bench.topology.child import Answer, Servant

_SCRIPT = Path(__file__).with_name("guard_process.py")
_GONE = "the fleet is closed, or its guard process was killed (its servers ended with it): start it again"


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server as its guard sees it: `exit_code` is None while it lives and minus the signal that killed it."""

    pid: int
    exit_code: int | None
    stopped: bool


class _Answer(Answer):
    folder: str = ""
    pid: int = 0
    states: dict[int, ServerState] = msgspec.field(default_factory=dict)
    error: str = ""


class Guard:
    """Owns a private folder and the servers started in it; both end with this object's process, however that ends."""

    def __init__(self, temp_root: Path, prefix: str = "lockbench-fleet-") -> None:
        """Start the guard with a fresh folder `prefix`… (0700) in `temp_root`. Raises EnvironmentNotReadyError."""
        self._owner = os.getpid()
        self._servant = Servant(_SCRIPT, [str(self._owner), str(temp_root), prefix], _Answer, gone=_GONE)
        hello = self._servant.hello
        if hello.error:
            self._servant.close()
            raise EnvironmentNotReadyError(
                f"no private folder can be made in {temp_root}: {hello.error}; set TMPDIR to another folder"
            )
        self.folder = Path(hello.folder)

    def start(self, index: int, argv: Sequence[str], folder: Path, log: Path, env: Mapping[str, str]) -> int:
        """Start a server in `folder`, output appended to `log`, `env` on top of our environment; return its pid."""
        return self._ask("start", index=index, argv=argv, cwd=folder, log=log, env=env).pid

    def signal(self, index: int, number: signal.Signals) -> None:
        """Send a signal to server `index` and its children; none if it has ended. Does not wait for the effect."""
        self._ask("signal", index=index, signal=int(number))

    def states(self) -> dict[int, ServerState]:
        """What every started server does now."""
        return self._ask("states").states

    def close(self) -> None:
        """Kill all servers and remove the folder; returns when both are gone. More than once is fine."""
        if os.getpid() == self._owner:
            self._servant.close()
            shutil.rmtree(self.folder, ignore_errors=True)  # already gone, unless the guard was killed

    def _ask(self, do: str, **request: object) -> _Answer:
        answer = self._servant.ask(do=do, **request)
        if answer.error:
            raise EnvironmentNotReadyError(f"the fleet's guard could not {do} a server: {answer.error}")
        return answer
