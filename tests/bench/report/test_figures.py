"""Numbers as people read them: the unit fits, and rounding never turns some into none or most into
all."""

import pytest

from bench.report.figures import count, latency, milliseconds, percent, share


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0.0, "0 µs"),
        (0.0000412, "41 µs"),
        (0.00041, "0.41 ms"),
        (0.009994, "9.99 ms"),
        (0.009996, "10.0 ms"),
        (0.09996, "100 ms"),
        (0.9, "900 ms"),
        (1.2345, "1.23 s"),
        (61.04, "61.04 s"),
    ],
)
def test_a_latency_has_its_unit(seconds: float | None, text: str) -> None:
    assert latency(seconds) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, "–"),
        (0.0, "0.0 %"),
        (0.00001, "< 0.1 %"),
        (0.987, "98.7 %"),
        (0.99999, "> 99.9 %"),
        (1.0, "100.0 %"),
    ],
)
def test_a_share_is_all_only_when_it_is(ratio: float | None, text: str) -> None:
    assert percent(ratio) == text


def test_counts_shares_and_odds() -> None:
    assert (count(229_641), count(3.26), count(0), count(None)) == ("229,641", "3.3", "0", "–")
    assert (share(1, 4), share(1, 0)) == ("25.0 %", "–")
    assert milliseconds(0.000005) == "0.01"
