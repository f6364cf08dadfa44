"""Validity with clocks of any rate within the drift: proved, and disproved without what it stands
on."""

import pytest

pytest.importorskip("z3", reason="the wheel z3-solver is missing (pip install z3-solver)")
from tests.model.validity import counterexample


@pytest.mark.parametrize("instances", range(1, 8))
def test_two_leases_are_never_valid_at_once(instances: int) -> None:
    assert counterexample(instances) is None


@pytest.mark.parametrize(
    "broken",
    [{"quorum": 2}, {"drift": "0"}, {"margin_ms": "0"}, {"from_grant": True}],
    ids=["a quorum of two of five", "no drift", "no margin for rounding", "counted from the grant"],
)
def test_without_what_it_stands_on_they_are(broken: dict) -> None:  # type: ignore[type-arg]
    assert counterexample(5, **broken) is not None
