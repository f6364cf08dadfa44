"""Locks with so many votes, and attempts that were answered: *servers, a client → a lease, or what became of it*."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bench.experiments.safety_matrix.leases import PREFIX
from bench.experiments.safety_matrix.result import Finding
from bench.experiments.safety_matrix.row import SKIPPED, PlannedRow, RowSetup, look
from bench.measure.expectation import NOT_KNOWN
from bench.topology.fleet import Fleet
from lockcore import Denied, Lease, Redlock
from lockcore.quorum import quorum_of
from tests.integration.lockcore.keys import client, values_on


def locked_with_margin(fleet: Fleet, lock: Redlock, resource: str, margin: int, ttl_ms: int = 10_000) -> Lease:
    """A lease of `quorum + margin` votes: the other instances are held by a stranger, who then lets go.

    Returns when all its votes are there: the grant itself waits for a quorum only.
    """
    key, votes = PREFIX + resource, quorum_of(len(fleet.urls)) + margin
    strangers = [client(url) for url in fleet.urls[votes:]]
    for stranger in strangers:
        stranger.set(key, "stranger")
    deadline = time.monotonic() + 30
    while (lease := _with_all_votes(lock, resource, ttl_ms)).tally != (votes, len(strangers), 0, 0, 0, 0):
        assert time.monotonic() < deadline, lease  # somebody was too busy to vote in time: once more
        lock.try_release(lease)
    assert values_on(fleet.urls[:votes], key) == [lease.owner_token] * votes
    for stranger in strangers:
        stranger.delete(key)
    assert values_on(fleet.urls[votes:], key) == [None] * len(strangers)
    return lease


def _with_all_votes(lock: Redlock, resource: str, ttl_ms: int) -> Lease:
    lease = until_granted(lock, resource, ttl_ms)
    while lease.is_open:
        time.sleep(0.001)
    return lease


def until_granted(lock: Redlock, resource: str, ttl_ms: int) -> Lease:
    """The lease of the first attempt that is granted: a busy machine may answer too late. Fails after 30 s."""
    deadline = time.monotonic() + 30
    while not (result := lock.try_acquire(resource, ttl_ms)):
        assert time.monotonic() < deadline, result
        time.sleep(0.002)
    return result


def answered(lock: Redlock, resource: str, ttl_ms: int = 10_000) -> Lease | Denied:
    """What becomes of an attempt that a quorum answers in time; one that met a busy machine's silence is made again."""
    deadline = time.monotonic() + 30
    while not (result := lock.try_acquire(resource, ttl_ms)):
        if result.tally.refused >= len(lock.instances) - quorum_of(len(lock.instances)) + 1:
            break
        assert time.monotonic() < deadline, result
    return result


def known(look_at: Callable[[RowSetup], Finding], ground: RowSetup) -> Finding:
    """What a claim of the safety matrix shows; a skipped test where its preconditions did not come about here."""
    finding = look(PlannedRow("claim", "redlock", "here", "confirmed", "", look_at), ground)
    if finding.verdict in (NOT_KNOWN, SKIPPED):
        pytest.skip(f"not known here: {finding.reason}")
    return finding
