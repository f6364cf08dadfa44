"""The Universal Scalability Law: found again from its own points, refused where the points do not carry it."""

from __future__ import annotations

import numpy as np
import pytest

from bench.experiments.capacity import usl
from bench.experiments.capacity.usl import Law, fit_law, throughput


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usl, "RESAMPLES", 100)  # each is a fit of its own


CALLERS = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def points(contention: float, coherency: float, noise: float = 0.0, seed: int = 1) -> list[float]:
    dice = np.random.default_rng(seed)
    curve = throughput(np.array(CALLERS, float), 5_000.0, contention, coherency)
    return list(curve * np.exp(dice.normal(0, noise, len(CALLERS))))


def test_a_law_is_found_again_from_its_own_points() -> None:
    law = fit_law(CALLERS, points(0.02, 3e-4))
    assert isinstance(law, Law)
    assert law.rate_of_one.value == pytest.approx(5_000, rel=0.01)
    assert law.contention.value == pytest.approx(0.02, rel=0.05)
    assert law.coherency.value == pytest.approx(3e-4, rel=0.05)
    assert law.peak_callers.value == pytest.approx(np.sqrt(0.98 / 3e-4), rel=0.05)


def test_with_noise_the_interval_holds_the_truth() -> None:
    law = fit_law(CALLERS, points(0.02, 3e-4, noise=0.04))
    assert isinstance(law, Law)
    assert law.peak_callers.low <= np.sqrt(0.98 / 3e-4) <= law.peak_callers.high
    assert law.peak_rate.low < law.peak_rate.value < law.peak_rate.high


def test_few_points_are_refused() -> None:
    law = fit_law(CALLERS[:7], points(0.02, 3e-3)[:7])
    assert isinstance(law, str)
    assert "7 points" in law


def test_a_plateau_is_no_peak() -> None:
    law = fit_law(CALLERS, [1_000.0 * min(callers, 10) for callers in CALLERS])
    assert isinstance(law, str)
    assert "past the peak" in law


def test_points_of_no_law_are_refused() -> None:
    law = fit_law(CALLERS, [100.0, 9_000.0, 200.0, 12_000.0, 150.0, 15_000.0, 90.0, 60.0, 20_000.0 / 1e3])
    assert isinstance(law, str)
    assert "misses the points" in law
