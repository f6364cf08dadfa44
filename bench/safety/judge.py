"""The oracle: *the history of all workers and the circumstances of the run → SafetyReport*, and
*the new records during the run → LiveVerdict*.

- If there is a violation, the verdict is VIOLATED, even if other facts are unknown. Client
  overstays and spurious refusals are counted, but they are not violations. If there is no
  violation, the verdict is UNKNOWN in three cases: the history has holes, a clock stepped, or the
  checker failed.
- If n *tested* leases show no violation, the true rate of violations is below 3 / n (95 % sure, the
  rule of three). With fewer than `TESTED_LEAST` tested leases, the verdict is NOT TESTED. Only the
  verdict SAFE is evidence of safety.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from bench.measure.clocks import Integers, Who, timelines
from bench.measure.history import History
from bench.measure.outcomes import acquired
from bench.measure.record import (
    GONE,
    NEVER_NS,
    RECORD_DTYPE,
    RELEASED,
    OperationFacts,
    Records,
    ends_ns,
    extent_ns,
    records_of,
)
from bench.measure.run_result import (
    EXAMPLES_PER_KIND,
    BrokenRule,
    Example,
    SafetyReport,
    SafetyWord,
)
from bench.measure.verdict import TESTED_LEAST
from bench.measure.workers import WorkerNote
from bench.safety import rules
from bench.safety.rules import Operations

VIOLATIONS = ("service_fault", "granted_invalid", "foreign_delete")
# The wall clock may jump by `TOLERANCE_NS` (ns) and drift by `SLEW` (per ns).
TOLERANCE_NS = 2_000_000
SLEW = 1e-3
# The live judge keeps at most this many leases from earlier calls.
MOST_KEPT = 5_000
# If there are enough resources, the live judge checks at most this many leases per call.
MOST_FRESH = 10_000
# The live judge checks at least this many resources. It checks all leases of these resources.
FEWEST_RESOURCES = 64

# The monotonic time (ns), and CLOCK_REALTIME − CLOCK_MONOTONIC (ns).
ClockSample = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The facts that the judge needs and that the history does not have."""

    # The known flaw of the recipe, if the recipe is unsafe.
    unsafe_recipe: str | None = None
    # The periods in which injected faults were in force. The effects of a fault may last one TTL
    # longer.
    fault_spans_ns: tuple[tuple[int, int], ...] = ()
    # Samples of the clocks over the run, in order of time.
    clock: Sequence[ClockSample] = ()
    # Sentences about lost parts of the history, and about clocks whose error has no bound.
    missing: tuple[str, ...] = ()
    # How many commands the servers executed during the run. None: a server did not report its
    # number.
    commands: int | None = None
    # How many leases were granted, if the history does not have all leases. Otherwise 0.
    leases: int = 0
    # True: each successful release sent its own command.
    releases_ask: bool = False
    # The periods in which a load process did not run. None: no process looked for gaps.
    gaps_ns: tuple[tuple[int, int], ...] | None = None
    # The time at which the history was read. No time in the history can be later.
    until_ns: int = NEVER_NS
    # How many callers may hold a resource at once.
    capacity: int = 1
    # Sentences about impossible values that the recipe reported.
    misreports: tuple[str, ...] = ()


@dataclass(slots=True)
class JudgedCounts:
    """The numbers that a judge has counted in the history so far."""

    operations: int = 0
    torn: int = 0
    # Missing files.
    missing: int = 0
    # Valid leases that cannot be placed on one clock.
    lost: int = 0
    contested: int = 0
    tested: int = 0
    # Leases that were held for some time.
    held: int = 0
    # Releases, by outcome.
    gone: int = 0
    released: int = 0
    # Attempts that sent a command to a server, as the recipe reports.
    asked: int = 0
    # Violations without a known cause.
    unexplained: int = 0


class Judge:
    """A judge that receives a history in several parts. `ttl_ms`: the longest TTL that callers
    requested."""

    def __init__(self, ttl_ms: int, circumstances: Circumstances | None = None) -> None:
        self._ttl_ms = ttl_ms
        self._circumstances = circumstances or Circumstances()
        self._evidence = JudgedCounts()
        self._broken: Counter[str] = Counter()
        self._examples: list[Example] = []
        self._failure: str | None = None

    def add(self, history: History) -> None:
        """Judge all operations of some resources, including their lost attempts.

        Never raises. If the checker fails, the verdict cannot be SAFE.
        """
        try:
            history = history.believed(self._circumstances.until_ns)
            records = history.records
            operations = Operations.of(history.records, history.early, history.late)
            self._evidence.operations += len(records)
            self._evidence.torn += history.torn
            self._evidence.missing += history.missing_segments
            self._evidence.lost += int(operations.lost.sum())
            self._count_claims(records, len(history.lost))
            attempts = _asked(operations, history.lost)
            first = extent_ns(operations.early)[0]
            last = extent_ns(operations.late)[1]
            # A key that is left behind may remain for this much longer.
            last += rules.CLEANUP_NS + self._ttl_ms * 1_000_000
            extent = int(attempts[1].min(initial=first)), int(attempts[2].max(initial=last))
            for timeline, chosen in timelines(
                np.concatenate([records.resource, attempts[0]]), extent
            ):
                rows, sent = (
                    (chosen, chosen)
                    if isinstance(chosen, slice)
                    else np.split(chosen, [len(records)])
                )
                part = operations[rows]
                leases = rules.order_leases(part, timeline)
                resources, *bounds, writer = attempts[:, sent]
                self._evidence.contested += rules.contested(leases)
                earliest, latest = (timeline.keys(resources, bound) for bound in bounds)
                capacity = self._circumstances.capacity
                self._evidence.tested += rules.tested(
                    leases, earliest, latest, writer > 0, capacity
                )
                self._evidence.held += int((leases.end > leases.returned).sum())
                gaps_ns = self._circumstances.gaps_ns
                for kind, broken in rules.broken_rules(leases, gaps_ns, capacity):
                    self._note(kind, part.own, *broken)
                self._note(
                    "spurious_refusal",
                    part.own,
                    rules.spurious_refusals(part, timeline, self._ttl_ms, capacity),
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is not SAFE
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Store the error that made a step of the judgement fail.

        After this call, the judge still reports violations, but the verdict of the judge is never
        SAFE.
        """
        self._failure = self._failure or f"the checker failed: {type(error).__name__}: {error}"

    def see(self, counts: Mapping[str, int]) -> None:
        """Correct the numbers of violations, but only if this judge has failed.

        `counts`: for each kind, the number of violations that the live judge counted. For each
        kind, this method keeps the larger number: the number of this judge or the number of the
        live judge.
        """
        if self._failure:
            for kind in VIOLATIONS:
                self._broken[kind] = max(self._broken[kind], counts.get(kind, 0))

    def _count_claims(self, records: Records, lost: int) -> None:
        """Count the commands that the recipe claims to have sent.

        The commands are counted separately for releases and for attempts.
        """
        released = records.release_code
        self._evidence.gone += int((released == GONE).sum())
        self._evidence.released += int((released == RELEASED).sum())
        self._evidence.asked += int((records.attempt_ns > 0).sum()) + lost

    @property
    def violated_resources(self) -> frozenset[int]:
        """All resources that occur in the examples of violations so far."""
        violations = (incident for incident in self._examples if incident.kind in VIOLATIONS)
        return frozenset(
            operation.resource for incident in violations for operation in incident.operations
        )

    def report(self) -> SafetyReport:
        """Return the verdict over all parts."""
        evidence = self._evidence
        broken = self._broken
        commands = self._circumstances.commands
        claims = evidence.asked + (evidence.released if self._circumstances.releases_ask else 0)
        unasked = commands is not None and commands < max(claims, self._circumstances.leases)
        tested = 0 if unasked else evidence.tested
        verdict, reason = self._verdict("; ".join(self._unknown()), tested, unasked=unasked)
        return SafetyReport(
            verdict=verdict,
            reason=reason,
            violations=broken["service_fault"],
            service_faults=broken["service_fault"],
            client_overstays=broken["client_overstay"],
            granted_invalid=broken["granted_invalid"],
            foreign_deletes=broken["foreign_delete"],
            spurious_refusals=broken["spurious_refusal"],
            unexplained=evidence.unexplained,
            contested_leases=evidence.contested,
            misreports=self._circumstances.misreports,
            tested_leases=tested,
            upper_bound_95=3 / tested if verdict == "SAFE" else None,
            examples=tuple(self._examples),
        )

    def _unknown(self) -> Iterator[str]:
        """Yield the reasons why the verdict cannot be SAFE."""
        evidence = self._evidence
        if self._failure:
            yield self._failure
        yield from self._circumstances.missing
        yield from self._circumstances.misreports
        if evidence.gone and not evidence.released:
            yield (
                f"all {evidence.gone:,} releases returned GONE, so nothing shows that a lock was "
                "ever held"
            )
        if not evidence.operations:
            yield "no operation was recorded"
        if evidence.torn or evidence.missing:
            yield (
                f"the history is incomplete: {evidence.torn:,} damaged records, "
                f"{evidence.missing} missing files; the memory or the disk of this machine lost "
                "or changed the data"
            )
        if step := clock_step_ns(self._circumstances.clock):
            yield (
                f"the wall clock stepped by {step / 1e6:.1f} ms during the run, and servers use "
                "this clock to expire keys"
            )
        if evidence.lost:
            yield (
                f"the times of {evidence.lost:,} leases are uncertain, because the clock of "
                "their host stepped"
            )

    def _verdict(
        self, unknown: str, tested: int, *, unasked: bool
    ) -> tuple[SafetyWord, str | None]:
        violations = [
            f"{self._broken[kind]} × {kind.replace('_', ' ')}"
            for kind in VIOLATIONS
            if self._broken[kind]
        ]
        if violations:
            return "VIOLATED", ", ".join(violations) + (f"; besides, {unknown}" if unknown else "")
        if unknown:
            return "UNKNOWN", unknown
        if tested < TESTED_LEAST:
            capacity = self._circumstances.capacity
            held = self._evidence.held
            return "NOT TESTED", not_tested(held, tested, capacity, unasked=unasked)
        return "SAFE", None

    def _note(self, kind: BrokenRule, records: Records, *rows: Integers) -> None:
        count = len(rows[0])
        if not count:
            return
        happened = {"foreign_delete": "release_sent_ns", "spurious_refusal": "ended_ns"}.get(
            kind, "granted_ns"
        )
        at_ns = records[happened][rows[-1]]
        causes: list[str | None] = [None] * count
        if kind in VIOLATIONS:
            causes = [blame(at, self._ttl_ms, self._circumstances) for at in at_ns.tolist()]
            self._evidence.unexplained += causes.count("unexplained")
        self._broken[kind] += count
        examples = [one for one in self._examples if one.kind == kind]
        for position in np.argsort(at_ns, kind="stable")[:EXAMPLES_PER_KIND].tolist():
            involved = tuple(OperationFacts.of(records[int(row[position])]) for row in rows)
            examples.append(
                Example(
                    kind=kind,
                    at_ns=int(at_ns[position]),
                    blame=causes[position],
                    operations=involved,
                )
            )
        earliest = sorted(examples, key=lambda one: one.at_ns)[:EXAMPLES_PER_KIND]
        self._examples = [*(one for one in self._examples if one.kind != kind), *earliest]


def judge(
    history: History, ttl_ms: int, circumstances: Circumstances | None = None
) -> SafetyReport:
    """Judge a whole history at once. `Judge` describes the judgement."""
    oracle = Judge(ttl_ms, circumstances)
    oracle.add(history)
    return oracle.report()


def _asked(operations: Operations, lost: Integers) -> Integers:
    """Return an array with one column for each attempt that sent a command.

    Each column has four values: the resource, the earliest time, the latest time, and the writer
    flag. The writer flag is 1 if the attempt certainly belongs to a writer. If an attempt is lost,
    its writer flag is 0, because the records do not show whether the attempt belongs to a writer.
    """
    early = operations.early
    late = operations.late
    writer = ~operations.own.reader
    ended = np.stack([early.resource, early.attempt_ns, late.attempt_ns, writer])
    side = np.zeros((1, len(lost)), np.int64)
    earlier = np.vstack([lost.T[[0, 1, -1]], side])
    return np.hstack([ended[:, operations.own.attempt_ns > 0], earlier])


def blame(at_ns: int, ttl_ms: int, circumstances: Circumstances) -> str:
    """Return the cause of a violation, which is `unsafe recipe`, `injected fault` or
    `unexplained`."""
    if circumstances.unsafe_recipe:
        return "unsafe recipe"
    lasting_ns = ttl_ms * 1_000_000
    if any(begun <= at_ns <= ended + lasting_ns for begun, ended in circumstances.fault_spans_ns):
        return "injected fault"
    return "unexplained"


def clock_step_ns(samples: Sequence[ClockSample]) -> int:
    """Return the largest jump between successive samples (ns), or 0 if all changes are within the
    tolerance."""
    changes = (
        (at - before, abs(offset - former)) for (before, former), (at, offset) in pairwise(samples)
    )
    return max((jump for apart, jump in changes if jump > TOLERANCE_NS + SLEW * apart), default=0)


def not_tested(held: int, tested: int, capacity: int = 1, *, unasked: bool) -> str:
    """Return the reason why a run has too few tested leases.

    `held`: the number of leases that were held for some time. `tested`: the number of tested
    leases. `capacity`: how many callers may hold a resource at once. `unasked`: true if the servers
    counted fewer commands than the recipe reported.
    """
    if unasked:
        return (
            "the servers counted fewer commands than the recipe reported, so some attempts "
            "asked no server"
        )
    if not held:
        return "no caller held its lease for any time; set --hold"
    places = f"all {capacity} places are taken and " if capacity > 1 else ""
    return (
        f"only {tested:,} of {held:,} held leases were tested, but {TESTED_LEAST} are needed (a "
        f"lease is tested if {places}another attempt is sent while a caller holds the lease); "
        "raise --users, lower --resources, or raise --hold"
    )


def holes(
    notes: Sequence[WorkerNote],
    recorded: Mapping[Who, int],
    unfinished: Mapping[Who, int],
    processes: int,
    endings: str = "",
) -> Iterator[str]:
    """Yield sentences about missing parts of the history.

    `recorded`: how many complete records each worker has. `unfinished`: how many operations began
    and have no record. `endings`: sentences about workers that ended early, with their pids.
    """
    notes_by_worker = {(note.worker, note.pid): note for note in notes}
    if len(notes_by_worker) < processes:
        yield f"the notes of {processes - len(notes_by_worker)} of {processes} workers are missing"
    for who in sorted(
        {*notes_by_worker, *recorded, *(who for who, number in unfinished.items() if number)}
    ):
        name = f"worker {who[0]} (pid {who[1]})"
        note = notes_by_worker.get(who)
        if note is None:
            yield f"the note of {name} is missing"
        elif note.phase != "stopped":
            if f"(pid {who[1]})" not in endings:
                yield f"{name} did not report its end"
        elif (number := recorded.get(who, 0)) != note.recorded:
            yield f"{name} recorded {note.recorded:,} operations, but the history has {number:,}"
        if unfinished.get(who):
            yield f"{unfinished[who]:,} operations of {name} began but were never recorded"


def without_seal(notes: Sequence[WorkerNote], unsealed: Mapping[Who, int]) -> Iterator[str]:
    """Yield a sentence for each worker of this host that ended normally and still has records
    without a checksum."""
    for note in notes:
        if (
            note.phase == "stopped"
            and not note.host
            and (number := unsealed.get((note.worker, note.pid)))
        ):
            yield f"{number:,} records of {note.name} have no checksum, so the record is damaged"


@dataclass(frozen=True, slots=True)
class LiveVerdict:
    """The verdict during a run.

    `leases`: how many ended leases were judged. `counts`: how often each kind of rule was broken.
    `failure`: the failure of the checker, or None.
    """

    leases: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    failure: str | None = None

    @property
    def violations(self) -> dict[str, int]:
        """The violations so far, by kind."""
        return {kind: self.counts[kind] for kind in VIOLATIONS if self.counts.get(kind)}

    @property
    def verdict(self) -> str | None:
        """The verdict so far. The verdict is VIOLATED if a rule was broken. The verdict is UNKNOWN
        if no rule was broken but the checker has failed. In all other cases, the verdict is
        None."""
        if self.violations:
            return "VIOLATED"
        return "UNKNOWN" if self.failure else None


class LiveJudge:
    """A judge of a history that is still growing. Any thread may read `verdict`.

    `ttl_ms`: the longest TTL that callers requested. `capacity`: how many callers may hold a
    resource at once.

    The judge sees a lease only after the lease has ended. So a lease can change the verdict only in
    the first call of `add` after the end of the lease. The verdict is never SAFE (README of this
    folder).
    """

    def __init__(self, ttl_ms: float, capacity: int = 1) -> None:
        self._capacity = capacity
        self._ttl_ns = int(ttl_ms * 1_000_000)
        self._kept = records_of([])
        # The judge checks every resource whose index is a multiple of this number.
        self._every = 1
        self.verdict = LiveVerdict()

    def add(self, records: Records) -> LiveVerdict:
        """Judge the records of all workers since the last call, and return the new verdict.

        Never raises.
        """
        before = self.verdict
        try:
            granted = acquired(records)
            if granted.any():
                fresh = self._some(records if granted.all() else records[granted])
                # The arrays are joined as int64, because NumPy joins structured arrays field by
                # field, which takes four times as long.
                rows = np.concatenate([self._kept.view("<i8"), fresh.view("<i8")])
                both = records_of(rows.view(RECORD_DTYPE))
                # New and kept leases are judged together, because a new lease may overlap a kept
                # lease. An earlier call has counted the violations between kept leases, so their
                # number is subtracted.
                violations = _count(both, self._capacity)
                # Without a violation, nothing has to be subtracted.
                if any(violations.values()):
                    violations.subtract(_count(self._kept, self._capacity))
                counts = {
                    kind: before.counts.get(kind, 0) + max(number, 0)
                    for kind, number in violations.items()
                }
                self._keep(both)
                self.verdict = LiveVerdict(
                    before.leases + len(fresh), {**before.counts, **counts}, before.failure
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known from here on
            self.verdict = LiveVerdict(
                before.leases, before.counts, f"{type(error).__name__}: {error}"
            )
        return self.verdict

    # A busy run may bring more leases per call than the judge can check in time. Then the judge
    # takes every second resource, then every fourth, and so on. It leaves out whole resources and
    # never single leases. If it left out one of two overlapping leases, it would miss their
    # overlap.
    def _some(self, leases: Records) -> Records:
        part = leases[leases.resource % self._every == 0] if self._every > 1 else leases
        while (
            len(part) > MOST_FRESH
            and part.resource.max() + self._every >= 2 * self._every * FEWEST_RESOURCES
        ):
            half = part[part.resource % (2 * self._every) == 0]
            if len(half) < MOST_FRESH // 4:
                # Nearly all leases belong to the resources that would be left out, so the judge
                # would see almost nothing.
                break
            self._every *= 2
            part = half
            self._kept = self._kept[self._kept.resource % self._every == 0]
        return part

    def _keep(self, records: Records) -> None:
        if not len(records):
            return
        ended_ns = ends_ns(records)
        recent = np.flatnonzero(ended_ns >= ended_ns.max() - self._ttl_ns)
        if len(recent) > MOST_KEPT:
            recent = recent[np.argpartition(ended_ns[recent], len(recent) - MOST_KEPT)[-MOST_KEPT:]]
        self._kept = records[np.sort(recent)]


def _count(records: Records, capacity: int) -> Counter[str]:
    """Return how often each rule is broken among these leases."""
    counts: Counter[str] = Counter()
    for timeline, rows in timelines(records.resource, extent_ns(records)):
        for kind, broken in rules.broken_rules(
            rules.order_leases(Operations.of(records[rows]), timeline), capacity=capacity
        ):
            counts[kind] += len(broken[0])
    return counts
