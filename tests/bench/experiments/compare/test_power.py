"""What the gate is worth on real noise: pairs of equal runs were recorded, and gates are simulated from them.

noise-busy.json and noise-overloaded.json hold A/A pairs (one scenario on both sides, there and back) of a machine that
others worked on at the same time, far more than a CI runner's neighbours do; `about` says when and how. A gate draws
24 pairs with replacement; as the order in a pair is random, its sides may be swapped. A slowdown is planted by dividing
the candidate's rates and multiplying its times.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.experiments.compare.command import CLOSED, PAIRS
from bench.experiments.compare.judge import Sides, gate_confidence, judge_comparison, judge_figure
from bench.gates.threshold import Metric, find_metric
from bench.measure.statistics import paired_shift
from tests.doubles.compared import compared_run

HERE = Path(__file__).parent
NOISE = {name: json.loads((HERE / f"noise-{name}.json").read_text("utf-8")) for name in ("busy", "overloaded")}
JUDGED = tuple(map(find_metric, CLOSED))
WAITS = ("rate", "acquire.p50")  # a lock that only waits longer
SLOWER = (*WAITS, "cost.client_cpu_us_per_cycle")  # slower code: it works longer
TOLERANCE = 0.1
GATES = pytest.mark.parametrize("gates", [100, pytest.param(1_000, marks=pytest.mark.slow)])
RUNS = [compared_run()]


class Gates:
    """Simulated gates over identical code; the candidate's `slowed` figures get worse by a factor."""

    def __init__(self, noise: str, seed: int, *, slowed: tuple[str, ...] = SLOWER, wilder: float = 1.0) -> None:
        self._pairs = NOISE[noise]["pairs"]
        self._rng = np.random.default_rng(seed)
        self._slowed, self._wilder = slowed, wilder

    def verdicts(self, gates: int, slowdown: float) -> dict[str, int]:
        """How often each word came."""
        words = [self._verdict(slowdown) for _ in range(gates)]
        return {word: words.count(word) for word in ("pass", "fail", "inconclusive")}

    def draw(self, pairs: int) -> tuple[Any, Any]:
        """Which recorded pairs a gate saw, and in which of them the sides are swapped."""
        return self._rng.integers(0, len(self._pairs["rate"]), pairs), self._rng.integers(0, 2, pairs).astype(bool)

    def values(self, metric: Metric, drawn: tuple[Any, Any], slowdown: float) -> Sides:
        """What both sides showed; `wilder` stretches the recorded noise."""
        chosen, swapped = drawn
        both = np.log(np.asarray(self._pairs[metric.name], float)[chosen])
        both = np.where(swapped[:, None], both[:, ::-1], both)
        middle = both.mean(axis=1, keepdims=True)
        both = np.exp(middle + (both - middle) * self._wilder)
        factor = (1 / slowdown if metric.higher_is_better else slowdown) if metric.name in self._slowed else 1.0
        return Sides(list(both[:, 0]), list(both[:, 1] * factor))

    def _verdict(self, slowdown: float) -> str:
        drawn = self.draw(PAIRS["gate"])
        entries = [
            judge_figure("gate", metric, self.values(metric, drawn, slowdown), TOLERANCE, metrics=len(JUDGED))
            for metric in JUDGED
        ]
        return judge_comparison("gate", RUNS, entries, labels=["baseline"]).status


@pytest.mark.parametrize("noise", NOISE)
def test_the_noise_is_real_and_says_where_it_is_from(noise: str) -> None:
    recorded = NOISE[noise]
    assert {"recorded", "machine", "load", "runs"} <= recorded["about"].keys()
    assert {len(values) for values in recorded["pairs"].values()} == {len(recorded["pairs"]["rate"])}
    assert len(recorded["pairs"]["rate"]) >= 30
    assert {metric.name for metric in JUDGED} <= recorded["pairs"].keys()


@pytest.mark.parametrize("gates", [300, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("noise", "wilder"), [("busy", 1.0), ("overloaded", 4.0)])
def test_identical_code_fails_at_most_once_in_a_hundred_gates(noise: str, wilder: float, gates: int) -> None:
    assert Gates(noise, 1, wilder=wilder).verdicts(gates, 1.0)["fail"] <= 0.01 * gates


@GATES
@pytest.mark.parametrize("noise", NOISE)
def test_code_slower_by_15_percent_is_caught_95_times_in_a_hundred(noise: str, gates: int) -> None:
    found = Gates(noise, 2).verdicts(gates, 1.15)
    assert found["fail"] >= 0.95 * gates
    assert found["pass"] == 0


@GATES
@pytest.mark.parametrize("noise", NOISE)
def test_a_longer_wait_alone_never_passes_and_is_caught_where_the_noise_allows(noise: str, gates: int) -> None:
    found = Gates(noise, 3, slowed=WAITS).verdicts(gates, 1.15)
    assert found["fail"] >= {"busy": 0.9, "overloaded": 0.6}[noise] * gates
    assert found["pass"] == 0
    assert Gates(noise, 4, slowed=WAITS).verdicts(gates, 1.25)["fail"] >= 0.95 * gates


@GATES
def test_an_improvement_passes(gates: int) -> None:
    assert Gates("busy", 5).verdicts(gates, 1 / 1.25)["pass"] >= 0.95 * gates


def test_the_rule_that_looks_at_one_end_only_would_fail_identical_code() -> None:
    """Negative control: "fails if the interval's bad end passes the tolerance" alarms for nothing."""
    gates, alarms = Gates("busy", 6), 0
    for _ in range(200):
        values = gates.values(JUDGED[0], gates.draw(10), 1.0)
        first, second = values.known()
        differences = [float(np.log(a / b)) for a, b in zip(first, second, strict=True)]
        alarms += paired_shift(differences, gate_confidence(1)).high > np.log(1 + TOLERANCE)
    assert alarms > 20
