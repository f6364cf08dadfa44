"""Shows the progress of a run or of an experiment in a few lines on stderr.

On a terminal the lines are redrawn in place, and long lines are wrapped. Without a terminal, a run
prints a plain line every few seconds. An experiment reports its progress as a text such as
`schedule: row 3 of 64`. The word before the colon names the current part of the experiment. Without
a terminal, lockbench prints one line for each part. With --quiet, lockbench prints no lines.
"""

import sys
import textwrap
from collections.abc import Iterator
from typing import Self, TextIO

from rich.live import Live
from rich.text import Text

from bench.report.figures import count, latency, percent
from bench.run.follower import RunProgress
from bench.screen import clean, console_on, fit

PLAIN_EVERY_S = 5.0
_GAP = "  "


class ProgressLine:
    """The display of progress. A caller calls this object with the current progress.

    The object is a context manager. At the end of the context, it restores the terminal.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        """Make a display on `stream`. If `stream` is None, use stderr.

        If `stream` is a terminal, the lines are redrawn. If `quiet` is true, the display shows
        nothing.
        """
        self._console = console_on(stream or sys.stderr)
        self._quiet = quiet
        redraws = self._console.is_terminal and not quiet
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=True) if redraws else None
        )
        # The phase or part that was shown last, and when it was shown.
        self._shown = "", 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, now: RunProgress | str) -> None:
        """Show the current progress.

        Without a terminal, show the progress only if the phase has changed, if the part has
        changed, or if a few seconds have passed.
        """
        if self._quiet:
            return
        if self._live:
            lines = [now] if isinstance(now, str) else block(now, self._console.width).split("\n")
            text = Text("\n".join(self._fit(line) for line in lines))
            text.highlight_regex(r"VIOLATED.*", "bold red")
            self._live.update(text, refresh=True)
            return
        part, elapsed_s = (
            (now.partition(":")[0], 0.0) if isinstance(now, str) else (now.phase, now.elapsed_s)
        )
        last_part, last_s = self._shown
        if part != last_part or elapsed_s - last_s >= PLAIN_EVERY_S:
            self._shown = part, elapsed_s
            print(
                self._fit(now if isinstance(now, str) else progress_line(now)),
                file=self._console.file,
                flush=True,
            )

    def _fit(self, line: str) -> str:
        return fit(clean(line), self._console.encoding)


def progress_line(progress: RunProgress) -> str:
    """Return all items of the progress in one line of any length."""
    return _GAP.join(item for items in _lines(progress) for item in items)


def block(progress: RunProgress, width: int) -> str:
    """Return all items of the progress as lines for a terminal of `width` columns.

    The first line has the phase, the time and the rate. The second line has latencies and outcomes.
    The third line has the health of the run. If a line is too long, the method wraps the line. It
    never splits an item that fits into a line. `width` may be 0, because some terminals report no
    width.
    """
    whole = (_GAP.join(item.replace(" ", "\u00a0") for item in items) for items in _lines(progress))
    return "\n".join(
        line for text in whole for line in textwrap.wrap(text, max(width, 20))
    ).replace("\u00a0", " ")


def _lines(progress: RunProgress) -> list[list[str]]:
    """Return the items of the progress, as a list for each line."""
    if progress.phase == "starting":
        return [["starting users"]]
    outcomes = [
        f"{name.replace('_', ' ')} {count(number)}"
        for name, number in progress.outcomes.items()
        if name != "none"
    ]
    times = f"{progress.phase} {progress.elapsed_s:.0f} s, {progress.remaining_s:.0f} s left"
    return [
        [times, f"{count(progress.acquires_per_s)} acquires/s"],
        [f"p50 {latency(progress.p50_s)}", f"p99 {latency(progress.p99_s)}", *outcomes],
        [*_health(progress)],
    ]


def _health(progress: RunProgress) -> Iterator[str]:
    """Yield the items of the progress that describe the health of the run.

    The items show the violations that the live oracle has found, the current faults, and the state
    of the load generator. One item for each instance in trouble shows the state and the errors of
    this instance. The oracle reports each violation at once. It never reports SAFE before the end
    of the run.
    """
    safety = progress.safety
    if safety.violations:
        violations = (
            f"{count(number)} × {kind.replace('_', ' ')}"
            for kind, number in safety.violations.items()
        )
        yield f"VIOLATED {', '.join(violations)}"
    elif safety.verdict == "UNKNOWN":
        yield "safety is known only at the end"
    elif safety.leases:
        yield f"0 violations in {count(safety.leases)} leases"
    yield from (f"fault {fault}" for fault in progress.faults)
    if progress.cpu_ratio is not None:
        yield f"generator CPU {percent(progress.cpu_ratio, 0)}"
    if progress.lag_p99_s is not None:
        yield f"lag p99 {latency(progress.lag_p99_s)}"
    if progress.late_starts:
        yield f"late starts {count(progress.late_starts)}"
    for index, (state, errors) in progress.troubles.items():
        yield f"#{index} {state}" + (f" {count(errors)} errors" if errors else "")
