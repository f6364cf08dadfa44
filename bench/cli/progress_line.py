"""The lines that show that work goes on: *a look at a run, or what is done now in words → a few lines on stderr*.

Rules: on a terminal lines redrawn in place, of which nothing is ever cut off; elsewhere of a run a plain line every few
seconds, of words such as `schedule: row 3 of 64` one line per part (`schedule`); quiet says nothing.
"""

import sys
from collections.abc import Iterator
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bench.report.figures import count, latency, percent
from bench.run.follow import Progress
from bench.safety.judge import LiveVerdict

PLAIN_EVERY_S = 5.0
_GAP = "  "


class ProgressLine:
    """Shows what it is called with; a context manager, because redrawn lines must be given back."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        """`quiet` shows nothing. `stream`: default stderr; whether it is a terminal decides how to show."""
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._quiet = quiet
        redraws = self._console.is_terminal and not quiet
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if redraws else None
        self._shown = "", 0.0  # phase or part, when

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, now: Progress | str) -> None:
        """Show what is so `now`; off a terminal only when the phase or part changes or a few seconds have passed."""
        if self._quiet:
            return
        if self._live:
            self._live.update(block(now, self._console.width), refresh=True)
            return
        part, elapsed_s = (now.partition(":")[0], 0.0) if isinstance(now, str) else (now.phase, now.elapsed_s)
        last_part, last_s = self._shown
        if part != last_part or elapsed_s - last_s >= PLAIN_EVERY_S:
            self._shown = part, elapsed_s
            print(now if isinstance(now, str) else progress_line(now), file=self._console.file, flush=True)


def progress_line(progress: Progress) -> str:
    """Return everything in one line, as long as it gets."""
    return _GAP.join(item.plain for items in _lines(progress) for item in items)


def block(now: Progress | str, width: int) -> Text:
    """Return the same for a terminal of `width` columns: phase and time, latency and outcomes, health and trouble."""
    if isinstance(now, str):
        return Text(now)
    return Text("\n").join(line for items in _lines(now) for line in _filled(items, width))


def _filled(items: list[Text], width: int) -> Iterator[Text]:
    """The items side by side, on as many lines as they need; no item is parted if it fits a line of its own."""
    line = Text()
    for item in items:
        if line and line.cell_len + len(_GAP) + item.cell_len > width:
            yield line
            line = Text()
        line = Text(_GAP).join([line, item]) if line else item
    if line:
        yield line


def _lines(progress: Progress) -> list[list[Text]]:
    """What there is to say, by line."""
    if progress.phase == "starting":
        return [[Text("starting users", "dim")]]
    phase = (progress.phase, "bold" if progress.phase == "measuring" else "dim")
    outcomes = [
        Text(f"{name.replace('_', ' ')} {count(number)}", "" if name == "acquired" else "yellow")
        for name, number in progress.outcomes.items()
        if name != "none"
    ]
    return [
        [
            Text.assemble(phase, f" {progress.elapsed_s:.0f} s, {progress.remaining_s:.0f} s left"),
            Text(f"{count(progress.acquires_per_s)} acquires/s", "bold"),
        ],
        [Text(f"p50 {latency(progress.p50_s)}"), Text(f"p99 {latency(progress.p99_s)}"), *outcomes],
        [*_safety(progress.safety), *_health(progress)],
    ]


def _safety(safety: LiveVerdict) -> Iterator[Text]:
    """What the live oracle knows: violations at once, SAFE never before the end."""
    if safety.violations:
        seen = ", ".join(f"{count(number)} × {kind.replace('_', ' ')}" for kind, number in safety.violations.items())
        yield Text(f"VIOLATED {seen}", "bold red")
    elif safety.verdict == "UNKNOWN":
        yield Text("safety not known before the end", "yellow")
    elif safety.leases:
        yield Text(f"0 violations in {count(safety.leases)} leases", "green")


def _health(progress: Progress) -> Iterator[Text]:
    """The faults that are there, how the generator does, and instances that do not simply vote."""
    for fault in progress.faults:
        yield Text(f"fault {fault}", "yellow")
    if progress.cpu_ratio is not None:
        yield Text(f"generator CPU {percent(progress.cpu_ratio, 0)}", "dim")
    if progress.lag_p99_s is not None:
        yield Text(f"lag p99 {latency(progress.lag_p99_s)}", "dim")
    if progress.late_starts:
        yield Text(f"late starts {count(progress.late_starts)}", "yellow")
    for index, (state, errors) in progress.troubles.items():
        text = Text(f"#{index} {state}", "red" if state != "voting" else "yellow")
        if errors:
            text.append(f" {count(errors)} errors", style="yellow")
        yield text
