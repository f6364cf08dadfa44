"""The model of Redlock: small settings hold whole, and without an assumption a course breaks
them."""

import pytest

from tests.model.checker import ALIKE, HOLD, LONG, REMOVED, check, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
QUICK = (
    "a quorum is a majority",
    "a restarted instance abstains",
    "who gives up cleans up behind late SETs",
)

# what View builds on
UNLIKE = {"OwnerCheck", "CleanLate", "FromSending"}


@pytest.mark.parametrize("name", QUICK)
def test_without_an_assumption_the_model_is_broken(name: str) -> None:
    found = check(REMOVED[name], workers=1)
    assert found.broken == ("NothingLeft" if "cleans up" in name else "Exclusion")
    assert 4 <= len(found.course) <= 12
    assert any("Acquire" in step for step in found.course)


@pytest.mark.slow
def test_a_small_model_holds_whole() -> None:
    found = check({"Horizon": "1", "Crashes": "0"}, workers=1)
    assert not found.broken
    assert found.states > 50_000


@pytest.mark.parametrize("name", QUICK[:2])
def test_of_states_that_are_alike_one_is_enough_to_break_it(name: str) -> None:
    whole = check(REMOVED[name], workers=1)
    found = check({**REMOVED[name], **ALIKE}, workers=1)
    assert (found.broken, len(found.course)) == (whole.broken, len(whole.course))
    assert found.states < whole.states


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, changes in REMOVED.items() if not UNLIKE & changes.keys()]
)
def test_alike_states_break_alike_without_each_assumption_that_they_allow_for(name: str) -> None:
    assert check({**REMOVED[name], **ALIKE}).broken == check(REMOVED[name]).broken


@pytest.mark.slow
@pytest.mark.parametrize("name", REMOVED)
def test_each_assumption_is_needed(name: str) -> None:
    assert check(REMOVED[name]).broken


@pytest.mark.slow
@pytest.mark.parametrize("changes", [*HOLD.values(), *LONG.values()], ids=str)
def test_with_all_of_them_it_holds(changes: dict[str, str]) -> None:
    assert not check(changes).broken
