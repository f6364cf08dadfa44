"""All schedules by name: *name → course of events, the recipes that must show its flaw, those that must not*.

Rules: whether a flaw is seen does not depend on luck: the same answer 20 times out of 20. Source: the table in the
README of the folder above.
"""

from __future__ import annotations

from dataclasses import replace

from bench.recipes.registry import find_recipe
from bench.recipes.schedules import acquiring, holding, linking
from bench.recipes.schedules.stage import Schedule, Shown, Stage
from bench.topology.fleet import Fleet, start_fleet

TIMESTAMPS = ("timestamp-getset", "timestamp-set", "company-2013")
QUORUMS = ("redlock", "redlock-sequential", "majority-release")

SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule(
            "both-read-first",
            "two winners of a free lock",
            acquiring.both_read_first,
            ("get-set",),
            ("setnx", "set-nx-lua", "timestamp-getset", "redlock"),
        ),
        Schedule(
            "takeover-together",
            "two winners at a takeover, or the winner's end overwritten by the loser",
            acquiring.takeover_together,
            TIMESTAMPS,
            ("set-nx-lua", "set-nx-fixed"),
        ),
        Schedule(
            "skewed-clock",
            "a clock that is ahead steals a lock that is held",
            acquiring.skewed_clock,
            TIMESTAMPS,
            ("set-nx-lua", "redlock"),
        ),
        Schedule(
            "interleaved-votes",
            "a split vote: nobody wins",
            acquiring.interleaved_votes,
            ("redlock-sequential",),
            (),
        ),
        Schedule(
            "overslept-holder",
            "a holder that outlived its TTL deletes its successor's lock",
            holding.overslept_holder,
            ("set-nx-fixed", "setnx-expire", "company-2013"),
            ("set-nx-lua", "set-nx-get-del", "timestamp-getset", "multi-write", "backoff", *QUORUMS),
        ),
        Schedule(
            "gap-in-release",
            "a release that stalls after its check deletes its successor's lock",
            holding.gap_in_release,
            ("set-nx-get-del", "set-nx-fixed", "setnx-expire", *TIMESTAMPS),
            ("set-nx-lua", "backoff", *QUORUMS),
        ),
        Schedule(
            "killed-holder",
            "a dead holder holds for ever",
            holding.killed_holder,
            ("setnx", "get-set"),
            ("set-nx-lua", "timestamp-getset", "watchdog", "redlock"),
        ),
        Schedule(
            "killed-between",
            "a key without end, left by a client that died while acquiring",
            holding.killed_between,
            ("setnx-expire",),
            ("set-nx-lua",),
        ),
        Schedule(
            "raise-in-body",
            "an exception in the body leaks the lock",
            holding.raise_in_body,
            ("backoff",),
            ("set-nx-lua",),
        ),
        Schedule(
            "same-time-start",
            "the lock stands free although everybody waits for it",
            acquiring.same_time_start,
            ("backoff",),
            ("set-nx-lua",),
        ),
        Schedule(
            "paused-watchdog",
            "a late renewal keeps a stranger's lock",
            holding.paused_watchdog,
            ("watchdog-naive",),
            ("watchdog",),
        ),
        Schedule(
            "slow-copy",
            "two instances grant the same lock, one of them to a client that cannot reach the other",
            linking.slow_copy,
            ("multi-write",),
            ("multi-write-unique-index", "redlock", "redlock-sequential"),
        ),
        Schedule(
            "left-over-minority",
            "keys left on a minority block the next holder",
            linking.left_over_minority,
            ("majority-release",),
            ("redlock", "redlock-sequential"),
        ),
        Schedule(
            "promotion",
            "a lock that was acknowledged is granted again by a promoted replica",
            linking.promotion,
            ("replica-failover",),
            ("replica-delayed-promotion",),
            instances=2,
            harms=True,
        ),
        Schedule(
            "stale-write",
            "what is protected takes the write of a client whose lease is over",
            holding.stale_write,
            (),
            ("set-nx-lua", "redlock"),
        ),
    )
}


def play(schedule: Schedule, recipe: str, fleet: Fleet | None = None) -> Shown:
    """Play `schedule` with `recipe` on `fleet`, or on one of its own. Raises BenchError and TimeoutError."""
    entry = find_recipe(recipe)
    if fleet is not None:
        with Stage(entry, fleet) as stage:
            return replace(schedule.play(stage), circumstances=stage.circumstances())
    with start_fleet(entry.about.most or schedule.instances, "none") as own:
        return play(schedule, recipe, own)
