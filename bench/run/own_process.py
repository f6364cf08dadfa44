"""A second process for a lock of the user's own: *a function → the same function in a forked copy
of this process*.

A lock is a closure over a client, so it cannot be sent to a fresh interpreter; a fork takes it
along. A fork has traps, and each has a rule here:

- Sockets are shared by a fork: two processes that talk over one connection read each other's
  replies. In the copy every inherited connection to the servers is replaced by one that has ended,
  so a client connects anew or raises.
- Threads are not copied: fork before starting any. The copy never returns to its caller: it ends by
  `os._exit`.
- The copy dies with its parent (prctl(2), PR_SET_PDEATHSIG), and the parent kills it through a
  descriptor that names this process only (pidfd_open(2)). It ignores SIGINT: a Ctrl-C reaches both,
  and the parent ends both.
"""

import ctypes
import os
import signal
import socket
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, TypeAlias
from urllib.parse import urlsplit

from bench.errors import InconclusiveError

_PR_SET_PDEATHSIG = 1
Link: TypeAlias = "Connection[Any, Any]"


@contextmanager
def forked(work: Callable[[Link], object], urls: Sequence[str]) -> Iterator[Link]:
    """Run `work(link)` in a copy of this process, with connections of its own to the servers at
    `urls`.

    Yield this end of the link. What `work` returns arrives last, after what it sends. The copy has
    ended afterwards.
    """
    ours, theirs = Pipe()
    ports = {urlsplit(url).port for url in urls}
    parent_pid = os.getpid()
    libc = ctypes.CDLL(None)
    with warnings.catch_warnings():
        # Python 3.12: this process has threads, not of ours
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        ours.close()
        _be_the_copy(work, theirs, ports, parent_pid)
    descriptor = _watched(pid)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        _end(pid, descriptor)


def answer(link: Link, patience_s: float, what: str) -> Any:
    """What the copy sends next.

    Raises InconclusiveError when it says nothing for so long, fails, or ends.
    """
    try:
        if not link.poll(patience_s):
            raise InconclusiveError(f"the second process did not {what} within {patience_s:g} s")
        message = link.recv()
    except (EOFError, ConnectionError):
        raise InconclusiveError(f"the second process ended before it could {what}") from None
    if isinstance(message, _FailureMessage):
        raise InconclusiveError(f"the second process could not {what}: {message.text}")
    return message


def _watched(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        # forbidden here, or unknown to this kernel
        return None


def _end(pid: int, descriptor: int | None) -> None:
    """Kill the copy and wait for it. Its number alone is its own until somebody waits for it, which
    a program that ignores SIGCHLD leaves to the kernel: so the descriptor is better."""
    with suppress(ProcessLookupError):
        if descriptor is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    if descriptor is not None:
        os.close(descriptor)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


class _FailureMessage:
    """`work` raised."""

    def __init__(self, text: str) -> None:
        self.text = text


def _be_the_copy(
    work: Callable[[Link], object], link: Link, ports: Collection[int | None], parent_pid: int
) -> NoReturn:
    try:
        if os.getppid() != parent_pid:
            os._exit(1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _end_inherited(ports)
        link.send(work(link))
    except BaseException as error:  # noqa: BLE001 - nothing may return into the caller's frames
        with suppress(BaseException):
            link.send(_FailureMessage(traceback.format_exception_only(error)[-1].strip()))
    finally:
        os._exit(0)


def _end_inherited(ports: Collection[int | None]) -> None:
    """Replace every connection to one of these ports by one whose other end is closed.

    To close the descriptor would free its number for the next file, and a client that still uses it
    would write into that. To shut the connection down would shut it down for the parent, too.
    """
    for path in list(Path("/proc/self/fd").iterdir()):
        descriptor = int(path.name)
        if _port_of(descriptor) in ports:
            here, there = socket.socketpair()
            there.close()
            os.dup2(here.fileno(), descriptor, inheritable=False)
            here.close()


def _port_of(descriptor: int) -> int | None:
    """The port that this descriptor is connected to, on this host, if it is such a socket."""
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    with copy:
        try:
            peer = copy.getpeername()
        except OSError:
            return None
    is_local = isinstance(peer, tuple) and peer[0] in ("127.0.0.1", "::1")
    return int(peer[1]) if is_local else None
