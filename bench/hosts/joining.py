"""Lets a worker process join its leader. The worker waits until a leader answers. Then it starts
Locust, and at the end it returns Locust's exit code.

Without a leader, Locust would try to connect for five minutes and print many lines. The worker ends
when it receives a signal, or if no leader gives it a run in time.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.screen import note

PORT = 5557
# This variable names a file. The worker writes MORE into it if another run may follow, or LAST.
NOTE_VARIABLE = "LOCKBENCH_WORKER_NOTE"
MORE = "more"
LAST = "last"
_LOOK_S = 0.2
_CONNECT_S = 2.0
# Locust speaks ZeroMQ, and every ZeroMQ connection begins with these bytes (ZMTP 3, 2.2).
_GREETING = re.compile(rb"\xff.{8}\x7f", re.DOTALL)
_GREETING_BYTES = 10
Address = tuple[str, int]
# Returns how many signals have asked this process to end.
Count = Callable[[], int]


def address(text: str) -> Address:
    """Parse HOST, HOST:PORT or [HOST]:PORT. Raises ValueError."""
    match = re.fullmatch(r"(\[[^\]]+\]|[^:\s/]+)(?::(\d{1,5}))?", text)
    if match is None or not 0 < int(match[2] or PORT) < 65_536:
        raise ValueError(f"{text!r} is not an address; write HOST or HOST:PORT")
    return match[1].strip("[]"), int(match[2] or PORT)


def own_address(host: str, port: int) -> str:
    """Return the address from which this host would send to `host`, or "" if the address is
    unknown.

    This function does not send any packet to `host`.
    """
    with suppress(OSError):
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    return ""


def require_free(host: str, port: int) -> None:
    """Raise EnvironmentNotReadyError if a leader cannot wait for workers at this address.

    If `host` is "*", the function checks all addresses of this host.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server(("" if host == "*" else host, port), family=family).close()
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]
        raise EnvironmentNotReadyError(
            f"workers cannot join at {host}:{port} ({why}); set --bind to an address of this host "
            "and a free port"
        ) from None


def require_host(host: str, port: int) -> None:
    """Raise EnvironmentNotReadyError if the name of the host cannot be resolved."""
    try:
        socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        # DNS allows at most 63 letters in a label. For a longer label Python raises a UnicodeError,
        # which has no strerror.
        why = getattr(error, "strerror", None) or "it is no name"
        raise EnvironmentNotReadyError(
            f"the leading host {host} cannot be found ({why}); set --master to its address, or to "
            "a name that this host can resolve"
        ) from None


def await_leader(master: Address, wait_s: float, signals: Count) -> None:
    """Wait until a leader answers or a signal arrives.

    Raises EnvironmentNotReadyError if no leader answers within `wait_s`.
    """
    host, port = master
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    over_s = time.monotonic() + wait_s
    is_noted = False
    while not signals():
        absent = _absence(master)
        if not absent:
            return
        if time.monotonic() >= over_s:
            raise EnvironmentNotReadyError(
                f"no leader answers at {place} ({absent}; waited {wait_s:g} s); start lockbench "
                "run --expect-workers there, correct --master, or wait longer with --wait"
            )
        if not is_noted:
            note(f"lockbench: no leader answers at {place} yet ({absent}); waiting {wait_s:g} s")
            is_noted = True
        time.sleep(_LOOK_S)


def _absence(master: Address) -> str:
    """Return why there is no leader, or "" if there is one.

    A leader sends a greeting on each new connection.
    """
    heard = b""
    try:
        with socket.create_connection(master, _CONNECT_S) as connection, suppress(TimeoutError):
            while len(heard) < _GREETING_BYTES:
                data = connection.recv(_GREETING_BYTES - len(heard))
                if not data:
                    break
                heard += data
    except OSError as error:
        return (error.strerror or "nothing answers there").lower()
    return (
        ""
        if _GREETING.fullmatch(heard)
        else "another program listens there; it does not answer like a leader"
    )


def followed(
    process: subprocess.Popen[bytes], signals: Count, note_file: Path, over_s: float
) -> int:
    """Wait until a Locust process ends, and return its exit code.

    `over_s` is a deadline on the clock `time.monotonic`. If the leader has not given the process a
    run by this deadline, the function ends the process and returns 0. The process must have its own
    process group.
    """
    sent = 0
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
        is_alone = time.monotonic() > over_s and not note_file.exists()
        if signals() > sent or is_alone:
            with suppress(ProcessLookupError):
                # After SIGTERM Locust releases its locks. A second signal kills Locust.
                os.killpg(process.pid, signal.SIGKILL if sent else signal.SIGTERM)
            sent = signals()
            if is_alone and not sent:
                process.wait()
                return 0
    return process.returncode
