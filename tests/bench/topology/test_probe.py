"""Which instances may stand beside each other, decided from their facts alone."""

import dataclasses

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.topology.probe import InstanceFacts, require_independent

FIRST = InstanceFacts(0, "a:1", False, run_id="r1", role="primary", cluster=False)
SECOND = InstanceFacts(1, "b:2", False, run_id="r2", role="primary", cluster=False)


def test_independent_primaries_pass() -> None:
    require_independent([FIRST, SECOND])


def test_what_is_unknown_passes() -> None:
    """A foreign instance that may not tell is not refused: lockcore asks again in its own way."""
    require_independent([InstanceFacts(0, "a:1", False), InstanceFacts(1, "b:2", False)])


@pytest.mark.parametrize(
    "change, why",
    [
        ({"cluster": True}, "b:2 runs in cluster mode"),
        ({"role": "replica"}, "b:2 is a replica"),
        ({"run_id": "r1"}, "a:1 and b:2 are the same server"),
    ],
)
def test_what_is_not_independent_is_refused_by_name(change: dict[str, object], why: str) -> None:
    with pytest.raises(EnvironmentNotReadyError, match=why):
        require_independent([FIRST, dataclasses.replace(SECOND, **change)])  # type: ignore[arg-type]
