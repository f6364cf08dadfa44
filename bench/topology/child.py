"""A process of our own that obeys: *a module, then orders and answers as lines of JSON → its end,
and why it ended*.

    with Child("the load process", "bench.….load_process") as child:      here
        child.tell(order)
        answer = child.hear(Answer, patience_s=5)
    for order in orders(Order):                                           there
        say(answer_to(order))

Rules: orders come by pipe, never on a command line: they may hold passwords. In a session of its
own, so Ctrl-C does not reach it; it ends when its stdin does, and `die_with_parent` ends it even
while it is busy. The kernel's signal is tied to the *thread* that made the process, and cleared by
a fork, so each process asks for itself. A request that Ctrl-C interrupted leaves an answer behind,
which is dropped. Only the process that made a servant closes it; a forked child's copy does
nothing. Source: pipe(7); prctl(2), PR_SET_PDEATHSIG.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from bench.errors import EnvironmentNotReadyError
from bench.measure.section import decoded

Message = TypeVar("Message")
END_S = 2.0
# the process that started this one
PARENT_VARIABLE = "LOCKBENCH_PARENT"
_UNDO_S = 5.0
_ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1


class Child:
    """A started process, `name`d as complaints say it.

    A context manager: at its end the process is gone.
    """

    def __init__(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        environ: Mapping[str, str] | None = None,
        folder: Path = _ROOT,
    ) -> None:
        """Start `command`, a module of ours or the words of a command line.

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
        """Whether it has ended."""
        return self.process.poll() is not None

    def write(self, text: str) -> None:
        """Send `text`. Raises EnvironmentNotReadyError when it has ended."""
        left = memoryview(text.encode())
        try:
            while left:
                left = left[self._stdin.write(left) or 0 :]
        except OSError:
            raise self.failure() from None

    # `select` sees what is in the pipe and not what a Python buffer holds. So the pipe is opened
    # without a buffer, and `_heard` keeps what was read beyond a line. With a buffered `readline` a
    # second answer could already be in the buffer while `select` waits for it in vain.
    def read_line(self, patience_s: float | None = None) -> str:
        """Return its next line, waited for up to `patience_s` (None: without end).

        Raises EnvironmentNotReadyError.
        """
        deadline_s = time.monotonic() + (patience_s or 0.0)
        while b"\n" not in self._heard:
            left_s = None if patience_s is None else max(0.0, deadline_s - time.monotonic())
            if not select.select([self._stdout], [], [], left_s)[0]:
                raise EnvironmentNotReadyError(
                    f"{self.name} gave no answer for {patience_s:.0f} s; ask for less"
                )
            if not (chunk := self._stdout.read(1 << 20)):
                raise self.failure()
            self._heard += chunk
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode(errors="replace")

    def tell(self, message: object) -> None:
        """Send a message, as `orders` reads it. Raises EnvironmentNotReadyError."""
        self.write(_line(message))

    def hear(self, kind: type[Message], patience_s: float | None = None) -> Message:
        """Return what it `say`s next.

        Raises EnvironmentNotReadyError when that is no `kind`, late, or its end.
        """
        try:
            return decoded(self.read_line(patience_s), kind)
        except msgspec.DecodeError:
            raise self.failure() from None

    # The child's stderr is a file and no pipe, because a full pipe that nobody reads would stop the
    # child. Parent and child share one position in that file. `pread` leaves the position alone.
    # After a `seek` and a `read` the child would write wherever the parent stopped reading.
    def last_words(self) -> list[str]:
        """The lines it wrote on stderr so far."""
        output = os.pread(self._errors.fileno(), os.fstat(self._errors.fileno()).st_size, 0)
        return output.decode(errors="replace").strip().splitlines()

    def failure(self) -> EnvironmentNotReadyError:
        """Why it has ended, or said what makes no sense; waits a moment for its end."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        code = self.process.returncode
        lines = self.last_words()
        how = f"signal {-code}" if code and code < 0 else f"exit code {code}"
        return EnvironmentNotReadyError(
            f"{self.name} ended early ({f'it said: {lines[-1]}' if lines else how})"
        )

    def leave(self) -> None:
        """Close its stdin, as the end of this process would."""
        with suppress(OSError):
            self._stdin.close()

    def finish(self, patience_s: float = END_S) -> None:
        """Leave it and wait for its end; it is killed when that does not come.

        More than once is fine.
        """
        self.leave()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stdout.close()

    def close(self) -> None:
        """Have it end at once, as our own end would: SIGTERM, and SIGKILL when that takes too
        long."""
        if self._errors.closed:
            return
        self.process.terminate()
        self.finish()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


# The change is undone by the end of another process, never by code of ours, because `kill -9`
# leaves us no code to run. The command holds the change while its stdin is open. The kernel closes
# the pipe when we end, however that happens. Then the command undoes the change. `finally` would be
# enough only for an orderly end. After any other, a rule of nft or a stopped worker would stay.
class Leash:
    """A command that holds a change until it is released, and undoes it then.

    Made only once the change is there.
    """

    def __init__(self, command: str | Sequence[str], *, ready: str, say: str = "") -> None:
        """Start `command`, send it `say`, and wait for a line that begins `ready`.

        Raises EnvironmentNotReadyError.
        """
        name = command if isinstance(command, str) else command[0]
        answer = ""
        self._child = Child(name, command)
        try:
            # What the command wrote says more than how it ended.
            with suppress(EnvironmentNotReadyError):
                self._child.write(say)
                answer = self._child.read_line()
            complaints = self._child.last_words()
            if complaints or not answer.startswith(ready):
                texts = (*complaints, answer, "it ended without a word")
                raise EnvironmentNotReadyError(f"{name} failed: {next(filter(None, texts))}")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let go and wait until the command has undone its change and ended.

        More than once is fine.
        """
        self._child.finish(_UNDO_S)
        self._child.close()


def _line(message: object) -> str:
    # a Path
    return msgspec.json.encode(message, enc_hook=str).decode() + "\n"


# The kernel's signal comes only for a parent that dies after `prctl`. One that died before is not
# noticed. So the parent is compared afterwards, and the process ends itself if it is another one.
# The expected pid comes from the parent, by the environment. `getppid` here would name whoever has
# adopted an orphan, and that would look right.
def die_with_parent(parent_pid: int | None = None) -> None:
    """Have this process ended when its parent ends; at once if it has.

    `parent_pid`: None = whoever started it.
    """
    parent_pid = parent_pid or int(os.environ.get(PARENT_VARIABLE, os.getppid()))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGTERM)


def orders(kind: type[Message]) -> Iterator[Message]:
    """Yield the messages on stdin until its end. This process ends with its parent from now on."""
    die_with_parent()
    for line in sys.stdin:
        # a Path
        yield decoded(line, kind, lambda part, value: part(value))


def say(message: object) -> None:
    """Answer the parent."""
    sys.stdout.write(_line(message))
    sys.stdout.flush()


_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server as its guard sees it: `exit_code` is None while it lives and minus the signal that
    killed it."""

    exit_code: int | None
    stopped: bool


class Answer(msgspec.Struct):
    """What a servant says; `id`: of the request that it answers, 0 for its first words."""

    id: int
    folder: str = ""
    pid: int = 0
    states: dict[int, ServerState] = msgspec.field(default_factory=dict)
    ports: tuple[int, ...] = ()
    error: str = ""


class Servant(Child):
    """A script that answers numbered requests; `hello`: what it said first.

    Safe to use from several threads.
    """

    def __init__(self, script: str, *words: str) -> None:
        """Start `script`. Raises EnvironmentNotReadyError."""
        path = Path(__file__).with_name(f"{script.replace(' ', '_')}.py")
        super().__init__(script, [sys.executable, "-I", "-S", str(path), *words])
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._asked = 0
        try:
            self.hello = self.hear(Answer, _ANSWER_S)
        except BaseException:
            self.close()
            raise

    def ask(self, **request: object) -> Answer:
        """Return the answer.

        Raises EnvironmentNotReadyError when it has ended or could not do it.
        """
        with self._lock:
            self._asked += 1
            try:
                self.tell({"id": self._asked, **request})
                while (answer := self.hear(Answer, _ANSWER_S)).id != self._asked:
                    pass
            except (EnvironmentNotReadyError, ValueError) as error:
                # ValueError: it was closed
                what = f"the fleet is closed, or its {self.name} was killed: start it again"
                raise EnvironmentNotReadyError(what) from error
        if answer.error:
            raise EnvironmentNotReadyError(
                f"the fleet's guard could not {request['do']} a server: {answer.error}"
            )
        return answer

    def close(self) -> None:
        """Have it end; returns when it has. More than once is fine."""
        if os.getpid() == self._owner:
            self.finish(_ANSWER_S)
            super().close()


class Guard(Servant):
    """Owns a private folder and the servers started in it; both end with this object's process,
    however that ends."""

    def __init__(self, temp_root: Path, prefix: str = "lockbench-fleet-") -> None:
        """Start the guard with a fresh folder `prefix`… (0700) in `temp_root`.

        Raises EnvironmentNotReadyError.
        """
        self.folder = Path(os.devnull)
        super().__init__("guard process", str(os.getpid()), str(temp_root), prefix)
        if wrong := self.hello.error:
            self.close()
            raise EnvironmentNotReadyError(
                f"no private folder can be made in {temp_root}: {wrong}; name another "
                "(TMPDIR, --disk)"
            )
        self.folder = Path(self.hello.folder)

    def start(
        self, index: int, argv: Sequence[str], folder: Path, log: Path, env: Mapping[str, str]
    ) -> int:
        """Start a server in `folder`, output appended to `log`, `env` on top of our environment;
        return its pid."""
        return self.ask(do="start", index=index, argv=argv, cwd=folder, log=log, env=env).pid

    def signal(self, index: int, number: signal.Signals) -> None:
        """Send a signal to server `index` and its children; none if it has ended.

        Does not wait for the effect.
        """
        self.ask(do="signal", index=index, signal=int(number))

    def adopt(self, pid: int) -> None:
        """Kill this process, too, when all ends: one that stands still does not see that its parent
        is gone."""
        self.ask(do="adopt", pid=pid)

    def states(self) -> dict[int, ServerState]:
        """What every started server does now."""
        return self.ask(do="states").states

    def leave_folder(self) -> None:
        """End the guard alone: its folder stays."""
        self.process.kill()
        super().close()

    def close(self) -> None:
        """Kill all servers and remove the folder; returns when both are gone.

        More than once is fine.
        """
        super().close()
        if os.getpid() == self._owner:
            # already gone, unless the guard was killed
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Shape:
    """A link as it shall be: chunks of the directions `slow` ("to", "from" the instance) are due
    after `delay_s` plus U(0, `jitter_s`); the directions `held` hand over nothing until healed;
    `reset`: every connection ends with RST."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    slow: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    reset: bool = False


class Proxies(Servant):
    """One proxy before each of some loopback ports, in a process of their own; `ports` are
    theirs."""

    def __init__(self, ports: Sequence[int], seed: int = 0) -> None:
        """Stand before these ports. `seed` drives the jitter. Raises EnvironmentNotReadyError."""
        super().__init__("proxy process", str(seed), *map(str, ports))
        self.ports = self.hello.ports

    def shape(self, index: int, shape: Shape) -> None:
        """Have the link to instance `index` be like this from now on; returns when it is."""
        self.ask(index=index, **asdict(shape))
