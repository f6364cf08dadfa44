"""The history file: what was written is read back, whatever happened to the writer."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.errors import EnvironmentNotReadyError
from bench.measure.history import HistoryTail, read_history
from bench.measure.record import RECORD_BYTES, RECORD_FIELDS, records_of
from bench.measure.recorder import Recorder

WRITER = """
import sys
from bench.measure.recorder import Recorder
recorder = Recorder(sys.argv[1], 0, segment_records=1000)
number = 0
while True:
    recorder.write(*(number * 15 + field for field in range(15)))
    number += 1
    if number == 5500:
        print("go", flush=True)
"""


def fields(number: int) -> list[int]:
    return [number * 15 + field for field in range(15)]


def fill(recorder: Recorder, numbers: range) -> None:
    for number in numbers:
        recorder.write(*fields(number))


def expected(numbers: range) -> np.ndarray:
    rows = [(*fields(number), number + 1) for number in numbers]
    return records_of(rows)


def test_the_writer_reads_its_own_records_in_pieces_also_of_segments_long_left(tmp_path):
    recorder = Recorder(tmp_path, 0, segment_records=10)
    fill(recorder, range(37))
    slot = 0
    pieces = []
    while len(piece := recorder.read(slot, 7)):
        pieces.append(piece)
        slot += len(piece)
    assert [len(piece) for piece in pieces] == [7, 3, 7, 3, 7, 3, 7]
    assert np.array_equal(np.concatenate(pieces), expected(range(37)))
    fill(recorder, range(37, 38))
    assert np.array_equal(recorder.read(37, 7), expected(range(37, 38)))
    assert len(recorder.read(38, 7)) == 0


def test_what_is_written_is_read_back_over_several_segments(tmp_path):
    recorder = Recorder(tmp_path, 3, segment_records=10)
    slots = [recorder.write(*fields(number)) for number in range(37)]
    recorder.close()
    history = read_history(tmp_path)
    assert slots == list(range(37))
    assert not history.torn + history.missing_segments
    np.testing.assert_array_equal(history.records, expected(range(37)))
    files = sorted(tmp_path.glob("history-*"))
    assert [path.name for path in files] == [f"history-3-{os.getpid()}.{n}.bin" for n in range(4)]
    assert sum(path.stat().st_size for path in files) == 37 * RECORD_BYTES


def test_a_record_without_its_last_field_is_none(tmp_path):
    recorder = Recorder(tmp_path, 0, segment_records=10)
    fill(recorder, range(3))
    # as if killed before it
    fields_of = recorder._segment.fields
    recorder._segment.fields = memoryview(b"")
    with pytest.raises((IndexError, TypeError)):
        recorder.write(*fields(3))
    np.testing.assert_array_equal(read_history(tmp_path).records, expected(range(3)))
    recorder._segment.fields = fields_of
    assert recorder.write(*fields(3)) == 3
    np.testing.assert_array_equal(read_history(tmp_path).records, expected(range(4)))


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_what_is_no_int64_is_refused_and_leaves_no_record(tmp_path, number):
    recorder = Recorder(tmp_path, 0, segment_records=10)
    with pytest.raises(ValueError, match="int"):
        recorder.write(*fields(0)[:-1], number)
    fill(recorder, range(1))
    np.testing.assert_array_equal(read_history(tmp_path).records, expected(range(1)))


@pytest.mark.parametrize("count", [0, 1, 10, 20])
def test_a_history_that_ends_at_a_segment_border_is_complete(tmp_path, count):
    recorder = Recorder(tmp_path, 0, segment_records=10)
    fill(recorder, range(count))
    open_history = read_history(tmp_path)
    recorder.close()
    for history in (open_history, read_history(tmp_path)):
        assert not history.torn + history.missing_segments
        assert len(history.records) == count


def test_parts_hold_each_resource_once_and_whole(tmp_path):
    recorder = Recorder(tmp_path, 0, segment_records=10)
    for number in range(40):
        recorder.write(*(number if field == 9 else 1 for field in range(15)))
    recorder.close()
    overwrite(next(tmp_path.glob("*.3.bin")), 9, "sequence", 0)
    histories = [read_history(tmp_path, part, 3) for part in range(3)]
    assert [sorted(set(history.records["resource"] % 3)) for history in histories] == [
        [0],
        [1],
        [2],
    ]
    assert sum(len(history.records) for history in histories) == 30, (
        "all of a block whose checksum is another are torn"
    )
    assert [history.torn for history in histories] == [10, 0, 0]


def test_votes_are_patched_in_the_present_and_the_previous_segment_only(tmp_path):
    recorder = Recorder(tmp_path, 0, segment_records=10)
    fill(recorder, range(25))
    assert recorder.patch_votes(24, 777)
    assert recorder.patch_votes(10, 888)
    assert not recorder.patch_votes(9, 999)
    recorder.close()
    votes = read_history(tmp_path).records["votes"]
    changed = {
        int(slot): int(votes[slot])
        for slot in np.flatnonzero(votes != expected(range(25))["votes"])
    }
    assert changed == {24: 777, 10: 888}


def test_a_killed_writer_leaves_every_record_it_wrote(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"go\n"
        writer.send_signal(signal.SIGKILL)
    history = read_history(tmp_path)
    count = len(history.records)
    assert count >= 5500
    assert history.torn <= 1
    assert history.missing_segments == 0
    np.testing.assert_array_equal(history.records, expected(range(count)))


@pytest.mark.parametrize("slot", [7, 2], ids=["the last", "in the middle"])
@pytest.mark.parametrize(
    "sequence", [0, 4, 2**40], ids=["not written", "of another slot", "half written"]
)
def test_a_torn_record_is_noticed_and_left_out_alone(tmp_path, sequence, slot):
    recorder = Recorder(tmp_path, 0, segment_records=100)
    fill(recorder, range(8))
    overwrite(next(tmp_path.iterdir()), slot, "sequence", sequence)
    history = read_history(tmp_path)
    assert history.torn == 1
    assert history.torn + history.missing_segments
    np.testing.assert_array_equal(history.records, np.delete(expected(range(8)), slot))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_segment_is_noticed(tmp_path, number):
    recorder = Recorder(tmp_path, 0, segment_records=10)
    fill(recorder, range(35))
    recorder.close()
    (tmp_path / f"history-0-{os.getpid()}.{number}.bin").unlink()
    history = read_history(tmp_path)
    assert history.missing_segments == 1
    assert history.torn + history.missing_segments
    assert len(history.records) == 25


def test_the_tail_hands_out_each_record_once_while_the_writer_goes_on(tmp_path):
    tail = HistoryTail(tmp_path)
    recorder = Recorder(tmp_path, 0, segment_records=10)
    seen = []
    assert len(tail.new_records()) == 0
    for start, stop in ((0, 3), (3, 10), (10, 10), (10, 41)):
        fill(recorder, range(start, stop))
        seen.append(tail.new_records())
    assert [len(part) for part in seen] == [3, 7, 0, 31]
    recorder.close()
    assert len(tail.new_records()) == 0
    np.testing.assert_array_equal(np.concatenate(seen), expected(range(41)))


def test_a_settled_tail_keeps_back_what_may_still_be_patched(tmp_path):
    tail = HistoryTail(tmp_path)
    recorder = Recorder(tmp_path, 0, segment_records=4)
    for ended_ns in (10, 20, 15, 30, 5, 40):
        recorder.write(0, 0, 0, 0, 0, 0, 0, 0, ended_ns, 0, 0, 0, 0, 0, 0)
    assert tail.new_records(settled_before_ns=20)["ended_ns"].tolist() == [10]
    assert tail.new_records(settled_before_ns=31)["ended_ns"].tolist() == [20, 15, 30, 5]
    assert tail.new_records()["ended_ns"].tolist() == [40]


def test_a_full_disk_is_one_sentence_and_leaves_the_written_records(tmp_path, monkeypatch):
    recorder = Recorder(tmp_path, 0, segment_records=10)
    fill(recorder, range(10))

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    for _ in range(2):
        with pytest.raises(
            EnvironmentNotReadyError, match=r"history.*: No space left on device; free"
        ):
            recorder.write(*fields(10))
    recorder.close()
    assert len(list(tmp_path.glob("history-*"))) == 1
    np.testing.assert_array_equal(read_history(tmp_path).records, expected(range(10)))


def overwrite(path: Path, slot: int, field: str, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(slot * RECORD_BYTES + 8 * RECORD_FIELDS.index(field))
        file.write(value.to_bytes(8, "little", signed=True))
