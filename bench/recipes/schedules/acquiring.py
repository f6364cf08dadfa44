"""Races while acquiring: *two or three clients at one pause point → who got the lock*.

Source: the column "shown by" of the table in the README of the folder above.
"""

from __future__ import annotations

from bench.recipes.schedules.shown import Shown, violated
from bench.recipes.schedules.stage import LONG_MS, SHORT_MS, Stage
from lockcore import Lease

AHEAD_MS = 7  # how far the second of two takeovers writes another end than the first


def both_read_first(stage: Stage) -> Shown:
    """Two clients have read the free lock before either writes: five rounds."""
    rounds = 5
    for _ in range(rounds):
        pair = [stage.client("after-get") for _ in range(2)]
        for client in pair:
            client.begin_acquire()
        for client in pair:
            client.finish()
        for client in pair:
            if isinstance(client.operations[-1].result, Lease):
                client.release()
    report = stage.report()
    return violated(stage, violations_per_1000_acquires=1000 * report.service_faults / (2 * rounds))


def takeover_together(stage: Stage) -> Shown:
    """A dead holder's lock has ended; two clients have seen that before either takes it over.

    Figures: winners and violations of the one takeover; the loser's writes over the winner's end, and by how much they
    moved it.
    """
    dead = stage.client()
    dead.acquire(SHORT_MS)
    stage.until_ended(dead.lease)
    pair = [stage.client("after-get"), stage.client("after-get", skew_ms=AHEAD_MS)]
    for client in pair:
        client.begin_acquire()
    for client in pair:
        client.finish()
    winners = [client for client in pair if isinstance(client.operations[-1].result, Lease)]
    held = stage.holds()
    overwritten = int(bool(winners) and held != winners[0].lease.owner_token)
    moved_ms = int(held or 0) - int(winners[0].lease.owner_token) if overwritten else 0
    report = stage.report()
    figures: dict[str, float | None] = {
        "winners": len(winners),
        "violations_per_takeover": report.service_faults,
        "overwritten_ends": overwritten,
        "end_moved_ms": moved_ms,
    }
    return Shown(len(winners) != 1 or overwritten > 0, figures, report)


def skewed_clock(stage: Stage) -> Shown:
    """A lock is held; clients whose clocks are ahead by nothing, half a TTL and twice a TTL ask for it."""
    holder = stage.client()
    holder.acquire()
    steals: dict[str, float | None] = {}
    for skew_ms in (0, LONG_MS // 2, 2 * LONG_MS):
        thief = stage.client(skew_ms=skew_ms)
        steals[f"steals_at_{skew_ms}_ms"] = int(isinstance(thief.acquire(), Lease))
    return violated(stage, **steals)


def interleaved_votes(stage: Stage) -> Shown:
    """Three clients, three instances, one after the other: each gets one vote before any asks on: nobody wins."""
    trio = [stage.client("after-vote") for _ in range(3)]
    for number, client in enumerate(trio):
        client.begin_acquire()
        for _ in range(number):  # refused where those before it were granted
            client.gate.let_one_pass()
    for client in trio:
        client.finish()
    winners = sum(isinstance(client.operations[-1].result, Lease) for client in trio)
    return Shown(winners == 0, {"contenders": len(trio), "winners": winners}, stage.report())
