"""One flipped bit, or bytes of noise, in a stored record: the verdict stays or is UNKNOWN, and
nothing raises.

Planted here: bits and bytes in every file of a record. Without the checksums and the order of times
a record can claim any verdict, which the last test shows.
"""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.measure.begun import Begun, torn_lost
from bench.measure.history import History, read_history
from bench.measure.record import RECORD_FIELDS, words_of
from bench.measure.recorder import Recorder
from bench.measure.run_result import SafetyReport
from bench.measure.workers import WorkerNote
from bench.safety import judge as judge_module
from bench.safety.judge import Circumstances, Judge, holes, without_seal
from tests.doubles.records import granted_earlier, legal_records

TTL_MS = 100
# more than two blocks
LEASES = 1_200


def record_in(folder: Path, *, violated: bool = False) -> WorkerNote:
    """A record of a lock that held, or of one that did not, as a worker leaves it."""
    records = legal_records(LEASES, 4)
    if violated:
        for row in (100, 600, 1_100):
            granted_earlier(records, row + 4, records["release_sent_ns"][row] - 1)
    recorder = Recorder(folder, 0)
    begun = Begun(folder, 0)
    begun.place()
    for row in words_of(records).tolist():
        recorder.write(*row[:15])
    middle = (records["granted_ns"] + records["release_sent_ns"]) // 2
    for resource, time_ns in zip(records["resource"].tolist(), middle.tolist(), strict=True):
        begun.lost(resource, [time_ns])
    recorder.close()
    begun.close()
    pid = int(next(folder.glob("history-*")).name.split("-")[2].partition(".")[0])
    return WorkerNote(worker=0, pid=pid, phase="stopped", recorded=LEASES)


def judged(folder: Path, note: WorkerNote) -> SafetyReport:
    """What the oracle says of it, as a run asks it."""
    history = read_history(folder)
    missing = [*holes([note], history.counts, {}, 1), *without_seal([note], history.unsealed)]
    missing += ["torn"] * bool(torn_lost(folder))
    oracle = Judge(TTL_MS, Circumstances(missing=tuple(missing)))
    oracle.add(history)
    return oracle.report()


def one_bit(rng: random.Random, raw: bytearray) -> None:
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def noise(rng: random.Random, raw: bytearray) -> None:
    start = rng.randrange(len(raw))
    for at in range(start, min(start + 40, len(raw))):
        raw[at] = rng.randrange(256)


def zeros(rng: random.Random, raw: bytearray) -> None:
    start = rng.randrange(len(raw)) & ~127
    raw[start : start + 128] = bytes(len(raw[start : start + 128]))


@pytest.mark.parametrize("damage", [one_bit, noise, zeros])
@pytest.mark.parametrize("violated", [False, True])
def test_a_record_that_was_changed_keeps_its_verdict_or_is_unknown(
    tmp_path: Path, damage: Callable[[random.Random, bytearray], None], violated: bool
) -> None:
    note = record_in(tmp_path, violated=violated)
    rng = random.Random(f"{damage.__name__} {violated}")
    before = judged(tmp_path, note)
    assert before.verdict == ("VIOLATED" if violated else "SAFE"), before.reason
    unknown = 0
    for kind in ("history", "lost", "seals", "lostseals"):
        (path,) = tmp_path.glob(f"{kind}-*.bin")
        whole = path.read_bytes()
        used = len(whole.rstrip(b"\0"))
        for _ in range(60):
            raw = bytearray(whole[:used])
            damage(rng, raw)
            path.write_bytes(bytes(raw) + whole[used:])
            found = judged(tmp_path, note)
            assert found.verdict in (before.verdict, "UNKNOWN"), (kind, found.reason)
            assert found.service_faults <= before.service_faults, kind
            unknown += found.verdict == "UNKNOWN"
        path.write_bytes(whole)
    assert judged(tmp_path, note) == before
    assert violated or unknown > 150, "else nothing was changed that matters"


def test_a_file_cut_short_is_unknown(tmp_path: Path) -> None:
    note = record_in(tmp_path)
    for kind in ("history", "lost", "seals", "lostseals"):
        (path,) = tmp_path.glob(f"{kind}-*.bin")
        whole = path.read_bytes()
        path.write_bytes(b"" if "seals" in kind else whole[: len(whole) // 2])
        found = judged(tmp_path, note)
        assert found.verdict == "UNKNOWN" or (kind, found.verdict) == ("lostseals", "SAFE"), (
            kind,
            found.verdict,
        )
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("granted_ns", 5),
        ("outcome", 77),
        ("outcome", 1 | 77 << 8),
        ("ended_ns", 1),
        ("start_ns", 1 << 61),
        ("resource", -1),
    ],
)
def test_a_record_that_cannot_be_true_is_torn_with_or_without_a_checksum(
    field: str, value: int
) -> None:
    records = legal_records(LEASES, 4)
    records[field][500] = value
    found = Judge(TTL_MS)
    found.add(History(records, 0, 0))
    assert found.report().verdict == "UNKNOWN"
    assert "1 damaged records" in str(found.report().reason)


def test_nothing_in_a_record_is_later_than_when_it_was_read() -> None:
    records = legal_records(LEASES, 4)
    last_ns = int(records["release_replied_ns"].max())
    for until_ns, torn in ((last_ns, False), (last_ns - 1, True)):
        oracle = Judge(TTL_MS, Circumstances(until_ns=until_ns))
        oracle.add(History(records, 0, 0))
        assert ("damaged" in str(oracle.report().reason)) is torn


def test_without_the_rules_a_changed_record_claims_what_it_likes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The negative control: believed as it stands, a lease that was granted a little earlier is a
    violation."""
    records = legal_records(LEASES, 4)
    records["granted_ns"][504] = records["release_sent_ns"][500] - 1
    records["start_ns"][504] = records["attempt_ns"][504] = records["ended_ns"][504]
    monkeypatch.setattr(History, "believed", lambda self, _until_ns: self)
    oracle = judge_module.Judge(TTL_MS)
    oracle.add(History(records, 0, 0))
    assert oracle.report().verdict == "VIOLATED"


def test_a_killed_writer_leaves_an_end_without_checksums_and_that_is_no_fault(
    tmp_path: Path,
) -> None:
    recorder = Recorder(tmp_path, 0)
    for row in words_of(legal_records(700, 4)).tolist():
        recorder.write(*row[:15])
    # as it stands: nobody has closed it
    history = read_history(tmp_path)
    assert (len(history.records), history.torn, dict(history.unsealed)) == (
        700,
        0,
        {next(iter(history.counts)): 188},
    )
    assert np.array_equal(
        words_of(history.records)[:, : len(RECORD_FIELDS)], words_of(history.records)
    )
    recorder.close()
    assert set(read_history(tmp_path).unsealed.values()) == {0}
