"""The word of an explored recipe: what a search shows, and what it cannot show."""

import pytest

from bench.experiments.explore.experiment import row_of
from bench.experiments.explore.search import Hunt
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN
from bench.recipes.registry import find_recipe

FLAWED = "set-nx-get-del"
SOUND = "set-nx-lua"


@pytest.mark.parametrize("played", [1, 250, 3_000, 10**6])
def test_a_known_flaw_that_stayed_away_in_a_search_of_some_schedules_is_not_known(
    played: int,
) -> None:
    row = row_of(FLAWED, find_recipe(FLAWED).about, Hunt(played=played, tested=played))
    assert row.verdict == NOT_KNOWN
    assert row.reason is not None
    assert f"ended after {played:,} schedules" in row.reason


def test_a_known_flaw_that_stayed_away_in_every_schedule_is_not_shown() -> None:
    row = row_of(FLAWED, find_recipe(FLAWED).about, Hunt(played=900, tested=900), whole=True)
    assert row.verdict == NOT_SHOWN


def test_a_sound_recipe_holds_in_the_schedules_that_were_played() -> None:
    assert (
        row_of(SOUND, find_recipe(SOUND).about, Hunt(played=250, tested=200)).verdict == AS_EXPECTED
    )
    assert row_of(SOUND, find_recipe(SOUND).about, Hunt(played=250, tested=3)).verdict == NOT_KNOWN
