"""Fixtures for the locks of other projects: *a test and a lock → a throw-away fleet, figures, a verdict*.

Cheap to import, because an entry point is loaded by every pytest of the environment: everything heavy is imported when
a fixture is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bench.experiments.compare.result import Judged
    from bench.gates.threshold import Metric
    from bench.measure.run_result import Measured
    from bench.run.own_lock import OwnLoad, OwnLock
    from bench.topology.fleet import Fleet


@dataclass(slots=True)
class _Session:
    """What lives as long as pytest: fleets by (instances, fsync), and what was measured."""

    stack: ExitStack = field(default_factory=ExitStack)
    fleets: dict[tuple[int, str], Fleet] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


_SESSION: pytest.StashKey[_Session] = pytest.StashKey()


@dataclass(frozen=True, slots=True)
class LockRun:
    """What one benchmark showed: sections as those of result.json. `errors`: exceptions of the lock by type, refusals
    left out."""

    measured: Measured
    errors: Mapping[str, int]

    @property
    def rate_per_s(self) -> float:
        """Leases per second."""
        return self.measured.rate.achieved_per_s or 0.0

    @property
    def p50_s(self) -> float | None:
        """Median time of an acquire (s), inf where half of them failed; None with fewer than ten samples beyond it."""
        return self._acquire("p50")

    @property
    def p99_s(self) -> float | None:
        """The time (s) that 99 of 100 acquires do not exceed, inf where more failed; None as for `p50_s`."""
        return self._acquire("p99")

    def _acquire(self, figure: str) -> float | None:
        from bench.gates.threshold import find_metric

        return find_metric(f"acquire.{figure}").value(self.measured)

    @property
    def safety(self) -> str:
        """SAFE, VIOLATED, UNKNOWN, or NOT TESTED: callers hardly met, or the servers were not asked for every lease."""
        return self.measured.safety.verdict

    @property
    def violations(self) -> int | None:
        """How often two callers held one lock at once; None when none was seen and too little was tested to say so."""
        seen = self.measured.safety.service_faults
        return seen if seen or self.safety in ("SAFE", "VIOLATED") else None


class LockBenchmark:
    """Loads locks. A lock is a callable: from a name to a context manager that holds the lock of that name."""

    def __init__(self, name: str, session: _Session, fleet: Fleet) -> None:
        self._name, self._session, self._fleet = name, session, fleet

    def __call__(
        self, lock: OwnLock, *, thresholds: Sequence[str] = (), allow_violations: bool = False, **load: Any
    ) -> LockRun:
        """Load `lock` and return the figures; fail the test when two callers held it at once or a threshold is broken.

        `thresholds`: such as "acquire.p99 < 50ms", "rate >= 100/s", "safety.violations == 0". `load`: callers,
        seconds, warmup_s, resources (0: one name per caller; 1: all want the same), hold_s, ttl_s, refused (the
        exceptions by which the lock says no). An inconclusive threshold fails, too: it has not been kept; and so does
        a lock that was never got.
        `allow_violations`: the test is not about whether it locks.
        """
        from bench.gates.threshold import read_thresholds
        from bench.report.figures import threshold_text
        from bench.run.own_lock import OwnLoad

        __tracebackhide__ = True
        limits, plan = read_thresholds(thresholds), OwnLoad(**load)
        run = self._tested(lock, [self._measure(lock, plan)], plan)
        judged = [limit.judge(run.measured) for limit in limits]
        broken = [] if allow_violations else _violations(run)
        if not run.rate_per_s:
            broken.append(f"no lease was granted in the measured time, errors {dict(run.errors)}")
        broken += [f"{one.expression}: {one.status} ({threshold_text(one)})" for one in judged if one.status != "pass"]
        self._say(_figures(run))
        if broken:
            pytest.fail("; ".join(broken), pytrace=False)
        return run

    def gate(
        self,
        baseline: OwnLock,
        candidate: OwnLock,
        *,
        tolerance: float = 0.10,
        pairs: int = 24,
        metrics: Sequence[str] = ("acquire.p50", "rate"),
        strict: bool = False,
        allow_violations: bool = False,
        **load: Any,
    ) -> Sequence[Judged]:
        """Fail the test when `candidate` is slower than `baseline` by more than `tolerance` (0.1 = 10 %).

        It fails, too, when callers of either held a lock at once, unless `allow_violations`: who does not lock is fast.
        Both run in turn, `pairs` times in random order; the rule is that of `lockbench gate`: identical code fails at
        most 1 time in 100. Without an answer the test is skipped, or failed if `strict`. `load` as for a call.
        """
        from bench.gates.threshold import find_metric
        from bench.run.own_lock import OwnLoad

        __tracebackhide__ = True
        if pairs < 1 or not metrics or not 0 <= tolerance < inf:
            raise pytest.UsageError("a gate takes a pair or more, a metric or more, and a tolerance of 0 or more")
        found, plan = [*map(find_metric, metrics)], OwnLoad(**{"seconds": 0.25, "warmup_s": 0.05, **load})
        runs = self._sides((baseline, candidate), plan, pairs)
        judged = [_judged(metric, runs, tolerance, len(found)) for metric in found]
        self._say(*map(_comparison, judged))
        for name, lock, side in zip(("baseline", "candidate"), (baseline, candidate), runs, strict=True):
            tested = self._tested(lock, side, plan)
            self._say(f"{name}: {_safety(tested)}")
            if not allow_violations and (broken := _violations(tested)):
                pytest.fail(f"the {name} does not lock: {broken[0]}", pytrace=False)
        said = "; ".join(_comparison(entry) for entry in judged if entry.verdict != "pass")
        if any(entry.verdict == "fail" for entry in judged) or (strict and said):
            pytest.fail(said, pytrace=False)
        if said:
            pytest.skip(f"the gate cannot tell: {said}")
        return judged

    def _say(self, *lines: str) -> None:
        self._session.lines += [f"{self._name}: {line}" for line in lines]

    def _sides(self, locks: Sequence[OwnLock], load: OwnLoad, pairs: int) -> list[list[LockRun]]:
        rng = Random(self._name)
        runs: list[list[LockRun]] = [[], []]
        for _ in range(pairs):
            for side in rng.sample((0, 1), 2):
                runs[side].append(self._measure(locks[side], load))
        return runs

    def _tested(self, lock: OwnLock, runs: Sequence[LockRun], load: OwnLoad) -> LockRun:
        """The worst of the runs; where none tested that it locks, with the safety of a short load that does."""
        from msgspec import structs

        rank = ("VIOLATED", "UNKNOWN", "SAFE", "NOT TESTED")
        worst = min(runs, key=lambda run: rank.index(run.safety))
        if worst.safety != "NOT TESTED":
            return worst
        callers, hold_s = max(load.callers, 4), max(load.hold_s, 0.001)  # at least two want each of two names
        short = replace(load, callers=callers, resources=2, hold_s=hold_s, seconds=0.5, warmup_s=0.0)
        safety = self._measure(lock, short).measured.safety
        return LockRun(structs.replace(worst.measured, safety=safety), worst.errors)

    def _measure(self, lock: OwnLock, load: OwnLoad) -> LockRun:
        from bench.run.own_lock import measure_own_lock
        from bench.topology.target import emptied

        emptied(self._fleet.urls)
        return LockRun(*measure_own_lock(lock, load, self._fleet.urls))


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and let no fleet outlive pytest."""
    config.addinivalue_line(
        "markers", "lock_fleet(instances=3, fsync='none'): the servers of lock_fleet, lock_benchmark"
    )
    config.stash[_SESSION] = session = _Session()
    config.add_cleanup(session.stack.close)  # every fleet that was started


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show what was measured."""
    if lines := config.stash[_SESSION].lines:
        terminalreporter.section("locks")
        terminalreporter.write_line("\n".join(lines))


@pytest.fixture
def lock_fleet(request: pytest.FixtureRequest) -> Fleet:
    """Servers for this test (3, in memory; the marker lock_fleet asks for others): `urls`, `instances`, `stop`, …

    They are empty at the test's start, used again by later tests, and gone when pytest ends, however it ends.
    """
    from redis import RedisError

    from bench.errors import BenchError
    from bench.topology.fleet import start_fleet
    from bench.topology.target import emptied

    marker = request.node.get_closest_marker("lock_fleet")
    wanted = {"instances": 3, "fsync": "none", **(marker.kwargs if marker else {})}
    session, key = request.config.stash[_SESSION], (wanted["instances"], wanted["fsync"])
    if key not in session.fleets:
        try:
            session.fleets[key] = session.stack.enter_context(start_fleet(*key))
        except BenchError as error:
            pytest.fail(str(error), pytrace=False)
    fleet = session.fleets[key]
    try:
        emptied(fleet.urls)
    except RedisError:
        fleet.restart(*range(len(fleet.urls)))  # an earlier test left one stopped, or dead
        emptied(fleet.urls)
    return fleet


@pytest.fixture
def lock_benchmark(request: pytest.FixtureRequest, lock_fleet: Fleet) -> LockBenchmark:
    """Loads a lock (a callable from a name to a context manager) and judges it; see LockBenchmark."""
    return LockBenchmark(request.node.name, request.config.stash[_SESSION], lock_fleet)


def _figures(run: LockRun) -> str:
    from bench.gates.threshold import find_metric
    from bench.report.figures import latency

    failed = f", errors {dict(run.errors)}" if run.errors else ""
    times = " ".join(f"{p} {latency(find_metric(f'acquire.{p}').value(run.measured))}" for p in ("p50", "p99"))
    return f"{run.measured.rate.achieved_per_s or 0:,.0f} leases/s, acquire {times}, {_safety(run)}{failed}"


def _safety(run: LockRun) -> str:
    if run.violations is None:
        return f"safety {run.safety} ({run.measured.safety.reason})"
    return f"{run.violations} violations"


def _violations(run: LockRun) -> list[str]:
    """What is wrong with the lock as a lock."""
    said = f"the lock was violated: {run.measured.safety.reason} (allow_violations=True goes on)"
    return [said] if run.safety == "VIOLATED" else []


def _judged(metric: Metric, runs: list[list[LockRun]], tolerance: float, metrics: int) -> Judged:
    from bench.experiments.compare.judge import Sides, judge_figure

    before, after = ([metric.value(run.measured) for run in side] for side in runs)
    return judge_figure("gate", metric, Sides(before, after), tolerance, metrics=metrics)


def _comparison(judged: Judged) -> str:
    from bench.experiments.compare.words import change_text, interval_text

    change = f"{change_text(judged.ratio)} ({interval_text(judged)}) against the baseline"
    why = f", {judged.reason}" if judged.reason else ""
    return f"{judged.metric} {judged.verdict}: {change}, {judged.pairs} pairs{why}"
