"""This module starts the judge of a run that plain `locust` leads: *a plan → a judge process that
starts before the load → a verdict*.

Rules
- The judge must read the servers' command counts before the first command of the run. So a run
  waits until its judge is ready.
- Locust's own process does not judge, because judging millions of operations would stop its
  greenlets.
- Without a judge, the run continues as usual, and its verdict is UNKNOWN.
- Orders to the judge contain passwords, so they go through a pipe.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.errors import BenchError
from bench.measure.verdict import Kind
from bench.topology.child import Child
from bench.topology.servants import Guard
from bench.workloads.plan import Plan
from lockcore.bench import masked_command

READY_S = 20.0
JUDGE_S = 120.0


@dataclass(frozen=True, slots=True)
class JudgeOrder:
    """The first message to the judge.

    `plan`: the plan as JSON. `workdir`: the folder of the run. `command`: the command line without
    secrets. `folder`: the folder for the result.
    """

    plan: str
    workdir: Path
    command: tuple[str, ...]
    folder: Path | None


# The judge sends this message twice: when it has started, and when it has received an order and
# read the servers' counts.
READY = "ready"


@dataclass(frozen=True, slots=True)
class ToldVerdict:
    """The message in which the judge reports its verdict. The message contains a word, a colour and
    one line of text.

    `page`: the path of the page with the whole result, or None if no page was stored. `unstored`:
    the reason why no page was stored.
    """

    word: str
    colour: str
    headline: str
    exit_code: int
    page: str | None = None
    unstored: str = ""


class JudgeBeside:
    """A judge process for at most one run.

    Call `begin` when the run starts. After the run, call `judge` or `close`. Create this object
    early, because the judge process needs a second to start. Locust's run time does not wait for
    the judge process. If the judge process cannot start, the verdict is UNKNOWN.
    """

    def __init__(self) -> None:
        self._parts = ExitStack()
        self._child: Child | None = None
        self._workdir: Path | None = None
        # The reason why there is no verdict, or "".
        self._why = ""
        with self._noted():
            self._child = self._parts.enter_context(Child("the judge", "bench.run.beside"))
            self._child.hear(str, READY_S)

    def begin(self, plan: Plan, folder: Path | None) -> Path | None:
        """Tell the judge process to judge the run of `plan`. Returns the folder of the run, or None
        if there is no judge process.

        `folder`: the folder for the result.
        """
        with self._noted():
            if self._child is not None:
                guard = self._parts.enter_context(
                    Guard(Path(tempfile.gettempdir()), "lockbench-run-")
                )
                command = tuple(masked_command(["locust", *sys.argv[1:]]))
                self._child.tell(JudgeOrder(plan.text.decode(), guard.folder, command, folder))
                self._child.hear(str, READY_S)
                self._workdir = guard.folder
        return self._workdir

    def judge(self, stop_ns: int) -> ToldVerdict:
        """Return the verdict on the run. Before the call, all files of the run must be in its
        folder.

        `stop_ns`: the planned end of the load (monotonic).
        """
        verdict = ToldVerdict("UNKNOWN", Kind.UNKNOWN.value, "nobody has judged this run", 0)
        with self._noted():
            if self._child is not None and self._workdir is not None:
                self._child.tell(stop_ns)
                verdict = self._child.hear(ToldVerdict, JUDGE_S)
        self.close()
        return (
            replace(verdict, headline=f"{verdict.headline}: {self._why}") if self._why else verdict
        )

    def close(self) -> None:
        """End the judge and remove the folder of the run."""
        self._parts.close()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except BenchError as error:
            self._why = str(error)
