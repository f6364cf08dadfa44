"""A history with a hole is never called whole, whoever made the hole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.measure.begun import Begun, read_lost, read_open
from bench.measure.grown import CHUNK_BYTES
from bench.measure.history import read_history
from bench.measure.recorder import Recorder
from bench.measure.workers import WorkerNote
from bench.safety.judge import holes

A = (0, 11)
B = (1, 12)


def note(who: tuple[int, int], *, phase: str = "stopped", recorded: int = 5) -> WorkerNote:
    worker, pid = who
    return WorkerNote(
        worker=worker,
        pid=pid,
        phase=phase,  # type: ignore[arg-type]
        recorded=recorded,
    )


WHOLE: dict[str, Any] = {
    "notes": [note(A), note(B)],
    "recorded": {A: 5, B: 5},
    "unfinished": {A: 0, B: 0},
    "processes": 2,
}


def test_a_whole_history_has_no_holes() -> None:
    assert list(holes(**WHOLE)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"notes": [note(A)], "recorded": {A: 5}}, ["the notes of 1 of 2 workers are missing"]),
        (
            {"notes": [note(A)]},
            ["the notes of 1 of 2 workers are missing", "the note of worker 1 (pid 12) is missing"],
        ),
        (
            {"notes": [note(A), note(B, phase="running")]},
            ["worker 1 (pid 12) did not report its end"],
        ),
        (
            {"recorded": {A: 5, B: 4}},
            ["worker 1 (pid 12) recorded 5 operations, but the history has 4"],
        ),
        ({"recorded": {A: 5}}, ["worker 1 (pid 12) recorded 5 operations, but the history has 0"]),
        (
            {"notes": [note(A)], "recorded": {A: 5}, "unfinished": {B: 1}},
            [
                "the notes of 1 of 2 workers are missing",
                "the note of worker 1 (pid 12) is missing",
                "1 operations of worker 1 (pid 12) began but were never recorded",
            ],
        ),
        (
            {"unfinished": {B: 2}},
            ["2 operations of worker 1 (pid 12) began but were never recorded"],
        ),
    ],
)
def test_each_hole_is_named(change: dict[str, Any], said: list[str]) -> None:
    assert list(holes(**{**WHOLE, **change})) == said


def test_what_is_known_of_a_worker_is_not_said_twice() -> None:
    stopped = {**WHOLE, "notes": [note(A), note(B, phase="running")], "unfinished": {B: 2}}
    assert list(holes(**stopped, endings="worker 1 (pid 12) died")) == [
        "2 operations of worker 1 (pid 12) began but were never recorded"
    ]


def test_an_operation_stands_among_those_begun_until_its_record_is_written(tmp_path: Path) -> None:
    begun = Begun(tmp_path, 3)
    # more than fit in a chunk
    places = [begun.place() for _ in range(CHUNK_BYTES // 8 + 2)]
    (first, at) = places[0]
    (last, there) = places[-1]
    assert sum(read_open(tmp_path).values()) == 0
    first[at] = 17
    last[there] = 18
    assert list(read_open(tmp_path).values()) == [2]
    assert {worker for worker, _ in read_open(tmp_path)} == {3}
    first[at] = 0
    assert list(read_open(tmp_path).values()) == [1]


def test_attempts_that_lost_are_read_with_the_history_of_their_resources(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 0)
    begun = Begun(tmp_path, 0)
    recorder.write(*range(9), 7, *range(5))
    begun.lost(7, (100, 200))
    begun.lost(8, (300,))
    recorder.close()
    assert read_lost(tmp_path).tolist() == [[7, 100], [7, 200], [8, 300]], (
        "as a writer that is killed leaves it"
    )
    begun.close()
    assert read_lost(tmp_path).tolist() == [[7, 100], [7, 200], [8, 300]]
    assert read_history(tmp_path).lost.tolist() == read_lost(tmp_path).tolist()
    assert [read_history(tmp_path, part, 2).lost.tolist() for part in (0, 1)] == [
        [[8, 300]],
        [[7, 100], [7, 200]],
    ]
    assert list(read_history(tmp_path, 0, 2).counts.values()) == [1], (
        "counted before the parts are divided"
    )
    (path,) = tmp_path.glob("lost-*.bin")
    assert path.stat().st_size == 3 * 16
    # a writer that was killed
    path.write_bytes(path.read_bytes()[:-3])
    assert read_lost(tmp_path).tolist() == [[7, 100], [7, 200]]
    np.testing.assert_array_equal(read_lost(tmp_path / "nowhere"), np.empty((0, 2)))


def test_attempts_that_lost_fill_page_after_page_and_are_forgotten(tmp_path: Path) -> None:
    begun = Begun(tmp_path, 0)
    many = CHUNK_BYTES // 16 * 2 + 5
    for time_ns in range(1, many + 1):
        begun.lost(3, (time_ns,))
    assert read_lost(tmp_path)[:, 1].tolist() == list(range(1, many + 1))
    begun.forget()
    assert read_lost(tmp_path).tolist() == []
    begun.lost(4, (9,))
    begun.close()
    assert read_lost(tmp_path).tolist() == [[4, 9]]
