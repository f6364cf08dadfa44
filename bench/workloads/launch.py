"""This module runs Locust as a separate process: *a plan → a running Locust process → the end of
this process, or the error that ended the run*.

Rules
- This module imports neither Locust nor gevent, because they patch the whole process.
- Locust and its workers form one process group. They end when this process ends. The kernel sends
  each process a SIGTERM when its parent dies, so Locust can release its locks. Start Locust in a
  thread that lives as long as the run.
- Locust has no web UI and writes only into the plan's folder. The master's port is on loopback
  unless other hosts take part.
- Locust reads options only from its command line. Locust ignores its configuration files
  (bare_locust.py) and LOCUST_ variables.

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
# This file in Locust's folder tells why Locust ended the run. It also has the exit code.
FAILURE_FILE = "failure.json"
_BARE = Path(__file__).with_name("bare_locust.py")
_LOCUSTFILE = Path(__file__).with_name("locustfile.py")
# Without -P, Locust would look for its imports in the folder of bare_locust.py first.
_LOCUST = (sys.executable, "-P", str(_BARE), "-f", str(_LOCUSTFILE))
_LOG_LINES = 12
# This environment variable names the socket that brings the plans of later runs.
SERIES_VARIABLE = "LOCKBENCH_SERIES"
# This message says that a run of a series has ended.
OVER = b"over\n"
# Workers of other hosts must connect within this time.
WORKERS_S = 300.0
_GROUP_ENDS_S = 3.0
_ERRORS = {
    kind.exit_code: kind for kind in (UsageError, EnvironmentNotReadyError, InconclusiveError)
}


def command_line(plan: Plan) -> list[str]:
    """Return the command that runs `plan`. The plan must have a workdir."""
    assert plan.workdir is not None
    users = plan.scenario.users
    processes = plan.scenario.processes
    words = [*_LOCUST, "--headless", "--only-summary"]
    words += ["-u", str(users), "-r", str(users), "--stop-timeout", f"{plan.grace_s:.0f}"]
    # Locust gets the file's name without a folder. An orphaned Locust may end after the clean-up.
    # If it had a path, it would create the folder again.
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
    """Start a Locust that works for the master at `host` and waits until this master exists. This
    Locust ends when this process ends.

    Locust logs to stderr. After Locust has received its plan, the file `note` contains `MORE` if
    another run may follow, or `LAST` if no other run follows.
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
    """Return the message that describes `error` to another process."""
    return {"sentence": str(error), "exit_code": error.exit_code}


def error_of(sentence: str, exit_code: int, **_more: object) -> BenchError:
    """Return the error that another process has described with `note_of`. The message may have more
    fields, because the other process may run another version of lockbench."""
    return _ERRORS.get(exit_code, EnvironmentNotReadyError)(sentence)


def note_failure(error: BenchError) -> None:
    """If `lockbench run` started this Locust, store `error` in a file that `lockbench run` reads.
    Only the first fault is stored."""
    if planned(os.environ):
        with contextlib.suppress(OSError), Path(FAILURE_FILE).open("x", encoding="utf-8") as file:
            json.dump(note_of(error), file)


class LocustProcess:
    """A running Locust with its workers. The owner of this object must call `close`."""

    def __init__(
        self,
        plan: Plan,
        environ: Mapping[str, str] = os.environ,
        *,
        folder: Path | None = None,
        channel: int | None = None,
    ) -> None:
        """Start Locust with the plan and return at once. Raises EnvironmentNotReadyError.

        `folder`: the folder in which Locust runs and keeps its log. If `folder` is None, Locust
        uses the plan's workdir. `channel`: a socket that brings the plans of later runs
        (series.py). If `channel` is None, this Locust process makes only one run.
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
                f"Locust cannot be started in {self._workdir}: {error.strerror}; check whether "
                "you may write to the folder"
            ) from error
        finally:
            os.close(text)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait at most `timeout_s` until Locust ends. If `timeout_s` is None, wait without a limit.

        Returns the exit code, or None if Locust still runs.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def interrupt(self) -> None:
        """Send Locust an interrupt. Locust then releases its locks, writes its last notes and
        exits."""
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End Locust if it still runs, and wait until no process of the group is left.

        If Locust itself has ended, this method gives Locust's workers 3 s to end. Then this method
        kills the whole process group. If Locust still runs, this method kills the group at once. A
        second call does nothing. Before a second call, the kernel may have given the id of the
        group to other processes.
        """
        if self._is_closed:
            return
        deadline_s = time.monotonic() + (_GROUP_ENDS_S if self._process.poll() is not None else 0.0)
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline_s:
                os.killpg(self._process.pid, 0)
                # Orphaned workers are not children of this process, so no system call can wait for
                # their end.
                time.sleep(0.01)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._is_closed = True

    def failure(self) -> BenchError | None:
        """Return the error that ended the run, or None if the run did not fail. Call this after
        Locust's end.

        The error contains the message that Locust stored. If Locust stored no message, the error
        contains the last lines of Locust's log.
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
        """Return the last lines of Locust's log."""
        text = (self._workdir / LOG_FILE).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip()] or ["(it said nothing)"]
        return "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])


class Load(Protocol):
    """The methods with which the leader of a run controls a running load."""

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait at most `timeout_s` until the load ends. Return the exit code of the load, or None
        if the load still runs."""

    def interrupt(self) -> None:
        """Send the load an interrupt, so that it releases its locks and ends."""

    def close(self) -> None:
        """End all processes of the load. A process may continue to run only if the next run of a
        series can use it."""

    def failure(self) -> BenchError | None:
        """Return the error that ended the load, or None if the load did not fail. Call this after
        the load's end."""

    def log_tail(self) -> str:
        """Return the last lines of the load's log."""


class LocustSeries:
    """A Locust process that makes many runs, one after the other. The owner of this object must
    call `close`.

    A Locust process needs two to five seconds to start and to end. A short probe of `lockbench
    capacity` takes less time. In a series, one Locust process keeps running, and each run is a new
    test inside this process. Each run has its own users, connections and record, so the judge
    treats it like any other run.
    """

    def __init__(self) -> None:
        self._guard = Guard(Path(tempfile.gettempdir()), "lockbench-series-")
        self._process: LocustProcess | None = None
        self._ours: socket.socket | None = None

    # When a new run starts, the Locust of the last run may have ended, may be about to quit, or may
    # end at this moment. The check before the send notices the first two cases. In the third case,
    # the send fails with a broken channel. This error is not a failure, and a new Locust starts.
    # The check alone is not enough, because it could send a plan to a Locust that no longer reads.
    def begin(self, plan: Plan, environ: Mapping[str, str] = os.environ) -> "SeriesRun":
        """Start the run of `plan` and return at once.

        If the present Locust process still works, it makes the run. Otherwise a new Locust process
        starts and makes the run. All plans of a series must have the same number of processes.
        Raises EnvironmentNotReadyError.
        """
        if self._process is not None and self._ours is not None and self._is_sound(self._process):
            # Locust may end at this moment. Then a new Locust starts.
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
        """End Locust. Between two runs, Locust holds no locks, so this method releases none."""
        self._end()
        self._guard.close()

    @staticmethod
    def _is_sound(process: LocustProcess) -> bool:
        """Return whether this Locust can make another run.

        If this Locust has reported a failure, it will soon quit, so the result is False.
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
    """One run of a series. This class has the same methods as `LocustProcess`."""

    def __init__(self, process: LocustProcess, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._is_over = False
        self._is_interrupted = False

    # If the channel is readable, either the run is over, or Locust has died and its end of the
    # channel is closed. `recv` distinguishes the two cases, because a closed channel gives no
    # bytes. The exit code of a dead process may arrive a moment later, so this method waits up to a
    # second for it. Without that wait, a dead Locust could count as running until the next check.
    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait at most `timeout_s` until this run or Locust ends.

        Returns 0 if the run has ended. If Locust has ended, this method returns Locust's exit code.
        If neither the run nor Locust has ended, this method returns None.
        """
        readable, _, _ = select.select([self._channel], [], [], timeout_s)
        # If Locust dies before it has read a plan, the connection is reset.
        with contextlib.suppress(ConnectionError):
            self._is_over = bool(readable and self._channel.recv(len(OVER)))
        if self._is_over:
            return 0
        return self._process.wait(1.0 if readable else 0)

    def close(self) -> None:
        """End Locust if the run has not ended, or if it was interrupted.

        If the run has ended without an interrupt, Locust keeps running, so that the next run can
        use it.
        """
        if not self._is_over or self._is_interrupted:
            self._process.close()

    def interrupt(self) -> None:
        """Send Locust an interrupt that ends this Locust process. The next run needs a new Locust
        process."""
        self._is_interrupted = True
        self._process.interrupt()

    def failure(self) -> BenchError | None:
        """Return the error that ended the run, or None if the run did not fail.

        Call this after the end of the run or of Locust.
        """
        return self._process.failure()

    def log_tail(self) -> str:
        """Return the last lines of Locust's log."""
        return self._process.log_tail()
