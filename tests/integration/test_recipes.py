"""What every recipe is known for, with its figure, made certain; what breaks which, `lockbench
explore` finds. And as it is met under `lockbench run`: a stretched gap is found by the oracle, a
lock without one only overstays."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe
from bench.recipes.several_instances import replicate
from bench.topology.fleet import start_fleet
from lockcore import Lease
from lockcore.clock import NS_PER_MS, monotonic_ns
from tests.conftest import Ended
from tests.schedules.simulated import played

pytestmark = pytest.mark.integration
Run = Callable[..., tuple[int, dict[str, Any]]]
LOAD = (
    "--resources=1",
    # Little's ratio judges eight and more: a slow machine would make the run INVALID
    "--users=7",
    "--ttl=60ms",
    "--hold=fixed:20ms",
    "--fsync=none",
    "--warmup=0",
    "--duration=1500ms",
)
NOTHING_OVERWRITTEN = {"winners": 1, "violations": 0, "overwritten_ends": 0}
ONE_OVERWRITTEN = {"winners": 1, "violations": 0, "overwritten_ends": 1}
STOLEN = {"steals_at_0_ms": 0, "steals_at_5000_ms": 0, "steals_at_20000_ms": 1}
CHAIN = {"chain": 5, "foreign_deletes": 1, "overstays": 1}
NO_CHAIN = {"chain": 0, "foreign_deletes": 0, "overstays": 1}
NO_VIOLATION = {"violations_per_1000_acquires": 0}
STUCK = {"keys_without_end": 1, "recovery_ms": None}
VIOLATED_ONCE = {"violations": 1}
NEVER_VIOLATED = {"violations": 0}
TIMESTAMPS = ("timestamp-getset", "timestamp-set", "company-2013")
# course → recipe → figures
KNOWN: dict[str, dict[str, dict[str, float | None]]] = {
    "both-read-first": {
        "get-set": {"violations_per_1000_acquires": 500},
        **dict.fromkeys(("setnx", "set-nx-lua", "timestamp-getset"), NO_VIOLATION),
    },
    "takeover-together": {
        "timestamp-set": {"winners": 2, "violations": 1, "overwritten_ends": 1},
        **dict.fromkeys(("timestamp-getset", "company-2013"), ONE_OVERWRITTEN),
        **dict.fromkeys(("set-nx-lua", "set-nx-fixed"), NOTHING_OVERWRITTEN),
    },
    "skewed-clock": {**dict.fromkeys(TIMESTAMPS, STOLEN), "set-nx-lua": dict.fromkeys(STOLEN, 0)},
    "overslept-holder": {
        **dict.fromkeys(("set-nx-fixed", "setnx-expire", "company-2013"), CHAIN),
        **dict.fromkeys(
            (
                "set-nx-lua",
                "set-nx-get-del",
                "timestamp-getset",
                "multi-write",
                "backoff",
                "redlock-sequential",
            ),
            NO_CHAIN,
        ),
        "majority-release": NO_CHAIN,
    },
    "gap-in-release": {
        **dict.fromkeys(
            ("set-nx-get-del", "set-nx-fixed", "setnx-expire", *TIMESTAMPS), VIOLATED_ONCE
        ),
        **dict.fromkeys(
            ("set-nx-lua", "backoff", "redlock-sequential", "majority-release"), NEVER_VIOLATED
        ),
    },
    "killed-holder": dict.fromkeys(("setnx", "get-set"), STUCK),
    "killed-between": {
        "setnx-expire": {"orphan_keys_per_kill": 1},
        "set-nx-lua": {"orphan_keys_per_kill": 0},
    },
    "raise-in-body": {
        "backoff": {"bodies": 1, "leaked_locks": 1},
        "set-nx-lua": {"bodies": 1, "leaked_locks": 0},
    },
    "paused-watchdog": {
        "watchdog-naive": {"foreign_renewals": 1, "late_renewals": 1, "noticed_late_ms": None},
        "watchdog": {"foreign_renewals": 0, "late_renewals": 1},
    },
    "slow-copy": {
        "multi-write": {"double_grants_per_link_fault": 1, "caught_double_grants": 0},
        "multi-write-unique-index": {"double_grants_per_link_fault": 0, "caught_double_grants": 1},
        "redlock-sequential": {"double_grants_per_link_fault": 0, "caught_double_grants": 0},
    },
    "left-over-minority": {
        "majority-release": {"left_over_keys": 1},
        "redlock-sequential": {"left_over_keys": 0},
    },
    "stale-write": {
        "set-nx-lua": {"rejected": 1},
        "redlock-sequential": {"rejected": 1, "rejected_marked_after_the_pause": 0},
    },
}


@pytest.mark.parametrize(
    "course, recipe", [(course, recipe) for course, figures in KNOWN.items() for recipe in figures]
)
def test_a_recipe_shows_what_it_is_known_for_and_nothing_else(course: str, recipe: str) -> None:
    figures = played()[course][recipe]
    known = KNOWN[course][recipe]
    assert {name: figures[name] for name in known} == known


def test_what_a_flaw_costs_is_told_in_time() -> None:
    for recipe in ("set-nx-lua", "timestamp-getset", "watchdog", "redlock-sequential"):
        recovery_ms = played()["killed-holder"][recipe]["recovery_ms"]
        assert recovery_ms is not None
        assert 220 < recovery_ms < 240, "a TTL of 240 ms, less what passed before its death"
    blocked = played()["left-over-minority"]
    assert 0.9 < (blocked["majority-release"]["blocked_per_ttl"] or 0) < 1.01, (
        "the rest of the TTL for a left-over key"
    )
    assert (blocked["redlock-sequential"]["blocked_per_ttl"] or 0) < 0.1
    noticed_ms = played()["paused-watchdog"]["watchdog"]["noticed_late_ms"]
    assert 300 < (noticed_ms or 0) < 350, "held up at 80 ms for 480, the lease over at 236"


def test_whoever_backs_off_for_long_leaves_the_lock_free_though_all_wait_for_it() -> None:
    backoff, lua = (played()["same-time-start"][recipe] for recipe in ("backoff", "set-nx-lua"))
    assert (backoff["idle_ms"] or 0) > 50 > 5 > (lua["idle_ms"] or 0)
    assert (backoff["longest_wait_ms"] or 0) > 10 * (lua["longest_wait_ms"] or 0)
    assert (backoff["jain_index"] or 0) < 0.7 < 0.95 < (lua["jain_index"] or 0)


@pytest.mark.parametrize(
    "fault, course, recipe, figure",
    [
        ("a release without owner check", "overslept-holder", "set-nx-lua", ("chain", 0, 5)),
        (
            "an oracle that sees no overlap",
            "both-read-first",
            "get-set",
            ("violations_per_1000_acquires", 500, 0),
        ),
        (
            "an oracle that crashes",
            "both-read-first",
            "get-set",
            ("violations_per_1000_acquires", 500, 0),
        ),
        (
            "an oracle that sees no foreign delete",
            "overslept-holder",
            "set-nx-fixed",
            ("foreign_deletes", 1, 0),
        ),
        (
            "an oracle that sees no overstay",
            "overslept-holder",
            "set-nx-fixed",
            ("overstays", 1, 0),
        ),
    ],
)
def test_a_planted_fault_is_found_out_by_its_figure(
    fault: str, course: str, recipe: str, figure: tuple[str, int, int]
) -> None:
    name, whole, faulty = figure
    assert (played()[course][recipe][name], played(fault)[course][recipe][name]) == (whole, faulty)


@pytest.mark.parametrize(
    "recipe, ttl_ms, doubled",
    [("replica-failover", 10_000, True), ("replica-delayed-promotion", 500, False)],
)
def test_a_replica_that_is_promoted_lacks_what_was_acknowledged(
    recipe: str, ttl_ms: int, doubled: bool
) -> None:
    """On real servers, as no simulated one replicates: the link to the replica is frozen, a lock is
    granted, the master dies, the replica is promoted. It is frozen by stopping the replica and
    closing its connection on the master."""
    told = RecipeSettings(
        key_prefix="lockbench:promotion:", max_ttl_ms=ttl_ms, instance_timeout_ms=60.0
    )
    with start_fleet(2, "none") as fleet, Redis.from_url(fleet.urls[0]) as master:
        replicate(fleet.urls)
        first: Any = find_recipe(recipe).connect(fleet.urls, told)
        fleet.stop(1)
        master.execute_command("CLIENT", "KILL", "TYPE", "replica")
        lease = first.acquire("r0", ttl_ms, 0)
        assert isinstance(lease, Lease)
        assert master.execute_command("WAIT", "1", "1") == 0
        fleet.kill(0)
        died_ns = monotonic_ns()
        fleet.cont(1)
        time.sleep(max(died_ns + first.promotion_delay_ms * NS_PER_MS - monotonic_ns(), 0) / 1e9)
        with Redis.from_url(fleet.urls[1]) as replica:
            replica.replicaof("NO", "ONE")
        second: Any = find_recipe(recipe).connect(fleet.urls, told)
        granted = second.acquire("r0", ttl_ms, 5000)
        first.close()
        second.close()
    assert isinstance(granted, Lease), "the lock is lost"
    assert (granted.granted_ns < lease.valid_until_ns) is doubled
    assert doubled or granted.granted_ns - died_ns >= 500 * NS_PER_MS, (
        "unavailable for the longest TTL"
    )


# -- under `lockbench run` -------------------------------------------------------------------------


@pytest.fixture
def run(lockbench: Callable[..., Ended], tmp_path: Path) -> Run:
    """`lockbench run` with LOAD and these words: the exit code and the result."""

    def once(*words: str) -> tuple[int, dict[str, Any]]:
        done = lockbench("run", *LOAD, "--quiet", "--out", "run", *words)
        result = tmp_path / "run" / "result.json"
        assert result.exists(), done.stderr
        return done.returncode, json.loads(result.read_text(encoding="utf-8"))

    return once


def test_a_stretched_gap_between_get_and_del_violates_the_lock(run: Run) -> None:
    code, result = run("--recipe", "set-nx-get-del", "--pause", "after-get:100ms:0.2")
    safety = result["safety"]
    assert (code, safety["verdict"]) == (5, "VIOLATED")
    assert safety["service_faults"] > 0
    assert safety["unexplained"] == 0, "the recipe is to blame"
    assert {example["blame"] for example in safety["examples"] if example["blame"]} == {
        "unsafe recipe"
    }
    assert any(
        "set-nx-get-del exists only to show a flaw; do not use this lock" in text
        for text in result["warnings"]
    )
    assert len(result["instances"]) == 1, "as many as the recipe takes"


@pytest.mark.parametrize(
    "recipe, words, code", [("", (), 0), ("-late", ("--pause", "after-check:20ms:0.5"), 5)]
)
def test_readers_and_a_writer_are_judged_by_their_sides(
    recipe: str, words: Sequence[str], code: int, run: Run
) -> None:
    ended, result = run("--recipe", f"reader-writer{recipe}", "--shared", *words)
    assert ended == code, result["verdict"]
    if code:
        sides = [
            {operation["reader"] for operation in example["operations"]}
            for example in result["safety"]["examples"]
        ]
        assert sides
        assert {True} not in sides
    else:
        assert result["safety"]["service_faults"] == 0
        assert result["safety"]["tested_leases"] > 0


@pytest.mark.parametrize(
    "recipe, verdict, code", [("semaphore", "SAFE", 0), ("semaphore-off-by-one", "VIOLATED", 5)]
)
def test_a_semaphore_is_judged_by_its_places(
    recipe: str, verdict: str, code: int, run: Run
) -> None:
    ended, result = run("--recipe", recipe, "--capacity", "3")
    safety = result["safety"]
    assert (ended, safety["verdict"]) == (code, verdict), result["verdict"]
    marked = any(row[5] for holder in safety["holders"] for row in holder["rows"])
    assert marked == (code > 0)
    (instance,) = result["instances"]
    assert instance["leaked_keys"] == 0
    assert not instance["other_keys"]


def test_the_same_pause_at_work_makes_the_safe_lock_overstay_and_nothing_worse(run: Run) -> None:
    code, result = run(
        "--recipe", "set-nx-lua", "--pause", "after-grant:100ms:0.1", "--fencing", "--duration=4s"
    )
    safety = result["safety"]
    assert code == 0, result["verdict"]
    assert (safety["service_faults"], safety["foreign_deletes"]) == (0, 0)
    if safety["verdict"] == "NOT TESTED":
        pytest.skip(f"not known here: {safety['tested_leases']} tested leases")
    assert safety["verdict"] == "SAFE"
    assert safety["client_overstays"] > 0
    assert [instance["leaked_keys"] for instance in result["instances"]] == [0]
    told = [
        text for text in result["warnings"] if text.startswith("the recipe set-nx-lua counted ")
    ]
    assert any("stale writes rejected" in text for text in told), told
    assert not any("valid writes rejected" in text for text in told), told


def test_a_replicated_recipe_gets_its_replica(run: Run) -> None:
    _, result = run("--recipe", "replica-failover", "--duration", "300ms")
    assert result["totals"]["acquired"] > 0
    assert result["safety"]["service_faults"] == 0
    assert [instance["role"] for instance in result["fleet"]["instances"]] == ["primary", "replica"]
