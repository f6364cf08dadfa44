"""Attempts and extensions from the load process to the exporter: complete lines, bounded, paced by
the rate."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.telemetry import load_log
from bench.telemetry.load_log import (
    FIRST,
    KEPT,
    MOST,
    AttemptLog,
    Extension,
    LineLog,
    LineTail,
    ObservedAttempt,
    checksum,
)
from bench.telemetry.points import Totals
from bench.telemetry.run import count_observed
from lockcore import AttemptRecord, Lease, Outcome, Tally, Vote


def record(number: int = 1, started_ns: int = 100, resource: str = "r7") -> AttemptRecord:
    return AttemptRecord(
        resource=resource,
        attempt=number,
        acquire_ns=100,
        started_ns=started_ns,
        decided_ns=started_ns + 50,
        closed_ns=started_ns + 60,
        outcome=Outcome.SPLIT_VOTE,
        tally=Tally(),
        validity_ns=0,
        margin=-1,
        votes=(Vote.GRANTED, Vote.SILENT, Vote.ABSENT),
        sent_ns=(started_ns + 1, started_ns + 1, 0),
        replied_ns=(started_ns + 9, 0, 0),
    )


def log_in(folder: Path, paces: list[int] | None = None) -> AttemptLog:
    return AttemptLog(folder, 4, (paces if paces is not None else []).append)


def attempts_in(folder: Path) -> LineTail[ObservedAttempt]:
    return LineTail(folder, "attempts", ObservedAttempt)


def test_an_attempt_comes_out_as_it_went_in_and_without_its_resource(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    tail = attempts_in(tmp_path)
    log.observe(record(2, 300))
    log.flush()
    (attempt,) = tail.new()
    assert (attempt.resource, attempt.number) == (checksum("r7"), 2)
    assert (attempt.acquire_ns, attempt.started_ns, attempt.decided_ns, attempt.closed_ns) == (
        100,
        300,
        350,
        360,
    )
    assert attempt.outcome == "split_vote"
    assert [(ask.vote, ask.sent_ns, ask.replied_ns) for ask in attempt.asks] == [
        ("granted", 301, 309),
        ("silent", 301, 0),
        ("absent", 0, 0),
    ]
    assert b"r7" not in next(tmp_path.iterdir()).read_bytes()


def test_an_attempt_comes_out_with_its_error_replies(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    tail = attempts_in(tmp_path)
    votes = (Vote.GRANTED, Vote.ERRORED, Vote.ABSENT)
    log.observe(replace(record(), votes=votes, errors=("", "OOM", "")))
    log.flush()
    (attempt,) = tail.new()
    assert [ask.error for ask in attempt.asks] == ["", "OOM", ""]


def test_the_tail_hands_out_each_attempt_once_and_never_half_a_line(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    tail = attempts_in(tmp_path)
    for number in range(5):
        log.observe(record(number))
        log.flush()
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert len(list(tail.new())) == 4
    path.write_bytes(whole)
    assert len(list(tail.new())) == 1
    assert list(tail.new()) == []


def test_more_than_can_be_kept_is_dropped_and_counted(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    tail = attempts_in(tmp_path)
    for _ in range(KEPT + 7):
        log.observe(record(2))
    log.flush()
    log.observe(record(2))
    log.flush()
    kept = list(tail.new())
    assert len(kept) == KEPT + 1
    assert sum(attempt.dropped for attempt in kept) == 7


def test_of_a_caller_that_tries_again_and_again_the_first_attempts_and_the_winning_one_are_kept(
    tmp_path: Path,
) -> None:
    log = log_in(tmp_path)
    tail = attempts_in(tmp_path)
    tries = 5 * KEPT
    for number in range(1, tries + 1):
        log.observe(record(number))
    log.observe(replace(record(tries + 1), outcome=Outcome.ACQUIRED))
    log.flush()
    kept = list(tail.new())
    assert [attempt.number for attempt in kept] == [*range(1, FIRST + 1), tries + 1]
    assert {attempt.dropped for attempt in kept} == {0}, "nothing counts as lost"


@pytest.mark.parametrize(
    "per_s, every", [(10, 1), (250, 1), (2_000, 8), (5_000, 20), (8_000, 32), (500_000, MOST)]
)
def test_few_of_many_acquires_are_observed_and_all_of_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per_s: int, every: int
) -> None:
    """Telemetry may add 1.5 µs to a cycle; an observation costs more than ten, on machines that do
    not do more."""
    now_s = [0.0]
    paces = [1]
    observed = 0
    seconds = 6
    monkeypatch.setattr(load_log.time, "monotonic", lambda: now_s[0])
    log = log_in(tmp_path, paces)
    for _ in range(seconds):
        done = 0
        while done < per_s:
            done += paces[-1]
            observed += 1
            log.observe(record())
        now_s[0] += 1
        log.flush()
    assert paces[-1] == every
    assert per_s < 5_000 or observed <= 0.08 * seconds * per_s, "few from the first second on"


def test_an_extension_comes_out_as_it_went_in_and_counts_by_its_outcome(tmp_path: Path) -> None:
    log = LineLog(tmp_path, "extensions", 3)
    tail = LineTail(tmp_path, "extensions", Extension)
    extended = Totals()
    count_observed(extended, [], [], [])
    assert list(extended.points()) == []
    lease = Lease("r5", b"t", 1_000, 70, 80, 990, None, 1, 0)
    for ours in (True, True, False, None):
        log.keep(Extension.of(lease, 100, 2_100, ours))
    # not before it is told to write
    assert list(tail.new()) == []
    log.flush()
    found = list(tail.new())
    assert [one.outcome for one in found] == ["extended", "extended", "gone", "unreachable"]
    assert {(one.resource, one.attempt_ns, one.sent_ns, one.replied_ns) for one in found} == {
        (checksum("r5"), 70, 100, 2_100)
    }
    count_observed(extended, [], found, [])
    values = {one.attributes[0][1]: (one.value.count, one.value.sum) for one in extended.points()}
    assert values == {
        "extended": (2, pytest.approx(4e-6)),
        "gone": (1, 2e-6),
        "unreachable": (1, 2e-6),
    }
