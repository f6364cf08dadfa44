"""The Universal Scalability Law: found again from its own points, refused where the points do not carry it."""

import numpy as np
import pytest

from bench.experiments.capacity import usl
from bench.experiments.capacity.usl import Law, fit_law, throughput


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usl, "RESAMPLES", 100)  # each is a fit of its own


CALLERS = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def points(contention: float, coherency: float, noise: float = 0.0, seed: int = 1) -> list[float]:
    rng = np.random.default_rng(seed)
    curve = throughput(np.array(CALLERS, float), 5_000.0, contention, coherency)
    return list(curve * np.exp(rng.normal(0, noise, len(CALLERS))))


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


@pytest.mark.parametrize(
    ("callers", "rates", "said"),
    [
        (CALLERS[:7], points(0.02, 3e-3)[:7], "7 points"),
        (CALLERS, [1_000.0 * min(callers, 10) for callers in CALLERS], "past the peak"),  # a plateau is no peak
        (CALLERS, [100.0, 9e3, 200.0, 12e3, 150.0, 15e3, 90.0, 60.0, 20.0], "misses the points"),  # points of no law
    ],
)
def test_points_that_carry_no_law_are_refused(callers: list[int], rates: list[float], said: str) -> None:
    assert said in str(fit_law(callers, rates))
