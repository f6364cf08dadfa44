"""This module runs a command that makes a change and later undoes the change: *a command → a
temporary change; the end of this process → the change is undone*."""

from collections.abc import Sequence
from contextlib import suppress

from bench.errors import EnvironmentNotReadyError
from bench.topology.child import Child

_UNDO_S = 5.0


# Another process undoes the change, because our code cannot run after a `kill -9`. The command
# holds the change while its stdin is open. When this process ends in any way, the kernel closes the
# pipe, and the command undoes the change. A `finally` works only if this process ends in order.
# After a kill, an nft rule or a stopped worker would remain.
class Leash:
    """A command that makes a change, keeps the change until `release`, and then undoes the change.

    When the constructor returns, the change is in effect.
    """

    def __init__(self, command: str | Sequence[str], *, ready: str, say: str = "") -> None:
        """Start `command`, write the text `say` to its stdin, and wait for an output line that
        begins with `ready`.

        Raises EnvironmentNotReadyError.
        """
        name = command if isinstance(command, str) else command[0]
        answer = ""
        self._child = Child(name, command)
        try:
            # The command's output explains more than its exit code.
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
        """Let the command undo its change, and wait until the command has ended.

        You may call this method more than once.
        """
        self._child.finish(_UNDO_S)
        self._child.close()
