"""The judge of a run that plain Locust leads: *a plan → a judge's process, there before the load →
its verdict*.

Rules: what the servers did counts from before the first command, so a run begins when its judge is
ready. Locust's own process judges nothing: a history of millions would stop its greenlets. Without
a judge a run is as good as any other, and its verdict is UNKNOWN. Orders hold passwords, and go by
pipe.
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
    """What the judge is told first: the `plan` as JSON, the run's `workdir`, the `command` without
    secrets, and the `folder` where the result goes."""

    plan: str
    workdir: Path
    command: tuple[str, ...]
    folder: Path | None


# its first word, and its answer to an order: it has asked the servers what they have done so far
READY = "ready"


@dataclass(frozen=True, slots=True)
class ToldVerdict:
    """The verdict: its word and colour, one line, and the page of the whole result, or why that is
    `unstored`."""

    word: str
    colour: str
    headline: str
    exit_code: int
    page: str | None = None
    unstored: str = ""


class JudgeBeside:
    """Beside one run at most: `begin` with it, `judge` once it has ended, or `close`. Made early:
    it takes a second to be there, and Locust's run time does not wait. Without one the verdict is
    UNKNOWN."""

    def __init__(self) -> None:
        self._parts = ExitStack()
        self._child: Child | None = None
        self._workdir: Path | None = None
        # there is no verdict
        self._why = ""
        with self._noted():
            self._child = self._parts.enter_context(Child("the judge", "bench.run.beside"))
            self._child.hear(str, READY_S)

    def begin(self, plan: Plan, folder: Path | None) -> Path | None:
        """The folder of the run of `plan`, which begins; None if nobody judges it.

        `folder`: for the result.
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
        """The verdict on the run, all of which is in its folder.

        `stop_ns`: when the load was to end (monotonic).
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
        """The run is over, and its folder goes."""
        self._parts.close()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except BenchError as error:
            self._why = str(error)
