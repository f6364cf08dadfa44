"""The instrument table: names as decided, closed sets, one list of bounds, README made from it."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from bench.telemetry import table
from bench.telemetry.table import (
    BOUNDS,
    BY_NAME,
    COMMON,
    IN_APPLICATIONS,
    INSTRUMENTS,
    Attribute,
    Instrument,
    instruments_table,
)

ROOT = Path(__file__).parents[3]
DECIDED = """
redlock.acquire.duration s · redlock.release.duration s · redlock.extend.duration s ·
redlock.hold.duration s · redlock.handoff.duration s · redlock.lease.validity s ·
redlock.acquire.attempts {attempt} ·
redlock.acquire.outcomes {acquire} · redlock.split_votes {round} · redlock.vote.margin {vote} ·
redlock.votes {vote} ·
redlock.leases.held {lease} · redlock.callers.waiting {caller} · redlock.leases.gone {lease} ·
redlock.split_vote.dead_time s · redlock.instance.abstaining {instance} ·
redlock.crash.lost_locks {lock} ·
redlock.crash.lost_window s · redlock.crash.double_grants {lease} · redlock.client.cpu s ·
redlock.telemetry.dropped {item} · redlock.safety.violations {violation} ·
redlock.load.offered {acquire}/s · redlock.scheduler.lag s · redlock.load.late_starts {acquire} ·
redlock.fault.active {fault} · redlock.run.info {run} ·
db.client.operation.duration s
"""


@pytest.mark.parametrize(
    "name_and_unit", [part.strip() for part in DECIDED.replace("\n", " ").split("·")]
)
def test_decided_names_have_their_units(name_and_unit: str) -> None:
    name, unit = name_and_unit.split()
    assert BY_NAME[name].unit == unit


def test_every_name_is_there_once_and_says_what_it_means() -> None:
    assert len(BY_NAME) == len(INSTRUMENTS) + len(IN_APPLICATIONS)
    assert len({one.prometheus for one in INSTRUMENTS}) == len(INSTRUMENTS)
    assert all(one.meaning for one in INSTRUMENTS)


def test_bounds_are_about_forty_from_10_us_to_100_s_evenly_spaced_in_the_logarithm() -> None:
    assert 35 <= len(BOUNDS) <= 45
    assert (BOUNDS[0], BOUNDS[-1]) == (1e-5, 100.0)
    ratios = [after / before for before, after in pairwise(BOUNDS)]
    assert all(1.4 < ratio < 1.6 for ratio in ratios)


def test_small_whole_numbers_have_buckets_of_their_own() -> None:
    holders = [
        next(index for index, bound in enumerate(BOUNDS) if number <= bound) for number in range(5)
    ]
    assert len(set(holders)) == 5


def test_attributes_are_closed_sets_or_come_from_the_configuration() -> None:
    known = [value for value in vars(table).values() if isinstance(value, Attribute)]
    for attribute in known:
        assert bool(attribute.values) != bool(attribute.origin), attribute.name


def test_no_attribute_can_name_a_resource_key_owner_token_or_password() -> None:
    names = {key.name for one in INSTRUMENTS for key in (*COMMON, *one.attributes)}
    assert [
        name for name in names if re.search(r"resource|key|owner|token|pass|secret|url", name)
    ] == []


@pytest.mark.parametrize(
    "instrument, expected",
    [
        (BY_NAME["redlock.acquire.duration"], "redlock_acquire_duration_seconds"),
        (BY_NAME["redlock.acquire.outcomes"], "redlock_acquire_outcomes_total"),
        (BY_NAME["redlock.client.cpu"], "redlock_client_cpu_seconds_total"),
        (BY_NAME["redlock.load.offered"], "redlock_load_offered_per_second"),
        (BY_NAME["redis.aof.size"], "redis_aof_size_bytes"),
        (BY_NAME["redlock.split_votes"], "redlock_split_votes_total"),
    ],
)
def test_prometheus_names_follow_the_specification(instrument: Instrument, expected: str) -> None:
    assert instrument.prometheus == expected


def test_the_page_of_instruments_is_made_from_this_table() -> None:
    page = (ROOT / "docs/telemetry/instruments.md").read_text(encoding="utf-8")
    assert f"begin -->\n{instruments_table()}\n<!--" in page, "run make schemas"
