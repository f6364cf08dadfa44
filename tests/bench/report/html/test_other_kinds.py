"""Results that are no runs: each picture says what its result says, from results small enough to
read."""

import json
from pathlib import Path

from bench.experiments.capacity.words import figures as capacity_figures
from bench.experiments.compare.result import ComparedSide, ComparedVerdict, ComparisonResult
from bench.experiments.compare.words import figures as comparison_figures
from bench.experiments.durability.price_result import FsyncResult
from bench.experiments.durability.price_words import figures as fsync_figures
from bench.measure.environment import describe_environment
from bench.measure.section import typed
from tests.doubles.capacity_points import capacity_result, point, probe
from tests.doubles.compared import judged


def capacity(low=1_000.0, high=1_050.0, **given):
    rates = {1: 900.0, 4: 3_000.0, 16: 6_000.0, 64: 5_000.0, 256: 2_500.0}
    acquire = {"count": 1, "mean": 0.001, "p50": 0.001, "p99": 0.002}
    callers = [
        {"users": users, "achieved_per_s": rate, "acquire_s": acquire, "generator_cpu_ratio": 0.1}
        for users, rate in rates.items()
    ]
    probes = [probe(1_000.0, "held", 0.004), probe(2_000.0, "missed", 0.03)]
    knee = {"rate_per_s": 700.0, "acquire_s": acquire}
    usual = {"probes": probes, "knee": knee, "callers": callers}
    return point(low, high, **{**usual, **given})


def test_a_capacity_shows_its_interval():
    (search,) = capacity_figures(capacity_result(capacity()))
    assert search.title.endswith(
        "1,000–1,050 leases/s, 95 % sure, at acquire.p99 < 10ms; knee at 700/s"
    )
    assert search.svg.count("circle") == 2
    assert 'class="found"' in search.svg


def compared(*entries):
    sides = tuple(
        ComparedSide(label=label, scenario=None, fleet=None, environment=None)
        for label in ("old", "new")
    )
    return ComparisonResult(
        id="x",
        command=(),
        started_at="",
        duration_s=1.0,
        environment=describe_environment(),
        kind="gate",
        verdict=ComparedVerdict(status="fail", reasons=()),
        planned_pairs=10,
        sides=sides,
        differs=(),
        tolerance_ratio=0.1,
        finished_pairs=10,
        paired=True,
        repeated_pairs=0,
        sharp=True,
        missed_ratio=None,
        metrics=entries,
        exact=None,
        thresholds=(),
        runs=(),
    )


def test_a_comparison_shows_each_change_with_its_interval():
    entries = (
        judged("fail", ratio=0.8, low=0.75, high=0.85),
        judged("inconclusive", metric="acquire.p99", unit="s", ratio=1.02, higher_is_better=False),
        judged("pass", ratio=1.0, low=0.9, high=1.1, role="noise"),
    )
    (figure,) = comparison_figures(compared(*entries))
    assert figure.title == "new against old: rate -20.0 % (fail), acquire.p99 +2.0 % (inconclusive)"
    assert "-25.0 … -15.0 %" in figure.svg
    assert figure.svg.count('class="line solid') == 3, "one has an interval, with its two ends"
    assert "shows the tolerance, which is 10 %" in figure.about


def of_fsync(costs, options, advice):
    """A stored result with these costs and options."""
    old = json.loads(
        (Path(__file__).parents[3] / "histories/results/fsync.json").read_text("utf-8")
    )
    planner = old["planner"] | {"options": options, "advice": [advice]}
    return typed(old | {"costs": costs, "planner": planner}, FsyncResult)


def test_what_always_costs_and_the_planner_with_and_without_crashes():
    cost = {
        "instances": 1,
        "clients": 1,
        "pipeline": 1,
        "injected_ms": 2.0,
        "generator_bound": False,
    }
    known = ((1, 57.4, 51.0), (64, 6.9, 6.0))
    costs = [
        cost | {"pipeline": callers, "ratio": ratio, "low": low, "high": 60.0}
        for callers, ratio, low in known
    ]
    costs.append(cost | {"pipeline": 4096, "ratio": 0.9})
    spread = {"median": 9_000.0, "low": 8_000.0, "high": 9_500.0}
    unsafe = {
        "cuts": 20,
        "lost_per_cut": {"median": 5, "max": 90},
        "double_grants": 9,
        "lost_window_max_s": None,
        "unavailable_s": {"median": 0, "max": 0},
    }
    safe = unsafe | {"lost_per_cut": {"median": 0, "max": 0}, "double_grants": 0}
    options = [
        {
            "instances": 3,
            "policy": policy,
            "restart": None,
            "acquired_per_s": spread,
            "p99_s": 0.01,
            "sustained": True,
            "generator_bound": policy == "everysec",
            "crash": safe if policy == "always" else unsafe,
        }
        for policy in ("everysec", "always")
    ]
    figures = fsync_figures(of_fsync(costs, options, "take always"))
    assert [figure.name for figure in figures] == ["costs"]
    assert [row[-1] for row in figures[0].rows] == [60.0, 60.0], "what has no interval is not drawn"
    assert figures[0].title == "the policy always costs between 6.9× (6.0–60) and 57× (51–60)"
    for option in options:
        option["crash"] = None
    assert fsync_figures(of_fsync([], options, "measure crashes")) == []


def test_a_change_by_a_multiple_is_drawn_on_a_log_scale():
    changed = judged(
        "different", metric="acquire.p50", ratio=40.0, low=35.0, high=50.0, higher_is_better=False
    )
    (figure,) = comparison_figures(compared(changed))
    assert "second ÷ first (log scale)" in figure.svg
    assert figure.title == "new against old: acquire.p50 +3900 % (worse)"
