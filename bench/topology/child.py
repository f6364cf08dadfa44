"""A child process that carries out orders: *a module and orders → answers, and the reason for the
end of the process*. Orders and answers are lines of JSON.

    with Child("the load process", "bench.….load_process") as child:      here
        child.tell(order)
        answer = child.hear(Answer, patience_s=5)
    for order in orders(Order):                                           there
        say(answer_to(order))

Rules: orders are sent through a pipe and never on a command line, because orders may hold
passwords. The process has its own session, so Ctrl-C does not reach the process. The process ends
when its stdin ends. `die_with_parent` ends the process even while it is busy. The kernel sends the
death signal when the *thread* that started the process ends. A forked process does not inherit its
parent's request for the death signal. So each process must request its own death signal.

Source: pipe(7); prctl(2), PR_SET_PDEATHSIG.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec
import psutil

from bench.errors import EnvironmentNotReadyError
from bench.measure.section import decoded

Message = TypeVar("Message")
END_S = 2.0
# The environment variable with the pid of the process that started this one.
PARENT_VARIABLE = "LOCKBENCH_PARENT"
_ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1


def is_alive(pid: int) -> bool:
    """Return True if process `pid` exists and has not ended. A process that sleeps or is stopped
    also counts as alive."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Child:
    """A started process. `name`: the name of the process in messages to the user.

    The object is a context manager. The process has ended when the `with` block ends.
    """

    # The user gets this advice if the process does not answer in time.
    IF_LATE = "ask for less"
    # A line that is longer than this has no end.
    LONGEST_LINE = 1 << 30

    def __init__(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        folder: Path = _ROOT,
    ) -> None:
        """Start `command`.

        If `command` is a str, it is the name of a module of lockbench. If `command` is a sequence,
        it is a command line, and each item is one argument.

        Raises EnvironmentNotReadyError.
        """
        words = [sys.executable, "-m", command] if isinstance(command, str) else list(command)
        self.name = name
        self._heard = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process is gone
        environ = {
            **(os.environ if environ is None else environ),
            PARENT_VARIABLE: str(os.getpid()),
        }
        try:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environ,
                cwd=folder,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._errors.close()
            raise EnvironmentNotReadyError(
                f"{name} cannot be started ({words[0]}: {error.strerror})"
            ) from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin = self.process.stdin
        self._stdout = self.process.stdout

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self.process.poll() is not None

    def write(self, text: str) -> None:
        """Send `text`. Raises EnvironmentNotReadyError if the process has ended."""
        left = memoryview(text.encode())
        try:
            while left:
                left = left[self._stdin.write(left) or 0 :]
        except OSError:
            raise self.failure() from None

    # `select` sees the bytes in the pipe, but no bytes in a Python buffer. So the pipe is opened
    # without a buffer, and `_heard` keeps the bytes that were read beyond a line. With a buffered
    # `readline`, a second answer could already be in the buffer, and `select` would wait for this
    # answer in vain.
    def read_line(self, patience_s: float | None = None) -> str:
        """Return the next line that the process writes.

        Wait at most `patience_s` for the line. If `patience_s` is None, wait without a limit.

        Raises EnvironmentNotReadyError.
        """
        deadline_s = time.monotonic() + (patience_s or 0.0)
        while b"\n" not in self._heard:
            left_s = None if patience_s is None else max(0.0, deadline_s - time.monotonic())
            # After the deadline, a process that never ends its line is late, too.
            is_late = left_s == 0.0 and bool(self._heard)
            if is_late or not self.has_written(left_s):
                raise EnvironmentNotReadyError(
                    f"{self.name} did not answer for {patience_s:.0f} s; {self.IF_LATE}"
                )
            if not (chunk := self._stdout.read(1 << 20)):
                raise self.failure()
            self._heard += chunk
            if b"\n" not in chunk and len(self._heard) > self.LONGEST_LINE:
                raise EnvironmentNotReadyError(
                    f"{self.name} wrote {len(self._heard):,} bytes without the end of a line; "
                    f"{self.IF_LATE}"
                )
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode(errors="replace")

    def has_written(self, patience_s: float | None) -> bool:
        """Return True if the process writes something or ends within `patience_s`. If `patience_s`
        is None, wait without a limit."""
        return bool(select.select([self._stdout], [], [], patience_s)[0])

    def tell(self, message: object) -> None:
        """Send a message in the format that `orders` reads. Raises EnvironmentNotReadyError."""
        self.write(_line(message))

    def hear(self, kind: type[Message], patience_s: float | None = None) -> Message:
        """Return the next message that the process sent with `say`.

        Raises EnvironmentNotReadyError if the message is late, if its type is not `kind`, or if the
        process ends.
        """
        try:
            return decoded(self.read_line(patience_s), kind)
        except msgspec.DecodeError:
            raise self.failure() from None

    # The child's stderr is a file. A full pipe that nobody reads would stop the child. Parent and
    # child share one position in that file. `pread` does not move the position. If the parent used
    # `seek` and `read` instead, the child would continue to write where the parent stopped reading.
    def last_words(self) -> list[str]:
        """Return the lines that the process wrote on stderr so far."""
        output = os.pread(self._errors.fileno(), os.fstat(self._errors.fileno()).st_size, 0)
        return output.decode(errors="replace").strip().splitlines()

    def failure(self) -> EnvironmentNotReadyError:
        """Wait a moment until the process has ended. Return an error with the reason for the end of
        the process."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        code = self.process.returncode
        lines = self.last_words()
        # Some programs print their version in the last line, and the error some lines before.
        named = [line for line in lines if "Error" in line] or lines
        how = f"signal {-code}" if code and code < 0 else f"exit code {code}"
        return EnvironmentNotReadyError(
            f"{self.name} ended early ({f'its log says: {named[-1]}' if named else how})"
        )

    def leave(self) -> None:
        """Close the stdin of the process. When our own process ends, the kernel closes this stdin,
        too."""
        with suppress(OSError):
            self._stdin.close()

    def finish(self, patience_s: float = END_S) -> None:
        """Close the stdin of the process and wait until the process ends. Kill the process if it
        does not end in time.

        The method may be called more than once.
        """
        self.leave()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stdout.close()

    def close(self) -> None:
        """End the process at once with SIGTERM. If the process does not end in time, kill it with
        SIGKILL."""
        if self._errors.closed:
            return
        self.process.terminate()
        self.finish()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def _line(message: object) -> str:
    # `enc_hook` turns a Path into a string.
    return msgspec.json.encode(message, enc_hook=str).decode() + "\n"


# The kernel sends the signal only if the parent dies after `prctl`. If the parent has died earlier,
# no signal comes. So after `prctl`, this process reads the pid of its parent. It ends itself if
# this pid is not the expected pid. The expected pid comes from the parent, in an environment
# variable. The expected pid cannot come from `getppid` in this process. If this process were
# already an orphan, `getppid` would return the process that adopted it.
def die_with_parent(parent_pid: int | None = None) -> None:
    """Make this process end when its parent ends. If the parent has ended already, end this process
    at once.

    `parent_pid`: the parent (None: the process that started this process).
    """
    parent_pid = parent_pid or int(os.environ.get(PARENT_VARIABLE, os.getppid()))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGTERM)


def orders(kind: type[Message]) -> Iterator[Message]:
    """Yield the messages on stdin until stdin ends. From now on, this process ends when its parent
    ends."""
    die_with_parent()
    for line in sys.stdin:
        # The third argument turns a string into a Path.
        yield decoded(line, kind, lambda part, value: part(value))


def say(message: object) -> None:
    """Send an answer to the parent."""
    sys.stdout.write(_line(message))
    sys.stdout.flush()
