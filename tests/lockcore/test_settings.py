"""What a Redlock was told is checked at the door, with the name and the range of what is wrong."""

from typing import Any

import pytest

from lockcore.clock import NS_PER_MS, drift_ns
from lockcore.settings import Settings


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"max_ttl_ms": 0}, "max_ttl_ms must be 1 … 86400000, not 0"),
        ({"max_ttl_ms": 86_400_001}, "max_ttl_ms"),
        ({"observe_every": 0}, "observe_every must be 1 …"),
        ({"drift_factor": -0.1}, "drift_factor must be 0 … 0.5"),
        ({"drift_factor": 0.6}, "drift_factor"),
        ({"drift_factor": float("nan")}, "drift_factor"),
        ({"connect_timeout_s": 0}, "connect_timeout_s must be 0.001 … 60"),
        ({"rejoin": "hope"}, "rejoin must be delay, trust-first or trust, not 'hope'"),
        ({"instance_timeout_ms": 0}, "instance_timeout_ms must be 0.1 … 2500"),
        ({"instance_timeout_ms": 2_501}, "instance_timeout_ms"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name_and_range(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(**arguments)


def test_what_is_allowed_at_the_edges_is_taken() -> None:
    Settings(max_ttl_ms=3, instance_timeout_ms=0.25)
    Settings(max_ttl_ms=86_400_000, drift_factor=0.5, observe_every=1 << 30, connect_timeout_s=60)


def test_what_is_not_said_is_what_the_readme_says() -> None:
    default = Settings()
    assert (default.max_ttl_ms, default.rejoin, default.drift_factor) == (10_000, "delay", 0.01)
    assert (default.observe_every, default.merge_releases, default.key_prefix) == (1, True, "")
    assert (default.lag_cap.operations, default.lag_cap.bytes, default.lag_cap.age_ms) == (
        20_000,
        8 << 20,
        50,
    )


def test_an_instance_timeout_above_a_quarter_of_the_ttl_is_refused() -> None:
    settings = Settings(instance_timeout_ms=100)
    assert settings.timeout_ns(400) == 100 * NS_PER_MS
    with pytest.raises(
        ValueError, match=r"instance_timeout_ms 100 is above a quarter of the TTL \(399 ms\)"
    ):
        settings.timeout_ns(399)


def test_a_ttl_above_that_of_the_fleet_is_refused() -> None:
    Settings().check_ttl(10_000)
    with pytest.raises(ValueError, match="ttl_ms is 10001, which is above max_ttl_ms"):
        Settings().check_ttl(10_001)


@pytest.mark.parametrize(
    "ttl_ms, factor, expected_ms",
    [(10_000, 0.01, 102), (100, 0.01, 3), (1, 0.0, 2), (500, 0.1, 52)],
)
def test_drift_is_a_share_of_the_ttl_and_two_ms(
    ttl_ms: int, factor: float, expected_ms: float
) -> None:
    assert drift_ns(ttl_ms, factor) == expected_ms * NS_PER_MS
