"""The run slice by slice: what the slices of the window add up to is what the result says of the
whole."""

import numpy as np
import pytest

from bench.measure.facts import Window
from bench.measure.fold import fold
from bench.measure.latency import MOST_SLICES, Slices
from bench.measure.section import builtins_of
from tests.doubles.records import MS, scenario_of

WINDOW = Window(1_000 * MS, 2_000 * MS)
FACTS = scenario_of(warmup_ms=300.0)


def test_a_slice_begins_where_the_one_before_ends_and_the_window_at_nought():
    slices = Slices.of(WINDOW, warmup_s=0.3)
    assert (slices.count, slices.lead) == (10, 3)
    assert slices.starts_s() == pytest.approx(
        [-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    )
    edges = WINDOW.start_ns + np.arange(-3, 11) * 100 * MS
    assert slices.indices(edges[:-1]).tolist() == list(range(13))
    assert slices.indices(edges - 1).tolist() == list(range(-1, 13))


@pytest.mark.parametrize("seconds", [0.004, 0.37, 1, 7.31, 20, 61, 600, 86_400, 400_000])
def test_however_long_the_run_there_are_slices_and_not_too_many(seconds):
    slices = Slices.of(Window(5, 5 + round(seconds * 1e9)), warmup_s=seconds / 10)
    assert 1 <= slices.count <= MOST_SLICES + 1
    assert slices.total == len(slices.starts_s())
    assert slices.starts_s()[slices.lead] == 0
    last_ns = 5 + round(seconds * 1e9)
    assert slices.indices(np.array([5, last_ns - 1, last_ns])).tolist() == [
        slices.lead,
        slices.total - 1,
        slices.total,
    ]


def test_the_slices_of_the_window_add_up_to_the_outcomes_and_the_rate(records):
    rng = np.random.default_rng(1)
    starts = rng.uniform(650, 2_050, 400)
    outcomes = rng.choice(["acquired", "contended", "split_vote", "unreachable"], 400)
    operations = records(
        *(
            {"start": s, "ended": s + 30, "outcome": str(name)}
            for s, name in zip(starts, outcomes, strict=True)
        )
    )
    values = builtins_of(fold(operations, WINDOW, FACTS).values)
    over = values["over_time"]
    inside = [start >= 0 for start in over["start_s"]]
    for name, count in values["outcomes"].items():
        assert sum(np.array(over["outcomes"][name])[inside]) == count
    assert sum(np.array(over["granted"])[inside]) == values["rate"]["achieved_per_s"]


def test_a_latency_stands_in_the_slice_of_its_intended_start_and_needs_ten_samples_beyond(records):
    slow = [{"start": 1_010 + place, "intended": 1_005, "ended": 1_600} for place in range(5)]
    many = [{"start": 1_205 + place / 10, "ended": 1_207 + place / 10} for place in range(40)]
    over = fold(records(*slow, *many), WINDOW, FACTS).values["over_time"]["acquire"]
    assert over["max_s"][3] == pytest.approx(0.595)
    assert over["p50_s"][3] is None, "five samples are an anecdote"
    assert over["p50_s"][5] == pytest.approx(0.002, rel=0.01)
    assert over["p99_s"][5] is None
    assert over["max_s"][0] is None


def test_margins_and_split_votes_stand_in_their_slice(records):
    over = fold(
        records(
            {"start": 1_110, "ended": 1_111, "votes": {"granted": 3, "silent": 2}},
            {"start": 1_120, "ended": 1_121, "votes": {"granted": 5}},
            {"start": 1_130, "ended": 1_131, "attempts": 4, "split": 3},
        ),
        WINDOW,
        FACTS,
    ).values["over_time"]
    assert over["margin"]["0"][4] == 1
    assert over["margin"]["2"][4] == 2
    assert over["split_votes"][4] == 3
