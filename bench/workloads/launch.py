"""Locust as a separate process: *a plan → a running Locust; its end, or the error that ended it*.

Rules
- This module imports neither Locust nor gevent, because they patch the whole process.
- Locust and its workers form one process group and end with us. Each asks the kernel for a SIGTERM
  at its parent's death, so Locust can give its locks back. Start Locust in a thread that lives as
  long as the run.
- Locust has no web UI and writes only into the plan's folder. The master's port is on loopback
  unless other hosts take part.
- Locust reads only its command line. It ignores its files (bare_locust.py) and LOCUST_ variables.

Source: Locust's command line; proc(5).
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from bench.errors import BenchError, EnvironmentNotReadyError, InconclusiveError, UsageError
from bench.hosts.joining import NOTE_VARIABLE
from bench.topology.child import PARENT_VARIABLE
from bench.topology.fleet import KeptPort
from bench.topology.servants import Guard
from bench.workloads.plan import PLAN_VARIABLE, Plan, in_memory, planned

LOG_FILE = "locust.log"
TABLE_FILE = "locust.json"
# The file in Locust's folder that says why Locust ended the run, and the exit code.
FAILURE_FILE = "failure.json"
_BARE = Path(__file__).with_name("bare_locust.py")
_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
# Without -P, Locust would look for its imports in the folder of bare_locust.py first.
_LOCUST = (sys.executable, "-P", str(_BARE), "-f", str(_LOCUSTFILE))
_LOG_LINES = 12
# The variable that names the socket for the plans of later runs.
SERIES_VARIABLE = "LOCKBENCH_SERIES"
# The message that a run of a series has ended.
OVER = b"over\n"
# How long workers of other hosts may take to come.
WORKERS_S = 300.0
_GROUP_ENDS_S = 3.0
_ERRORS = {
    kind.exit_code: kind for kind in (UsageError, EnvironmentNotReadyError, InconclusiveError)
}


def command_line(plan: Plan) -> list[str]:
    """The command that runs `plan`, which must have a workdir."""
    assert plan.workdir is not None
    users = plan.scenario.users
    processes = plan.scenario.processes
    words = [*_LOCUST, "--headless", "--only-summary"]
    words += ["-u", str(users), "-r", str(users), "--stop-timeout", f"{plan.grace_s:.0f}"]
    # Locust gets the bare name of the file. An orphaned Locust may end after the clean-up. With a
    # path it would then make the folder again.
    words += ["--json-file", TABLE_FILE.removesuffix(".json"), "--exit-code-on-error", "0"]
    bind = plan.bind
    if bind is not None:
        words += ["--master", "--expect-workers", str(processes)]
    elif processes > 1:
        port = KeptPort()
        port.release()
        bind = ("127.0.0.1", port.number)
        words += [
            "--processes",
            str(processes),
            "--master-host",
            bind[0],
            "--master-port",
            str(bind[1]),
        ]
    return words + (
        ["--master-bind-host", bind[0], "--master-bind-port", str(bind[1])] if bind else []
    )


def join(host: str, port: int, processes: int, note: Path) -> subprocess.Popen[bytes]:
    """Start a Locust that waits for the master at `host`, works for it, and ends with us.

    It logs to stderr. Once it has its plan, the file `note` says whether another run may follow:
    `MORE` or `LAST`.
    """
    words = [*_LOCUST, "--worker", "--master-host", host, "--master-port", str(port)]
    words += ["--processes", str(processes)] if processes > 1 else []
    environment = _environment(os.environ, **{NOTE_VARIABLE: str(note)})
    return subprocess.Popen(
        words, env=environment, cwd=tempfile.gettempdir(), start_new_session=True
    )


def _environment(environ: Mapping[str, str], **more: str) -> dict[str, str]:
    without_locust = {
        name: value for name, value in environ.items() if not name.startswith("LOCUST_")
    }
    return {**without_locust, PARENT_VARIABLE: str(os.getpid()), **more}


def note_of(error: BenchError) -> dict[str, str | int]:
    """The message about `error` from one process to another."""
    return {"sentence": str(error), "exit_code": error.exit_code}


def error_of(sentence: str, exit_code: int, **_more: object) -> BenchError:
    """The error in a message of `note_of`. Another version may send more fields."""
    return _ERRORS.get(exit_code, EnvironmentNotReadyError)(sentence)


def note_failure(error: BenchError) -> None:
    """Tell `lockbench run`, if it started this Locust, why the run ends. The first fault stays."""
    if planned(os.environ):
        with contextlib.suppress(OSError), Path(FAILURE_FILE).open("x", encoding="utf-8") as file:
            json.dump(note_of(error), file)


class LocustProcess:
    """A started Locust with its workers. `close` must be called."""

    def __init__(
        self,
        plan: Plan,
        environ: Mapping[str, str] = os.environ,
        *,
        folder: Path | None = None,
        channel: int | None = None,
    ) -> None:
        """Start Locust on the plan and return at once. Raises EnvironmentNotReadyError.

        `folder`: where it runs and keeps its log; None: in the plan's workdir. `channel`: a socket
        that brings the plans of later runs (series.py); None: this run is its only one.
        """
        assert plan.workdir is not None
        self._workdir = plan.workdir if folder is None else folder
        self._is_closed = False
        text = in_memory(plan.text)
        passed = (
            {PLAN_VARIABLE: text}
            if channel is None
            else {PLAN_VARIABLE: text, SERIES_VARIABLE: channel}
        )
        environment = _environment(
            environ, **{name: f"/proc/self/fd/{number}" for name, number in passed.items()}
        )
        try:
            with (self._workdir / LOG_FILE).open("wb") as log:
                self._process = subprocess.Popen(
                    command_line(plan),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=self._workdir,
                    start_new_session=True,
                    pass_fds=tuple(passed.values()),
                )
        except OSError as error:
            raise EnvironmentNotReadyError(
                f"Locust cannot be started in {self._workdir}: {error.strerror}; see "
                "whether the folder can be written"
            ) from error
        finally:
            os.close(text)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait up to `timeout_s` (None: without end) for Locust's end.

        Returns the exit code, or None if Locust still runs.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def interrupt(self) -> None:
        """Ask Locust to end in order, so that it gives its locks back and writes its notes."""
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """Wait until no process of the group is left. After 3 s, kill the workers that remain.

        A second call does nothing, because the group's number may belong to other processes then.
        """
        if self._is_closed:
            return
        deadline_s = time.monotonic() + (_GROUP_ENDS_S if self._process.poll() is not None else 0.0)
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline_s:
                os.killpg(self._process.pid, 0)
                # Orphaned workers are not our children, so no system call waits for their end.
                time.sleep(0.01)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._is_closed = True

    def failure(self) -> BenchError | None:
        """Why the run failed, once Locust has ended. None if it did not fail.

        The text is Locust's own message, or the end of its log if there is no message.
        """
        with contextlib.suppress(OSError, ValueError):
            return error_of(
                **json.loads((self._workdir / FAILURE_FILE).read_text(encoding="utf-8"))
            )
        code = self._process.poll()
        if not code:
            return None
        ending = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return EnvironmentNotReadyError(f"Locust {ending}; the end of its log:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines that Locust wrote."""
        text = (self._workdir / LOG_FILE).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()] or ["(it said nothing)"]
        return "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])


class Load(Protocol):
    """A load that can be followed to its end."""

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait up to `timeout_s` for its end: its exit code, None if it still runs."""

    def interrupt(self) -> None:
        """Ask it to end in order."""

    def close(self) -> None:
        """Leave no process of the load behind, unless the next run of a series may use it."""

    def failure(self) -> BenchError | None:
        """Why the load failed, once it has ended. None if it did not fail."""

    def log_tail(self) -> str:
        """The last lines of its log."""


class LocustSeries:
    """One Locust for many runs, one after the other. `close` must be called.

    A new Locust needs two to five seconds to start and end, which is longer than a short probe. In
    a series, only the test inside Locust begins anew. Each run has its own users, connections and
    record, so the judge treats it as any other run.
    """

    def __init__(self) -> None:
        self._guard = Guard(Path(tempfile.gettempdir()), "lockbench-series-")
        self._process: LocustProcess | None = None
        self._ours: socket.socket | None = None

    # The Locust of the last run may have ended, be about to quit, or end at this very moment. A
    # check before sending notices the first two cases. In the third case only the send fails, with
    # a broken channel. So this error is not a failure here, and a new Locust starts. A check alone
    # would leave a gap in which a plan goes to a Locust that no longer reads.
    def begin(self, plan: Plan, environ: Mapping[str, str] = os.environ) -> "SeriesRun":
        """Start the run of `plan` and return at once.

        It runs in the present Locust if there is one, else in a new one. All plans of a series have
        the same number of processes. Raises EnvironmentNotReadyError.
        """
        if self._process is not None and self._ours is not None and self._is_sound(self._process):
            # Locust may end at this moment. Then a new one starts.
            with contextlib.suppress(ConnectionError):
                self._ours.sendall(plan.text + b"\n")
                return SeriesRun(self._process, self._ours)
        self._end()
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = LocustProcess(
                plan, environ, folder=self._guard.folder, channel=theirs.fileno()
            )
        return SeriesRun(self._process, self._ours)

    def close(self) -> None:
        """End Locust. Between two runs it holds nothing that must be given back."""
        self._end()
        self._guard.close()

    @staticmethod
    def _is_sound(process: LocustProcess) -> bool:
        """Whether this Locust can make another run.

        One that has told a failure is about to quit.
        """
        return process.wait(0) is None and process.failure() is None

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
        if self._ours is not None:
            self._ours.close()
        # The next Locust runs in the same folder and may write its own failure.
        (self._guard.folder / FAILURE_FILE).unlink(missing_ok=True)


class SeriesRun:
    """One run of a series, to be followed as a `LocustProcess` is."""

    def __init__(self, process: LocustProcess, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._is_over = False
        self._is_interrupted = False

    # A channel that can be read means one of two things: the run is over, or Locust has died and
    # closed it. `recv` tells them apart, because a closed channel gives no bytes. The kernel may
    # need a moment until the exit code of the dead process is there, so this waits up to a second
    # for it. Without that wait, a dead Locust could count as running for one more look.
    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait up to `timeout_s` for the end of this run or of Locust.

        Returns 0 if the run has ended, or Locust's exit code if Locust has. Returns None if neither
        has ended.
        """
        readable, _, _ = select.select([self._channel], [], [], timeout_s)
        # A Locust that dies with an unread plan resets the connection.
        with contextlib.suppress(ConnectionError):
            self._is_over = bool(readable and self._channel.recv(len(OVER)))
        if self._is_over:
            return 0
        return self._process.wait(1.0 if readable else 0)

    def close(self) -> None:
        """End Locust if the run has not ended, or if it was interrupted.

        After any other run, the next run may follow in the same Locust.
        """
        if not self._is_over or self._is_interrupted:
            self._process.close()

    def interrupt(self) -> None:
        """Ask Locust to end in order; no run follows then."""
        self._is_interrupted = True
        self._process.interrupt()

    def failure(self) -> BenchError | None:
        """Why the run failed, once Locust has ended."""
        return self._process.failure()

    def log_tail(self) -> str:
        """The last lines that Locust wrote."""
        return self._process.log_tail()
