"""What a server's configuration does to locks: each hazard by its setting, and none without it."""

import pytest

from bench.topology.hazards import hazards_of, persistence_of

MIB = 2**20


def names(info: dict[str, object], config: dict[str, str]) -> list[str]:
    return [hazard.name for hazard in hazards_of(info, config)]


@pytest.mark.parametrize(
    ("info", "config", "expected"),
    [
        ({}, {}, []),
        ({"maxmemory": 0, "maxmemory_policy": "allkeys-lru"}, {}, []),
        ({"maxmemory": 3 * MIB, "maxmemory_policy": "allkeys-lru"}, {}, ["eviction"]),
        ({"maxmemory": 3 * MIB, "maxmemory_policy": "volatile-ttl"}, {}, ["eviction"]),
        ({"maxmemory": 3 * MIB, "maxmemory_policy": "noeviction", "used_memory": MIB}, {}, []),
        (
            {"maxmemory": 3 * MIB, "maxmemory_policy": "noeviction", "used_memory": 2.9 * MIB // 1},
            {},
            [],
        ),
        (
            {"maxmemory": 3 * MIB, "maxmemory_policy": "noeviction", "used_memory": int(2.9 * MIB)},
            {},
            ["memory"],
        ),
        ({}, {"maxmemory": str(3 * MIB), "maxmemory-policy": "allkeys-random"}, ["eviction"]),
        ({"connected_slaves": 2}, {}, ["replicas"]),
        ({"connected_slaves": 0}, {"min-replicas-to-write": "1"}, ["min-replicas-to-write"]),
        ({}, {"min-slaves-to-write": "2"}, ["min-replicas-to-write"]),
        ({}, {"timeout": "300"}, ["timeout"]),
        ({}, {"timeout": "0", "protected-mode": "no"}, []),
        ({}, {"protected-mode": "yes"}, ["protected mode"]),
        ({"maxmemory": "a lot", "connected_slaves": None}, {"timeout": ""}, []),
    ],
)
def test_a_hazard_is_named_by_its_setting_and_only_then(
    info: dict[str, object], config: dict[str, str], expected: list[str]
) -> None:
    assert names(info, config) == expected


def test_a_hazard_that_takes_locks_away_comes_first_and_says_what_to_do() -> None:
    info = {"maxmemory": 3 * MIB, "maxmemory_policy": "allkeys-lru", "connected_slaves": 1}
    hazards = hazards_of(info, {"timeout": "5", "min-replicas-to-write": "1"})
    assert [hazard.loses_locks for hazard in hazards] == [True, True, False, False]
    assert "3 MiB with allkeys-lru" in hazards[0].sentence
    assert "evicts locks" in hazards[0].sentence
    assert "set maxmemory-policy noeviction" in hazards[0].sentence


@pytest.mark.parametrize(
    ("fsync", "part"),
    [
        ("none", "a restarted server has lost every lock"),
        ("everysec", "about a second"),
        ("always", "loses no lock"),
        ("odd", "odd"),
    ],
)
def test_persistence_is_told_by_what_a_crash_forgets(fsync: str, part: str) -> None:
    assert part in persistence_of({}, fsync)
    assert persistence_of({}, None) == ""
