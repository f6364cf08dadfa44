"""The interval that a capacity is: servers of known capacity, simulated on a noisy machine, lie
inside it."""

from collections.abc import Callable

import numpy as np
import pytest
from msgspec import structs

from bench.experiments.capacity.model import Model, interval_of
from bench.experiments.capacity.probe import read_slo
from bench.experiments.capacity.result import Capacity, ClosedLoop, Probe, Seen
from bench.experiments.capacity.search import LEAST_PROBES, Findings, capacity_of, next_probe
from bench.measure.section import typed
from tests.doubles.capacity_points import ACQUIRE, probe

SLO = read_slo(["acquire.p99 < 20ms"])
PROBE = typed(probe(1.0), Probe)
LOOP = typed(
    {"users": 16, "achieved_per_s": 1.0, "acquire_s": ACQUIRE, "generator_cpu_ratio": 0.5},
    ClosedLoop,
)
WINDOW_S = 2.0
LIMIT_S = 0.02
NARROW = 0.15
See = Callable[[float], bool]


def queueing(
    capacity: float, rng: np.random.Generator, *, spoilt: float = 0.05, wobble: float = 0.03
) -> See:
    """One server with a queue, even arrivals: whether at some rate 1 in 100 at most waits 20 ms. Of
    a probe's time the machine takes a part (`wobble`, of the service time), and of all probes it
    stops `spoilt` for 60 ms."""

    def look(rate: float) -> bool:
        count = int(rate * WINDOW_S) + 1
        due_s = np.arange(count) / rate
        service_s = np.exp(abs(rng.normal(0, wobble))) / capacity
        work_s = np.full(count, service_s)
        if rng.random() < spoilt:
            work_s[rng.integers(count)] += 0.06
        done_s = np.cumsum(work_s)
        took_s = done_s + np.maximum.accumulate(due_s - (done_s - work_s)) - due_s
        return bool((took_s >= LIMIT_S + 2 * service_s).mean() <= 0.01)

    return look


def found(see: See, reached: float, most: int = 16) -> tuple[Capacity, int]:
    """What a search comes to, and after how many probes."""
    findings = Findings(callers=[structs.replace(LOOP, achieved_per_s=reached)])
    while len(findings.probes) < most and (rate := next_probe(findings, SLO)[1]):
        seen = Seen.HELD if see(rate) else Seen.MISSED
        findings.probes.append(structs.replace(PROBE, rate_per_s=rate, seen=seen))
    return capacity_of(findings, SLO), len(findings.probes)


def searches(number: int, most: int = 16, **noise: float) -> list[tuple[float, Capacity]]:
    """So many searches for capacities between 100 and 20,000/s: the truth, and what was found."""
    rng = np.random.default_rng(14)
    truths = np.exp(rng.uniform(np.log(100), np.log(20_000), number)).tolist()
    return [
        (
            truth,
            found(queueing(truth, rng, **noise), truth * float(np.exp(rng.normal(0.1, 0.3))), most)[
                0
            ],
        )
        for truth in truths
    ]


def inside(pairs: list[tuple[float, Capacity]]) -> float:
    """The share of searches whose interval holds the truth."""
    return float(
        np.mean([(one.low or 0.0) <= truth <= (one.high or np.inf) for truth, one in pairs])
    )


@pytest.mark.parametrize(("spoilt", "wobble"), [(0.0, 0.0), (0.05, 0.03), (0.1, 0.05)])
def test_servers_of_known_capacity_are_inside_and_the_interval_is_narrow(
    spoilt: float, wobble: float
) -> None:
    """At least 19 of 20; 16 probes are what --quick has time for."""
    pairs = searches(40, spoilt=spoilt, wobble=wobble)
    assert inside(pairs) >= 0.95
    assert np.median([one.width for _, one in pairs]) <= NARROW


@pytest.mark.slow
def test_thousands_of_searches_on_a_noisy_machine_are_inside() -> None:
    pairs = searches(2_000)
    assert inside(pairs) >= 0.95
    assert np.mean([one.width <= NARROW for _, one in pairs]) >= 0.9


def test_a_model_that_knows_no_bad_moment_and_no_noise_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.experiments.capacity.model._SPOILT", np.array([1e-6, 1e-6, 1e-6]))
    monkeypatch.setattr("bench.experiments.capacity.model._WIDTHS", np.geomspace(0.001, 0.01, 5))
    monkeypatch.setattr("bench.experiments.capacity.model._LUCKY", 1e-6)
    assert inside(searches(40, spoilt=0.1, wobble=0.05)) < 0.8


REACHED = (1_300.0, 1_300.0)


@pytest.mark.parametrize("seed", range(40))
def test_held_and_missed_at_one_rate_widens_the_interval(seed: int) -> None:
    rng = np.random.default_rng(seed)
    see = queueing(1_000 * float(np.exp(rng.normal(0, 0.3))), rng, spoilt=0.1)
    looks = list[tuple[float, bool]]()
    for _ in range(rng.integers(1, 14)):
        rate = Model(REACHED, looks).next_rate()
        looks.append((rate, see(rate)))
    rate, held = looks[rng.integers(len(looks))]
    before = interval_of(REACHED, looks)
    after = interval_of(REACHED, [*looks, (rate, not held)])
    assert after.low <= before.low
    assert after.high >= before.high


@pytest.mark.parametrize("bad", [True, False])
def test_one_probe_makes_nothing_sure(bad: bool) -> None:
    """Nor does one that says the opposite move an interval past what many have said."""
    alone = interval_of(REACHED, [(1_000.0, bad)])
    assert alone.width > 2 * NARROW
    sure = [
        (rate, rate < 1_000)
        for rate in (700.0, 800.0, 900.0, 950.0, 970.0, 1_030.0, 1_050.0, 1_100.0, 1_200.0)
    ]
    doubted = interval_of(REACHED, [*sure, (400.0 if not bad else 2_500.0, bad)])
    assert doubted.low < 1_000 < doubted.high
    assert doubted.width >= interval_of(REACHED, sure).width


def test_held_and_missed_by_turns_is_no_answer() -> None:
    looks = [
        (rate, number % 2 == 0) for number, rate in enumerate(np.geomspace(300, 3_000, 16).tolist())
    ]
    assert interval_of(REACHED, looks).width > 2 * NARROW


def test_the_narrower_the_interval_the_fewer_probes_are_expected() -> None:
    narrow = interval_of(
        REACHED, [(rate, rate < 1_000) for rate in np.geomspace(800, 1_250, 12).tolist()]
    )
    assert narrow.probes_left(12) < interval_of(REACHED, []).probes_left(0) <= 20


def test_the_first_probe_is_near_what_the_closed_loop_reached() -> None:
    rate = next_probe(Findings(callers=[structs.replace(LOOP, achieved_per_s=17_536.0)]), SLO)[1]
    assert rate is not None
    assert 0.3 * 17_536 < rate < 17_536


def test_what_is_far_from_what_the_closed_loop_reached_is_found_too() -> None:
    for factor in (0.1, 3.0):
        capacity, probes = found(
            queueing(1_000, np.random.default_rng(3), spoilt=0, wobble=0), 1_000 / factor, 30
        )
        assert (capacity.low or 0) <= 1_000 <= (capacity.high or 0)
        assert LEAST_PROBES <= probes <= 30
