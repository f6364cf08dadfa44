"""Fixtures for the locks of other projects: *a test and a lock → a throw-away fleet, figures, a
verdict*.

Cheap to import, because an entry point is loaded by every pytest of the environment: everything
heavy is imported when a fixture is used.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from os import getpid
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from bench.experiments.compare.result import Judged
    from bench.gates.threshold import Metric
    from bench.measure.run_result import Measured, SafetyReport
    from bench.run.own_checks import OwnerCheck
    from bench.run.own_lock import OwnLoad, OwnLock, OwnRun
    from bench.topology.fleet import Fleet

Made = TypeVar("Made")


@dataclass(slots=True)
class _Session:
    """What lives as long as pytest: fleets by (instances, fsync), and what was measured."""

    stack: ExitStack = field(default_factory=ExitStack)
    fleets: dict[tuple[int, str], Fleet] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


_SESSION: pytest.StashKey[_Session] = pytest.StashKey()


@dataclass(frozen=True, slots=True)
class LockRun:
    """What one benchmark showed: sections as those of result.json. `errors`: exceptions of the lock
    by type, refusals left out; `processes`: over which its callers were shared out; `owner_check`:
    held, deleted a stranger's lock, or not tested because …"""

    measured: Measured
    errors: Mapping[str, int]
    processes: int = 1
    owner_check: str = "not tested"

    @property
    def rate_per_s(self) -> float:
        """Leases per second."""
        return self.measured.rate.achieved_per_s or 0.0

    @property
    def p50_s(self) -> float | None:
        """Median time of an acquire (s), inf where half of them failed; None with fewer than ten
        samples beyond it."""
        return self._acquire("p50")

    @property
    def p99_s(self) -> float | None:
        """The time (s) that 99 of 100 acquires do not exceed, inf where more failed; None as for
        `p50_s`."""
        return self._acquire("p99")

    def _acquire(self, figure: str) -> float | None:
        from bench.gates.threshold import find_metric

        return find_metric(f"acquire.{figure}").value(self.measured)

    @property
    def safety(self) -> str:
        """SAFE, VIOLATED, UNKNOWN, or NOT TESTED: callers hardly met, or the servers were not asked
        for every lease."""
        return self.measured.safety.verdict

    @property
    def violations(self) -> int | None:
        """How often two callers held one lock at once; None when none was seen and too little was
        tested to say so."""
        faults = self.measured.safety.service_faults
        return faults if faults or self.safety in ("SAFE", "VIOLATED") else None


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What a test lets pass."""

    violations: bool
    not_tested: bool
    errors: float


class LockBenchmark:
    """Loads locks. A lock is a callable: from a name to a context manager that holds the lock of
    that name.

    Half of the callers are in a second process, a fork of this one: a lock that holds only within a
    process is violated. The callable is called anew in each process. Connections made before the
    fork are cut there, so clients that connect again (redis-py's do) may be made outside of it; for
    others there is `per_process`.
    """

    def __init__(self, name: str, session: _Session, fleet: Fleet) -> None:
        self._name = name
        self._session = session
        self._fleet = fleet

    def __call__(
        self,
        lock: OwnLock,
        *,
        thresholds: Sequence[str] = (),
        allow_violations: bool = False,
        allow_not_tested: bool = False,
        most_errors: float = 0.01,
        **load: Any,
    ) -> LockRun:
        """Load `lock` and return the figures; fail the test when the lock is not shown to hold.

        It fails when two callers held the lock at once, when that was not tested (unless
        `allow_not_tested`), when a late release deleted a stranger's lock, when more than
        `most_errors` of the operations raised what `refused` does not name, when no lease was
        granted, and when a threshold is broken or inconclusive. `thresholds`: such as "acquire.p99
        < 50ms", "rate >= 100/s", "safety.violations == 0". `load`: callers, seconds, warmup_s,
        resources (0: one name per caller; 1: all want the same), hold_s, ttl_s, refused (the
        exceptions by which the lock says no), processes (2; 1: all within this one, and the figures
        say so). `allow_violations`: the test is not about whether it locks.
        """
        from bench.gates.threshold import read_thresholds
        from bench.report.figures import threshold_text
        from bench.run.own_lock import OwnLoad

        __tracebackhide__ = True
        allowed = _Allowed(allow_violations, allow_not_tested or allow_violations, most_errors)
        limits = read_thresholds(thresholds)
        plan = OwnLoad(**load)
        with _failing():
            lone = self._prepared(lock, plan, allowed)
            run, broken = self._tested(lock, [self._measure(lock, plan, lone)], plan, lone, allowed)
        judged = [limit.judge(run.measured) for limit in limits]
        if not run.rate_per_s:
            broken.append(f"no lease was granted in the measured time, errors {dict(run.errors)}")
        broken += [
            f"{one.expression}: {one.status} ({threshold_text(one)})"
            for one in judged
            if one.status != "pass"
        ]
        self._say(_figures(run))
        if broken:
            pytest.fail(_shown("; ".join(broken)), pytrace=False)
        return run

    def gate(
        self,
        baseline: OwnLock,
        candidate: OwnLock,
        *,
        tolerance: float = 0.10,
        pairs: int = 24,
        metrics: Sequence[str] = ("acquire.p50", "rate", "acquire.success"),
        strict: bool = False,
        allow_violations: bool = False,
        allow_not_tested: bool = False,
        most_errors: float = 0.01,
        **load: Any,
    ) -> Sequence[Judged]:
        """Fail the test when `candidate` is slower than `baseline` by more than `tolerance` (0.1 =
        10 %), or succeeds less often by more than a point.

        It fails, too, when either lock is not shown to hold, as a call says: who does not lock is
        fast. Both run in turn, `pairs` times in random order; the rule is that of `lockbench gate`:
        identical code fails at most 1 time in 100. Without an answer the test is skipped, or failed
        if `strict`. `load` as for a call.
        """
        from bench.gates.threshold import find_metric
        from bench.run.own_lock import OwnLoad

        __tracebackhide__ = True
        if pairs < 1 or not metrics or not 0 <= tolerance < inf:
            raise pytest.UsageError(
                "a gate takes a pair or more, a metric or more, and a tolerance of 0 or more"
            )
        allowed = _Allowed(allow_violations, allow_not_tested or allow_violations, most_errors)
        metric_objects = [*map(find_metric, metrics)]
        plan = OwnLoad(**{"seconds": 0.25, "warmup_s": 0.05, **load})
        sides = (baseline, candidate)
        with _failing():
            lone = [self._prepared(lock, plan, allowed) for lock in sides]
            runs = self._sides(sides, plan, pairs, lone)
        judged = [
            _judged(metric, runs, tolerance, len(metric_objects)) for metric in metric_objects
        ]
        self._say(*map(_comparison, judged))
        for number, name in enumerate(("baseline", "candidate")):
            with _failing():
                tested, broken = self._tested(
                    sides[number], runs[number], plan, lone[number], allowed
                )
            self._say(f"{name}: {_safety(tested)}")
            if broken:
                pytest.fail(
                    _shown(f"the {name} is not shown to lock: {'; '.join(broken)}"), pytrace=False
                )
        doubts = "; ".join(_comparison(entry) for entry in judged if entry.verdict != "pass")
        if any(entry.verdict == "fail" for entry in judged) or (strict and doubts):
            pytest.fail(_shown(doubts), pytrace=False)
        if doubts:
            pytest.skip(_shown(f"the gate cannot tell: {doubts}"))
        return judged

    # A fork takes the dictionary along, with the client of its parent in it. The pid as key makes
    # the copy find nothing, and so it makes a client of its own. A plain cache would hand out the
    # parent's client in both processes.
    def per_process(self, make: Callable[[], Made]) -> Callable[[], Made]:
        """A function that returns what `make()` returns, made once in each process: for clients
        that no fork survives.

        `client = lock_benchmark.per_process(lambda: connect(lock_fleet.urls))`, then
        `lock_benchmark(lambda name: client().lock(name))`.
        """
        by_process: dict[int, Made] = {}
        guard = Lock()

        def own() -> Made:
            with guard:
                if getpid() not in by_process:
                    by_process[getpid()] = make()
                return by_process[getpid()]

        return own

    def _say(self, *lines: str) -> None:
        self._session.lines += [f"{self._name}: {line}" for line in lines]

    def _prepared(self, lock: OwnLock, load: OwnLoad, allowed: _Allowed) -> Sequence[int]:
        """Refuse what cannot be driven; what a lease takes of each server when nobody else wants
        it."""
        from bench.run.own_checks import (
            lone_commands,
            require_drivable,
            require_mutex,
            without_keys,
        )

        require_drivable(lock)
        without_keys(self._fleet.urls)
        lone = lone_commands(lock, self._fleet.urls)
        if not allowed.violations:
            require_mutex(lock, load, self._fleet.urls)
        return lone

    def _sides(
        self, locks: Sequence[OwnLock], load: OwnLoad, pairs: int, lone: Sequence[Sequence[int]]
    ) -> list[list[OwnRun]]:
        rng = Random(self._name)
        runs: list[list[OwnRun]] = [[], []]
        for _ in range(pairs):
            for side in rng.sample((0, 1), 2):
                runs[side].append(self._measure(locks[side], load, lone[side]))
        return runs

    # SAFE stands before NOT TESTED in `rank`, although it is the better word. `min` takes the worst
    # run, and one run that tested the lock is evidence for all runs of the same lock. In the other
    # order one run in which callers hardly met would undo the evidence of the rest. VIOLATED and
    # UNKNOWN still come first, whatever the other runs say.
    def _tested(
        self,
        lock: OwnLock,
        runs: Sequence[OwnRun],
        load: OwnLoad,
        lone: Sequence[int],
        allowed: _Allowed,
    ) -> tuple[LockRun, list[str]]:
        """The worst of the runs, with the safety of a probe where no run tested that it locks; and
        what is wrong with the lock."""
        from msgspec import structs

        from bench.run.own_checks import OwnerCheck, owner_check

        rank = ("VIOLATED", "UNKNOWN", "SAFE", "NOT TESTED")
        worst = min((run.measured for run in runs), key=lambda one: rank.index(one.safety.verdict))
        wrong = _raised(runs, allowed.errors, entering=True)
        if worst.safety.verdict == "NOT TESTED":
            load, probes = self._probed(lock, load, lone)
            worst = structs.replace(worst, safety=probes[-1].measured.safety)
            wrong += _raised(probes, allowed.errors, entering=False)
        violations = _violations(worst.safety)
        if allowed.violations:
            checked = OwnerCheck("not tested", "the test allows violations")
        elif violations:
            checked = OwnerCheck("not tested", "the lock was violated")
        else:
            checked = owner_check(lock, load, self._fleet.urls)
        if not allowed.violations:
            wrong += violations
        if checked.word == "deleted a stranger's lock":
            wrong.append(f"owner check: {checked}: {checked.reason}")
        if not allowed.not_tested and not violations:
            wrong += _untested(worst.safety, checked)
        errors = Counter[str]()
        for run in runs:
            errors.update(run.errors.by_type)
        return LockRun(worst, errors, len(load.shares), str(checked)), wrong

    def _probed(
        self, lock: OwnLock, load: OwnLoad, lone: Sequence[int]
    ) -> tuple[OwnLoad, list[OwnRun]]:
        """Short loads that test whether it locks: two callers or more want each of two names; if
        they hardly meet, as those of a lock that looks ten times a second, four want each of eight,
        for longer."""
        probes: list[OwnRun] = []
        for callers, resources, seconds in ((max(load.callers, 4), 2, 0.5), (32, 8, 2.0)):
            hold_s = max(load.hold_s, 0.001)
            load = replace(
                load,
                callers=callers,
                resources=resources,
                hold_s=hold_s,
                seconds=seconds,
                warmup_s=0.0,
            )
            probes.append(self._measure(lock, load, lone))
            if probes[-1].measured.safety.verdict != "NOT TESTED" or not probes[-1].commands:
                break
        return load, probes

    def _measure(self, lock: OwnLock, load: OwnLoad, lone: Sequence[int]) -> OwnRun:
        from bench.run.own_checks import without_keys
        from bench.run.own_lock import measure_own_lock

        without_keys(self._fleet.urls)
        return measure_own_lock(lock, load, self._fleet.urls, lone)


@contextmanager
def _failing() -> Iterator[None]:
    """Fail the test with the one sentence of an error of ours."""
    from bench.errors import BenchError

    __tracebackhide__ = True
    try:
        yield
    except BenchError as error:
        raise pytest.fail.Exception(_shown(str(error)), pytrace=False) from None


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and let no fleet outlive pytest."""
    config.addinivalue_line(
        "markers",
        "lock_fleet(instances=3, fsync='none'): the servers of lock_fleet, lock_benchmark",
    )
    config.stash[_SESSION] = session = _Session()
    # At the end of pytest this stops every fleet that was started.
    config.add_cleanup(session.stack.close)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show what was measured."""
    if lines := config.stash[_SESSION].lines:
        terminalreporter.section("locks")
        terminalreporter.write_line("\n".join(map(_shown, lines)))


@pytest.fixture
def lock_fleet(request: pytest.FixtureRequest) -> Fleet:
    """Servers for this test (3, in memory; the marker lock_fleet asks for others): `urls`,
    `instances`, `stop`, …

    They are empty at the test's start, used again by later tests, and gone when pytest ends,
    however it ends.
    """
    from redis import RedisError

    from bench.errors import BenchError
    from bench.screen import lines_of
    from bench.topology.fleet import start_fleet
    from bench.topology.target import emptied

    marker = request.node.get_closest_marker("lock_fleet")
    options = {"instances": 3, "fsync": "none", **(marker.kwargs if marker else {})}
    session = request.config.stash[_SESSION]
    key = (options["instances"], options["fsync"])
    if key not in session.fleets:
        try:
            session.fleets[key] = session.stack.enter_context(start_fleet(*key))
        except BenchError as error:
            pytest.fail("\n".join(map(_shown, lines_of(str(error)))), pytrace=False)
    fleet = session.fleets[key]
    try:
        emptied(fleet.urls)
    except RedisError:
        # An earlier test left an instance stopped or dead.
        fleet.restart(*range(len(fleet.urls)))
        emptied(fleet.urls)
    return fleet


@pytest.fixture
def lock_benchmark(request: pytest.FixtureRequest, lock_fleet: Fleet) -> LockBenchmark:
    """Loads a lock (a callable from a name to a context manager) and judges it; see
    LockBenchmark."""
    return LockBenchmark(request.node.name, request.config.stash[_SESSION], lock_fleet)


def _shown(line: str) -> str:
    """A line in letters that the screen has. pytest captures stdout, and writes to the one that was
    there before."""
    from bench.screen import clean, fit

    return fit(clean(line), getattr(sys.__stdout__, "encoding", None))


def _figures(run: LockRun) -> str:
    from bench.gates.threshold import find_metric
    from bench.report.figures import latency

    failed = f", errors {dict(run.errors)}" if run.errors else ""
    times = " ".join(
        f"{p} {latency(find_metric(f'acquire.{p}').value(run.measured))}" for p in ("p50", "p99")
    )
    return (
        f"{run.measured.rate.achieved_per_s or 0:,.0f} leases/s, acquire {times}, "
        f"{_safety(run)}{failed}"
    )


def _safety(run: LockRun) -> str:
    where = f"over {run.processes} processes" if run.processes > 1 else "within one process"
    checked = f"{where}, owner check: {run.owner_check}"
    if run.violations is None:
        return f"safety {run.safety} ({run.measured.safety.reason}), {checked}"
    return (
        f"{run.violations} violations in {run.measured.safety.tested_leases:,} tested leases "
        f"{checked}"
    )


def _violations(safety: SafetyReport) -> list[str]:
    """What is wrong with the lock as a lock."""
    if safety.verdict != "VIOLATED":
        return []
    return [f"the lock was violated: {safety.reason} (allow_violations=True goes on)"]


def _untested(safety: SafetyReport, checked: OwnerCheck) -> list[str]:
    """What nobody knows of the lock."""
    unknown = []
    if safety.verdict != "SAFE":
        unknown.append(f"safety {safety.verdict}: {safety.reason} (allow_not_tested=True goes on)")
    if checked.word == "not tested":
        unknown.append(f"owner check: {checked} (allow_not_tested=True goes on)")
    return unknown


def _raised(runs: Sequence[OwnRun], most: float, *, entering: bool) -> list[str]:
    """One sentence where more than the share `most` of the operations raised what no refusal is.
    `entering`: whether exceptions on entering count; in a load that a test did not ask for they may
    be refusals that it did not name."""
    from bench.run.own_lock import Errors

    total = Errors()
    abroad = Errors()
    for run in runs:
        total.add(run.errors)
        for one in run.by_process[1:]:
            abroad.add(one)
    operations = sum(run.operations for run in runs)
    number = total.later + (total.entering if entering else 0)
    if not number or number <= most * operations:
        return []
    sentence = (
        f"{number:,} of {operations:,} operations raised an exception "
        f"({number / operations:.1%}), and "
    )
    sentence += f"most_errors allows {most:.1%}; the first: {total.first[1] if total.first else ''}"
    if abroad.by_type == total.by_type:
        sentence += (
            "; only callers of the second process, a fork, raised any: where a client "
            "does not survive a fork, make it "
            "by lock_benchmark.per_process, or give processes=1"
        )
    elif total.entering and entering:
        sentence += "; name the exceptions by which the lock says no in refused="
    return [sentence]


def _judged(metric: Metric, runs: list[list[OwnRun]], tolerance: float, metrics: int) -> Judged:
    from bench.experiments.compare.judge import Sides, judge_figure

    before, after = ([metric.value(run.measured) for run in side] for side in runs)
    return judge_figure("gate", metric, Sides(before, after), tolerance, metrics=metrics)


def _comparison(judged: Judged) -> str:
    from bench.experiments.compare.words import change_text, interval_text

    change = f"{change_text(judged.ratio)} ({interval_text(judged)}) against the baseline"
    why = f", {judged.reason}" if judged.reason else ""
    return f"{judged.metric} {judged.verdict}: {change}, {judged.pairs} pairs{why}"
