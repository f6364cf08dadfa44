"""What the load processes say of themselves: *a note ↔ `worker-*.json`, whole at any moment → totals over all of them*.

Counts add up, histograms merge, a worker that never reported its end is named in a warning.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from bench.measure.histogram import Histogram
from bench.measure.latency import Latency
from bench.measure.run_result import InstanceReport
from bench.measure.section import Section, decoded, says

Phase = Literal["running", "stopped", "lost"]
_ADDED = (
    "commands", "bytes_sent", "bytes_received", "writes", "reads", "late_replies", "pending", "owed_releases",
    "reconnects",
)  # fmt: skip
_LATE = "late.txt"
# worst last: what the summary must not hide
STATES = ("voting", "abstaining", "lagging", "refused", "down")


class WorkerNote(Section, frozen=True, kw_only=True):
    """What one load process says of itself; histograms are encoded, "" = not yet."""

    worker: Annotated[int, says("its index")]
    pid: Annotated[int, says("of its process")]
    phase: Annotated[Phase, says("stopped: these are its last words; lost: nothing more was heard of it")] = "running"
    host: Annotated[str, says('the name of its host; "": that of the leader')] = ""
    clock: Annotated[str, says('own: its times are of another clock than the leader\'s; "": of the same')] = ""
    about: Annotated[str, says("versions of lockbench, Python and lockcore there")] = ""
    spawned_ns: Annotated[int, says("monotonic, when its users ran; 0: not yet")] = 0
    stopped_ns: Annotated[int, says("monotonic, when they had ended; 0: not yet")] = 0
    told_ns: Annotated[int, says("monotonic, when it said this")] = 0
    cpu_s: Annotated[float, says("CPU time since its users ran")] = 0.0
    lag_histogram: Annotated[str, says("how late greenlets run")] = ""
    lateness_histogram: Annotated[str, says("how late the timer ended waits")] = ""
    kept_ns: Annotated[float, says("for how long it kept callers from their next operations")] = 0
    late_starts: Annotated[int, says("operations that the timer began late")] = 0
    queued_starts: Annotated[int, says("operations due while no caller was free")] = 0
    started_starts: Annotated[int, says("operations of the schedule that were begun")] = 0
    scheduled_starts: Annotated[int, says("operations that the schedule wanted")] = 0
    cut: Annotated[int, says("operations that the end of the run cut off")] = 0
    recorded: Annotated[int, says("operations in its history")] = 0
    callers: Annotated[int, says("users it has")] = 0
    holding: Annotated[int, says("callers at work under a lock")] = 0
    idle: Annotated[int, says("callers that wait for an arrival, or think")] = 0
    instances: Annotated[tuple[InstanceReport, ...], says("the instances as it sees them")] = ()
    figures: Annotated[dict[str, int], says("what the recipe counted of itself")] = msgspec.field(default_factory=dict)
    reply_histograms: Annotated[tuple[str, ...], says("reply times by instance")] = ()
    errors: Annotated[dict[str, int], says("exceptions of the users by text")] = msgspec.field(default_factory=dict)
    locust: Annotated[dict[str, tuple[int, int]], says("requests and failures by row of Locust's table")] = (
        msgspec.field(default_factory=dict)
    )

    @property
    def name(self) -> str:
        """What sentences call it."""
        return f"worker {self.worker} (pid {self.pid}{f' on {self.host}' if self.host else ''})"


def write_note(workdir: Path, note: WorkerNote) -> None:
    """Put `note` in its place in one step; nowhere if `workdir` is gone, for then so is its reader. Raises OSError."""
    draft = workdir / f"worker-{note.worker}-{note.pid}.tmp"
    with suppress(FileNotFoundError):
        draft.write_bytes(msgspec.json.encode(note))
        draft.replace(draft.with_suffix(".json"))


def read_workers(workdir: Path) -> list[WorkerNote]:
    """All workers' notes, by worker index. Each is replaced atomically, so reading while they run is safe."""
    notes = [decoded(path.read_bytes(), WorkerNote) for path in workdir.glob("worker-*.json")]
    return sorted(notes, key=lambda note: (note.worker, note.pid))


def note_late(workdir: Path, name: str) -> None:
    """Put down that a worker came too late to take part."""
    with suppress(FileNotFoundError), (workdir / _LATE).open("a", encoding="utf-8") as file:
        file.write(f"{name}\n")


def late_workers(workdir: Path) -> list[str]:
    """Who came too late to take part."""
    path = workdir / _LATE
    return path.read_text("utf-8").splitlines() if path.exists() else []


def cpu_ratio(notes: Sequence[WorkerNote]) -> float | None:
    """The busiest worker's share of one core (0…1); None when no worker reported its end."""
    told = [note for note in notes if note.stopped_ns > note.spawned_ns > 0]
    return max((note.cpu_s * 1e9 / (note.stopped_ns - note.spawned_ns) for note in told), default=None)


def scheduler_lag(notes: Sequence[WorkerNote]) -> Histogram:
    """How late greenlets run in the load processes, over all of them."""
    return merged(note.lag_histogram for note in notes)


def merged(encoded: Iterable[str]) -> Histogram:
    """The sum of encoded histograms; "" is none."""
    return Histogram.merged(Histogram.decode(text) for text in encoded if text)


def added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sums by name, of what happened at all."""
    return dict(sum(map(Counter[str], counts), Counter[str]()))


def warnings(notes: Sequence[WorkerNote]) -> list[str]:
    """One sentence for each worker whose figures are not final."""
    return [
        f"{note.name} did not report its end: its CPU, lag and counts (also in Locust's table) are those of its last "
        "report"
        for note in notes
        if note.phase != "stopped"
    ]


def instances(notes: Sequence[WorkerNote]) -> list[InstanceReport]:
    """The section `instances`: each instance as all workers together saw it, with its reply times in seconds."""
    replies, found = _replies(notes), []
    for index in range(max((len(note.instances) for note in notes), default=0)):
        seen = [note.instances[index] for note in notes if len(note.instances) > index]
        together = replace(
            max(seen, key=lambda status: STATES.index(status.state)),
            **{name: sum(getattr(status, name) for status in seen) for name in _ADDED},
            errors=added(status.errors for status in seen),
            reply_s=Latency.of(replies[index] if index < len(replies) else Histogram()),
        )
        found.append(together)
    return found


def reply_histograms(notes: Sequence[WorkerNote]) -> dict[str, str]:
    """Each instance's reply times over all workers, encoded, as `reply_<index>`."""
    return {f"reply_{index}": replies.encode() for index, replies in enumerate(_replies(notes))}


def _replies(notes: Sequence[WorkerNote]) -> list[Histogram]:
    return [*map(merged, zip_longest(*(note.reply_histograms for note in notes), fillvalue=""))]
