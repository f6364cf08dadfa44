"""The line that shows a run is alive: *Progress → one line on stderr*.

Rules: on a terminal one line redrawn in place; elsewhere a plain line every few seconds, so that a log stays readable;
quiet says nothing. No arithmetic: what is shown was computed by bench.experiments.progress.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from bench.experiments.progress import Progress
from bench.report.figures import count, latency, percent

PLAIN_EVERY_S = 5.0
_WIDTH = 24


class ProgressLine:
    """Shows each Progress it is called with; a context manager, because a redrawn line must be given back."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        """`quiet` shows nothing. `stream`: default stderr; whether it is a terminal decides how to show."""
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._quiet = quiet
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if self._redraws else None
        self._shown_at: tuple[str, float] | None = None

    @property
    def _redraws(self) -> bool:
        return self._console.is_terminal and not self._quiet

    def __enter__(self) -> Self:
        """Take the line."""
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the line back, whatever happened."""
        if self._live:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show `progress`; off a terminal only when the phase changes or a few seconds have passed."""
        if self._quiet:
            return
        if self._live:
            self._live.update(progress_text(progress, bar=True), refresh=True)
        elif self._is_due(progress):
            print(progress_text(progress).plain, file=self._console.file, flush=True)

    def _is_due(self, progress: Progress) -> bool:
        last = self._shown_at
        if last is not None and last[0] == progress.phase and progress.elapsed_s - last[1] < PLAIN_EVERY_S:
            return False
        self._shown_at = (progress.phase, progress.elapsed_s)
        return True


def progress_text(progress: Progress, *, bar: bool = False) -> Text:
    """Return the line, with colours for what is wrong; `bar` puts a bar of the elapsed share in front."""
    text = Text(no_wrap=True, overflow="ellipsis")
    if bar:
        text.append(_bar(progress) + " ", style="cyan")
    if progress.phase == "starting":
        return text.append("starting users", style="dim")
    text.append(f"{progress.phase} ", style="dim" if progress.phase != "measuring" else "bold")
    text.append(f"{progress.elapsed_s:.0f} s, {progress.remaining_s:.0f} s left")
    text.append(f"  {count(progress.acquires_per_s)} acquires/s", style="bold")
    text.append(f"  p50 {latency(progress.p50_s)}  p99 {latency(progress.p99_s)}")
    for name, number in progress.outcomes.items():
        if name not in ("none", "acquired"):
            text.append(f"  {name.replace('_', ' ')} {count(number)}", style="yellow")
    for trouble in progress.troubles:
        text.append(f"  #{trouble.index} {trouble.state}", style="red" if trouble.state != "voting" else "yellow")
        if trouble.errors:
            text.append(f" {count(trouble.errors)} errors", style="yellow")
    if progress.cpu_ratio is not None:
        text.append(f"  generator CPU {percent(progress.cpu_ratio, 0)}", style="dim")
    if progress.lag_p99_s is not None:
        text.append(f" lag p99 {latency(progress.lag_p99_s)}", style="dim")
    if progress.late_starts:
        text.append(f"  {count(progress.late_starts)} late starts", style="yellow")
    return text


def _bar(progress: Progress) -> str:
    whole = progress.elapsed_s + progress.remaining_s
    done = round(_WIDTH * progress.elapsed_s / whole) if whole else _WIDTH
    return "━" * done + "╌" * (_WIDTH - done)
