"""The reports that load processes write about themselves. The report of a process is a file
`worker-*.json`. This file is complete at any moment. This module adds up the reports of all
processes.

If a worker never reported its end, a warning names the worker. The verdict on the load generator
depends on the figures of the generator and on the durations of the acquires. Besides VALID, there
are three verdicts.
- INVALID means that all figures are worthless. A run in open loop is INVALID if fewer than 99 % of
  the scheduled operations were started. Little's law says that λ·W is equal to the number of users
  L. Little's ratio is λ·W ÷ L. A run in closed loop with at least 8 users is INVALID if Little's
  ratio is outside 0.95…1.05. A run is also INVALID if a worker was lost, because the operations of
  this worker are then unknown.
- LATE means that latencies are upper bounds. In an open loop, a run is LATE if the timer's lateness
  is more than 10 % of the acquire duration. In an open or closed loop, a run is LATE if the
  scheduler's lag is more than half of the acquire duration. In both comparisons, lockbench compares
  the p99 of the delay with the p99 of the acquire durations. If one of these two p99 is unknown,
  lockbench compares the p90 of the delay with the p90 of the acquire durations. If one of these two
  p90 is unknown, lockbench compares the p50 of the delay with the p50 of the acquire durations.
- UNKNOWN means that there are too few samples for this comparison. In this case, latencies are also
  only upper bounds, because the generator may have been late.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from bench.measure.facts import mean_of
from bench.measure.fleet_facts import InstanceReport, InstanceSeen
from bench.measure.histogram import Histogram
from bench.measure.latency import PERCENTILES, Latency
from bench.measure.run_result import GeneratorHealth, GeneratorWord, fields_of
from bench.measure.section import Section, decoded, says
from bench.scenario import Scenario
from lockcore.clock import NS_PER_MS

Phase = Literal["running", "stopped", "lost"]
_ADDED = (
    "commands",
    "bytes_sent",
    "bytes_received",
    "writes",
    "reads",
    "late_replies",
    "pending",
    "owed_releases",
    "reconnects",
)
_LATE = "late.txt"
_ENDING = "ending"
# A load process writes a note once per this time.
NOTE_S = 1.0
# The states of an instance, with the worst state last. The summary shows the worst state that any
# worker reported.
STATES = ("voting", "abstaining", "lagging", "refused", "down")


class WorkNote(Section, frozen=True, kw_only=True):
    """The work that one load process has done so far. The histograms are encoded as text. The text
    "" means that there is no histogram yet."""

    cpu_s: Annotated[float, says("CPU time of the load process since its users started")] = 0.0
    lag_histogram: Annotated[str, says("histogram of the delays of timers in the load process")] = (
        ""
    )
    lateness_histogram: Annotated[
        str, says("histogram of the delays with which operation timers fired")
    ] = ""
    kept_ns: Annotated[
        float, says("total delay that the load process caused for its callers in the window")
    ] = 0
    late_starts: Annotated[
        int, says("number of operations that started late because their timer fired late")
    ] = 0
    queued_starts: Annotated[
        int, says("number of operations that were due when no caller was free")
    ] = 0
    cut: Annotated[int, says("number of operations that the end of the run cut off")] = 0
    recorded: Annotated[int, says("number of operations in the history of the load process")] = 0
    holding: Annotated[int, says("number of callers that currently hold a lock and work")] = 0
    idle: Annotated[int, says("number of callers that currently pause or wait for an arrival")] = 0
    instances: Annotated[
        tuple[InstanceSeen, ...], says("the instances, as the load process sees them")
    ] = ()
    figures: Annotated[dict[str, int], says("counts that the recipe keeps about itself")] = (
        msgspec.field(default_factory=dict)
    )
    reply_histograms: Annotated[
        tuple[str, ...], says("histograms of the reply times, one for each instance")
    ] = ()
    errors: Annotated[dict[str, int], says("number of exceptions of users, by text")] = (
        msgspec.field(default_factory=dict)
    )
    misreports: Annotated[
        dict[str, int], says("number of impossible values that the recipe reported, by text")
    ] = msgspec.field(default_factory=dict)
    locust: Annotated[
        dict[str, tuple[int, int]],
        says("number of requests and failures in each row of Locust's table"),
    ] = msgspec.field(default_factory=dict)


class WorkerNote(WorkNote, frozen=True, kw_only=True):
    """The report of one load process. It contains the identity of the process, the time of the
    report, and figures about the work of the process."""

    worker: Annotated[int, says("index of the load process")]
    pid: Annotated[int, says("process id of the load process")]
    phase: Annotated[
        Phase,
        says(
            "`stopped` means that the load process sent its last report; `lost` means that this "
            "report is missing"
        ),
    ] = "running"
    host: Annotated[
        str, says('name of the load process\'s host; "" for the host of the leader')
    ] = ""
    clock: Annotated[
        str,
        says(
            '`own` if the load process and the leader have different clocks; "" if both have '
            "the same clock"
        ),
    ] = ""
    about: Annotated[
        str, says("versions of lockbench, Python and lockcore in the load process")
    ] = ""
    spawned_ns: Annotated[
        int, says("monotonic time at which all users of the process ran; 0 before that")
    ] = 0
    stopped_ns: Annotated[
        int, says("monotonic time at which all users of the process had ended; 0 before that")
    ] = 0
    told_ns: Annotated[int, says("monotonic time of this report")] = 0
    callers: Annotated[int, says("number of users in the load process")] = 0

    @property
    def name(self) -> str:
        """The name of the worker in messages."""
        return f"worker {self.worker} (pid {self.pid}{f' on {self.host}' if self.host else ''})"


def write_note(workdir: Path, note: WorkerNote) -> None:
    """Write the note of a worker, and replace the worker's earlier note in one step. If `workdir`
    no longer exists, nobody reads notes any more, and the function writes nothing.

    Raises OSError.
    """
    draft = workdir / f"worker-{note.worker}-{note.pid}.tmp"
    with suppress(FileNotFoundError):
        draft.write_bytes(msgspec.json.encode(note))
        draft.replace(draft.with_suffix(".json"))


def read_workers(workdir: Path) -> list[WorkerNote]:
    """Return the notes of all workers, ordered by worker index.

    Workers replace their notes atomically, so reading during a run is safe. The result does not
    contain unreadable notes (see `torn_notes`).
    """
    notes = []
    for path in workdir.glob("worker-*.json"):
        with suppress(msgspec.DecodeError, OSError):
            notes.append(decoded(path.read_bytes(), WorkerNote))
    return sorted(notes, key=lambda note: (note.worker, note.pid))


def torn_notes(workdir: Path) -> Iterator[str]:
    """Yield a sentence for each note that cannot be read."""
    for path in sorted(workdir.glob("worker-*.json")):
        try:
            decoded(path.read_bytes(), WorkerNote)
        except (msgspec.DecodeError, OSError):
            yield f"the note {path.name} of a load process is damaged"


def note_late(workdir: Path, name: str) -> None:
    """Record the name of a worker that came too late to take part in the run."""
    with suppress(FileNotFoundError), (workdir / _LATE).open("a", encoding="utf-8") as file:
        file.write(f"{name}\n")


def late_workers(workdir: Path) -> list[str]:
    """Return the names of the workers that came too late to take part."""
    path = workdir / _LATE
    return path.read_text("utf-8").splitlines() if path.exists() else []


def note_ending(workdir: Path) -> None:
    """Record that the end of the run has begun. If a worker is lost after this call, the command
    does not stop the run."""
    with suppress(FileNotFoundError):
        (workdir / _ENDING).touch()


def is_ending(workdir: Path) -> bool:
    """Return whether the end of the run has begun."""
    return (workdir / _ENDING).exists()


def cpu_ratio(notes: Sequence[WorkerNote]) -> float | None:
    """Return the CPU use of the busiest worker, as a share of one core. Return None if no worker
    reported its end."""
    ended_notes = [note for note in notes if note.stopped_ns > note.spawned_ns > 0]
    return max(
        (note.cpu_s * 1e9 / (note.stopped_ns - note.spawned_ns) for note in ended_notes),
        default=None,
    )


def merged(encoded: Iterable[str]) -> Histogram:
    """Decode the histograms and return their sum. The text "" counts as an empty histogram."""
    return Histogram.merged(Histogram.decode(text) for text in encoded if text)


def added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Add up the counts by name. If a sum is 0, the result does not contain its name."""
    return dict(sum(map(Counter[str], counts), Counter[str]()))


def instances(notes: Sequence[WorkerNote]) -> list[InstanceReport]:
    """Return the section `instances`. Each entry combines the reports of all workers about one
    instance. In each entry, the reply times are in seconds."""
    times = replies(notes)
    reports = []
    for index in range(max((len(note.instances) for note in notes), default=0)):
        statuses = [note.instances[index] for note in notes if len(note.instances) > index]
        worst = max(statuses, key=lambda status: STATES.index(status.state))
        facts = {
            **fields_of(worst),
            **{name: sum(getattr(status, name) for status in statuses) for name in _ADDED},
            "errors": added(status.errors for status in statuses),
        }
        reply_s = Latency.of(times[index] if index < len(times) else Histogram())
        reports.append(InstanceReport(**facts, reply_s=reply_s))
    return reports


def replies(notes: Sequence[WorkerNote]) -> list[Histogram]:
    """Return the reply times of each instance over all workers."""
    return [*map(merged, zip_longest(*(note.reply_histograms for note in notes), fillvalue=""))]


STARTED_SHARE = 0.99
LATENESS_SHARE = 0.10
# The scheduler's lag includes the work of callers, and this work is load. So the lag is a fault
# only above this share of an acquire's duration.
LAG_SHARE = 0.5
# With these verdicts, latencies are upper bounds.
IN_DOUBT = ("LATE", "UNKNOWN")
_COMPARED = ("p99", "p90", "p50")
LITTLE_USERS = 8
LITTLE_TOLERANCE = 0.05
BUSY_CORE = 0.9
GENERATOR_BOUND = (
    "generator-bound: the rate is a lower bound, because a load process used almost a full core"
)


def judge_generator(
    reports: Sequence[WorkerNote],
    histograms: Mapping[str, Histogram],
    counts: Mapping[str, int],
    scenario: Scenario,
    *,
    span_ns: int,
    due: int,
) -> GeneratorHealth:
    """Return the section `generator`.

    `histograms` must have the entries acquire, scheduler_lag and timer_lateness. `counts` is the
    section "counts" of the `Fold`. `span_ns` is the length of the window. `due` is how many
    operations the schedule starts in the whole run.
    """
    queued = sum(report.queued_starts for report in reports)
    ratio = None
    lost = [report.name for report in reports if report.phase == "lost"]
    if lost:
        fault = f"the busy callers are unknown, because the history of {', '.join(lost)} is missing"
    elif scenario.rate_per_s is not None:
        fault = _unstarted(counts["records"], due)
    else:
        kept_ns = sum(report.kept_ns for report in reports)
        # Each operation that ended in the window is followed by a think time.
        if span_ns > 0:
            after_ns = counts["finished"] * mean_of(scenario.think) * NS_PER_MS + kept_ns
            ratio = (counts["busy_ns"] + after_ns) / span_ns / scenario.users
        # It is not known how many callers were delayed across the edges of the window, so the ratio
        # may be a little wrong. This allowance has a limit. Without the limit, a generator that
        # delays every caller would still count as VALID.
        edges = min(kept_ns / max(1, counts["finished"] * span_ns), LITTLE_TOLERANCE)
        fault = _idle(ratio, edges, scenario.users)
    verdict, reason = ("INVALID", fault) if fault else judge_delays(histograms, queued, scenario)
    return GeneratorHealth(
        cpu_ratio=cpu_ratio(reports),
        scheduler_lag_p99_s=Latency.of(histograms["scheduler_lag"]).p99,
        timer_lateness_p99_s=Latency.of(histograms["timer_lateness"]).p99,
        late_starts=sum(report.late_starts for report in reports),
        queued_starts=queued,
        littles_law_ratio=ratio,
        verdict=verdict,
        reason=reason,
    )


def _idle(ratio: float | None, edges: float, users: int) -> str:
    """Return the reason why the load of a closed loop was not as requested, or "" if it was as
    requested.

    `edges` is the largest possible error of `ratio`.
    """
    if users < LITTLE_USERS or ratio is None or abs(ratio - 1) <= LITTLE_TOLERANCE + edges:
        return ""
    return (
        f"Little's ratio is {ratio:.3f}, so on average {ratio * users:.1f} instead of {users} "
        "callers were busy"
    )


def _unstarted(started: int, due: int) -> str:
    """Return the reason why an open loop did not make the requested load. Return "" if it made the
    requested load."""
    if not due:
        return "no operation of the schedule was due, so the load was empty"
    if started >= STARTED_SHARE * due:
        return ""
    return (
        f"the load process started only {started / due:.1%} of the {due} due operations, but "
        "99 % are needed; lower --rate, or raise --users if no caller was free"
    )


def judge_delays(
    histograms: Mapping[str, Histogram], queued: int, scenario: Scenario, slack: float = 1.0
) -> tuple[GeneratorWord, str | None]:
    """Compare the generator's own delays with the latencies in the result, and return a verdict
    with its reason.

    For each kind of delay, there is a limit, which is a share of the acquire duration. The function
    multiplies this limit by `slack`.
    """
    acquire, lag, lateness = (
        histograms[name] for name in ("acquire", "scheduler_lag", "timer_lateness")
    )
    judged = [("the load process's scheduler lagged by", lag, LAG_SHARE)] if lag.count else []
    if scenario.rate_per_s is not None and (lateness.count or not queued):
        judged.insert(0, ("the timer was late by", lateness, LATENESS_SHARE))
    verdicts = [_against(acquire, what, delay, most * slack) for what, delay, most in judged]
    return next(
        (each for word in IN_DOUBT for each in verdicts if each[0] == word), ("VALID", None)
    )


def _against(
    acquire: Histogram, what: str, delay: Histogram, most: float
) -> tuple[GeneratorWord, str | None]:
    pairs = (
        (name, delay.percentile(PERCENTILES[name]), acquire.percentile(PERCENTILES[name]))
        for name in _COMPARED
    )
    at, late_ns, took_ns = next((pair for pair in pairs if None not in pair), (None, None, None))
    if late_ns is None or took_ns is None:
        few = (
            f"there are only {delay.count} delays and {acquire.count} acquires, which are too "
            "few to judge whether the load generator was late"
        )
        return "UNKNOWN", few
    if late_ns <= most * took_ns:
        return "VALID", None
    part = f"more than {most:.0%} of the acquire {at} ({took_ns / 1e6:.3g} ms)"
    return "LATE", f"{what} {late_ns / 1e6:.3g} ms ({at}), which is {part}"
