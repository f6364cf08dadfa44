"""A change that undoes itself: *a command that changes something and waits → the change; we let go or die → undone*.

Rules: the command undoes its change at the end of its standard input, which is a pipe that only this process holds. So
the change ends by `release()` and by any death of ours, `kill -9` included. It runs in a session of its own: Ctrl-C
does not reach it. Source: pipe(7).
"""

import subprocess
from collections.abc import Sequence

from bench.errors import EnvironmentNotReadyError

_END_S = 5.0


class Leash:
    """One such command, holding its change. Made only once the change is there."""

    def __init__(self, command: Sequence[str], *, ready: str, say: str = "") -> None:
        """Start `command`, send it the text `say`, and wait for a line that starts with `ready`.

        Raises EnvironmentNotReadyError, with what it said instead, when it ends or says anything else first.
        """
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )
        except OSError as error:
            raise EnvironmentNotReadyError(f"{command[0]} cannot be run: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(say)
            self._process.stdin.flush()
            answer = self._process.stdout.readline().strip()
        except OSError:
            answer = ""
        except BaseException:
            self.release()
            raise
        if not answer.startswith(ready):
            self.release()
            raise EnvironmentNotReadyError(f"{command[0]} failed: {answer or 'it ended without a word'}")

    def release(self) -> None:
        """Let go and wait until the command has undone its change and ended. More than once is fine."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except OSError:  # it ended before it read everything
                    continue
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
