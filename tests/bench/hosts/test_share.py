"""What travels from other hosts: counts without loss, records unchanged by packing, the same share
everywhere."""

import struct
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.hosts.share import (
    BUCKETS,
    MOST_ROWS,
    buckets_of,
    chosen,
    fitting,
    fold_here,
    pack,
    pack_here,
    read_fold,
    read_folds,
    unpack,
    unpack_here,
)
from bench.measure.begun import Begun
from bench.measure.clocks import Integers
from bench.measure.facts import Window
from bench.measure.fold import Fold
from bench.measure.histogram import Histogram, SumsState
from bench.measure.history import read_history
from bench.measure.record import OUTCOME_CODES, RECORD_DTYPE, TIMES, Records
from bench.measure.recorder import Recorder
from bench.measure.section import builtins_of, decoded
from tests.doubles.records import MS, legal_records, scenario_of

WINDOW = Window(10**15 + 200 * MS, 10**15 + 1_700 * MS)
FACTS = scenario_of(64, warmup_ms=200.0)


def random_records(seed: int, count: int = 3_000) -> Records:
    """Operations of every outcome, around the window."""
    random = np.random.default_rng(seed)
    records = legal_records(count, resources=20, seed=seed)
    codes = [
        OUTCOME_CODES[name]
        for name in ("acquired", "contended", "split_vote", "unreachable", "too_late")
    ]
    failed = random.random(count) < 0.3
    records["outcome"][failed] = random.choice(codes[1:], failed.sum())
    for name in (
        "granted_ns",
        "valid_until_ns",
        "work_end_ns",
        "release_sent_ns",
        "release_replied_ns",
    ):
        records[name][failed] = 0
    records["votes"] = random.integers(3, 6, count) | random.integers(0, 3, count) << 8
    records["attempts"] = random.integers(1, 5, count) | random.integers(0, 2, count) << 32
    return records


def in_one(records: Records) -> Fold:
    total = Fold(FACTS, WINDOW)
    total.count(records)
    return total


def sent(fold: Fold) -> SumsState:
    """The state as it arrives."""
    return decoded(msgspec.json.encode(fold.sums.state), SumsState)


# ---------------------------------------------------------------- folds


@pytest.mark.parametrize("seed", range(5))
def test_the_merge_of_the_folds_of_parts_is_the_fold_of_all(seed: int) -> None:
    records = random_records(seed)
    # one part may be of no worker's at all
    parts = np.random.default_rng(seed).integers(0, 4, len(records))
    merged = Fold(FACTS, WINDOW)
    for part in range(5):
        merged.sums.merge(sent(in_one(records[parts == part])))
    whole = in_one(records)
    assert builtins_of(merged.sections().values) == builtins_of(whole.sections().values)
    assert merged.sections().warnings == whole.sections().warnings
    assert sent(merged) == sent(whole), "what no section shows, too"
    assert whole.sections().values.totals.acquired == merged.sections().values.totals.acquired > 0


def test_hand_offs_are_added_where_all_operations_of_a_resource_are() -> None:
    records = legal_records(2_000, resources=20)
    by_worker = Fold(FACTS, WINDOW)
    for caller in range(2):
        by_worker.sums.merge(sent(in_one(records[records["caller"] % 2 == caller])))
    by_worker.add_handoffs(records)
    whole = Fold(FACTS, WINDOW)
    whole.add(records)
    assert builtins_of(by_worker.sections().values) == builtins_of(whole.sections().values)
    assert whole.sections().values.latency_s.handoff.count > 100
    # negative control: each half alone does not know who came between
    halves = Fold(FACTS, WINDOW)
    for caller in range(2):
        halves.add(records[records["caller"] % 2 == caller])
    assert builtins_of(halves.sections().values) != builtins_of(whole.sections().values)


def test_a_window_elsewhere_is_the_same_on_its_own_clock() -> None:
    records = random_records(1)
    hours = 7_200 * 10**9
    moved = records.copy()
    rows = moved.view("<i8").reshape(len(moved), -1)
    rows[:, :TIMES] += hours * (rows[:, :TIMES] != 0)
    there = Fold(FACTS, Window(WINDOW.start_ns + hours, WINDOW.stop_ns + hours))
    there.count(moved)
    here = Fold(FACTS, WINDOW)
    here.sums.merge(sent(there))
    assert builtins_of(here.sections().values) == builtins_of(in_one(records).sections().values)


@pytest.mark.parametrize(
    "change",
    [
        {"numbers": {"totals": {"acquired": 1}}},
        {"numbers": {**in_one(random_records(1)).sums.state.numbers, "tenths": {"0": 1}}},
        {"numbers": {**in_one(random_records(1)).sums.state.numbers, "leases": {"two": 1}}},
        {"histograms": {}},
        {
            "histograms": {
                **in_one(random_records(1)).sums.state.histograms,
                "acquire": (Histogram().encode(), -1, 0),
            }
        },
    ],
)
def test_a_fold_of_something_else_is_refused(change: dict[str, object]) -> None:
    state = in_one(random_records(1)).sums.state
    fields = {name: getattr(state, name) for name in state.__dataclass_fields__}
    with pytest.raises(ValueError, match="partial result"):
        Fold(FACTS, WINDOW).sums.merge(SumsState(**{**fields, **change}))


def test_what_travels_is_exact_where_the_encoding_is_not() -> None:
    values = np.random.default_rng(1).integers(0, 10**10, 1_000)
    histogram = Histogram.of(values)
    exact = Histogram.decode(histogram.encode(), histogram.sum_ns, histogram.max_ns)
    assert (exact.count, exact.sum_ns, exact.max_ns) == (1_000, values.sum(), values.max())
    assert (exact.counts == histogram.counts).all()
    assert Histogram.decode(histogram.encode()).sum_ns != values.sum(), "negative control"


# ---------------------------------------------------------------- the choice


def test_every_resource_has_one_bucket_everywhere_and_the_most_wanted_one_the_first() -> None:
    found = buckets_of(np.arange(100_000))
    assert found[0] == 0
    assert (found >= 0).all()
    assert (found < BUCKETS).all()
    assert found[[1, 2, 3, 99_999]].tolist() == [
        632,
        241,
        874,
        (99_999 * 0x9E3779B97F4A7C15 % 2**64) >> 54,
    ]
    counts = np.bincount(found, minlength=BUCKETS)
    assert 90 <= counts.min() <= counts.max() <= 106


def counts_of(*filled: int) -> list[int]:
    return [int(bucket in filled) for bucket in range(BUCKETS)]


@pytest.mark.parametrize(
    ("fits", "filled", "wanted"),
    [
        ([BUCKETS, BUCKETS], (3, 700), BUCKETS),
        ([BUCKETS, 500], (3, 700), 500),
        # the one of number 700 is the first that stays
        ([BUCKETS, 700], (3, 700), 700),
        # nothing is left behind: all
        ([BUCKETS, 701], (3, 700), BUCKETS),
        ([0, BUCKETS], (3, 700), 4),
        # one resource only
        ([0], (0,), BUCKETS),
        ([0], (), BUCKETS),
        ([], (), BUCKETS),
    ],
)
def test_the_busiest_host_decides_and_the_first_bucket_travels_in_any_case(
    fits: list[int], filled: tuple[int, ...], wanted: int
) -> None:
    assert chosen(fits, [counts_of(*filled)] * len(fits)) == wanted


def test_a_bucket_that_only_another_host_filled_counts() -> None:
    assert chosen([0, 0], [counts_of(9, 10), counts_of(7)]) == 8


@pytest.mark.parametrize("share", [0.01, 0.3, 0.999, 1.0, 3.0])
@pytest.mark.parametrize("ratio", [0.13, 0.2, 0.9])
def test_what_is_said_to_fit_fits_and_not_much_more_would(share: float, ratio: float) -> None:
    sizes = np.random.default_rng(1).integers(0, 10_000, BUCKETS)
    size = lambda buckets: int(sizes[:buckets].sum() * ratio)  # noqa: E731 - packed
    budget = share * sizes.sum() * ratio
    fits = fitting(sizes, budget, size)
    assert size(fits) <= budget
    assert fits == BUCKETS if share >= 1 else size(fits) > 0.95 * budget - 10_000


# ---------------------------------------------------------------- packing


def unpacked(folder: Path, data: bytes, width: int = 16) -> list[Integers]:
    (folder / "file").write_bytes(data)
    return list(unpack(folder / "file", width))


@pytest.mark.parametrize("seed", range(3))
def test_what_is_packed_is_unpacked_unchanged_whatever_it_is(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    wild = random.integers(-(2**63), 2**63 - 1, (500, 16))
    wild[::7] = random.choice([0, -1, 2**63 - 1, -(2**63)], (len(wild[::7]), 16))
    tame = random_records(seed).view("<i8").reshape(-1, 16)
    for words in (wild, tame, tame[:1]):
        (back,) = unpacked(tmp_path, pack(words))
        np.testing.assert_array_equal(back, words)
    pairs = wild[:, :2]
    np.testing.assert_array_equal(next(iter(unpack(_file(tmp_path, pack(pairs)), 2))), pairs)
    assert unpacked(tmp_path, b"") == []


def _file(folder: Path, data: bytes) -> Path:
    path = folder / "pairs"
    path.write_bytes(data)
    return path


def test_what_is_torn_or_claims_to_be_something_else_is_refused(tmp_path: Path) -> None:
    block = pack(random_records(1).view("<i8").reshape(-1, 16))
    # a thousandth of what it becomes
    body = zlib.compress(bytes(10**7))
    bombs = [struct.pack("<II", rows, len(body)) + body for rows in (1, 1_000, MOST_ROWS + 1, 0)]
    for torn in (block[:-1], block[:5], block + b"\0", block[:100] + b"\7" + block[101:], *bombs):
        with pytest.raises(ValueError, match="damaged|packed"):
            unpacked(tmp_path, torn)


def left(folder: Path, records: Records) -> tuple[int, int]:
    """What a worker leaves; who it is."""
    folder.mkdir()
    recorder = Recorder(folder, 3, segment_records=1_000)
    begun = Begun(folder, 3)
    for row in records.view("<i8").reshape(-1, len(records.dtype)).tolist():
        recorder.write(*row[:15])
        begun.lost(row[9], (row[0], row[0] + 1))
    recorder.close()
    begun.close()
    return 3, int(next(folder.glob("history-*")).name.split("-")[2].split(".")[0])


def test_a_share_arrives_with_all_records_of_its_resources_and_lost_attempts(
    tmp_path: Path,
) -> None:
    there = tmp_path / "there"
    here = tmp_path / "here"
    here.mkdir()
    records = random_records(2)
    who = left(there, records)
    counts = fold_here(there, who, FACTS, WINDOW)
    assert counts.sum() == len(records)
    (whole,) = [read_history(there)]
    for buckets in (BUCKETS, 500, 1):
        pack_here(there, who, buckets)
        for path in there.glob("*.pack"):
            unpack_here(path.replace(here / path.name), whole=buckets == BUCKETS)
        found = read_history(here)
        wanted = buckets_of(whole.records["resource"]) < buckets
        np.testing.assert_array_equal(found.records, whole.records[wanted])
        np.testing.assert_array_equal(
            found.lost, whole.lost[buckets_of(whole.lost[:, 0]) < buckets]
        )
        assert (found.torn, found.missing_segments) == (0, 0)
        assert found.counts[who] + counts[buckets:].sum() == len(records), "all are accounted for"
        for path in here.iterdir():
            path.unlink()


def test_a_lost_record_of_a_share_is_missed_and_a_torn_one_counted(tmp_path: Path) -> None:
    """Negative control: what was not wanted is no hole, what was lost is one."""
    there = tmp_path / "there"
    who = left(there, random_records(2))
    counts = fold_here(there, who, FACTS, WINDOW)
    pack_here(there, who, 500)
    unpack_here(there / f"history-{who[0]}-{who[1]}.pack", whole=False)
    for path in there.glob("history-*.*.bin"):
        if "share" not in path.name:
            path.unlink()
    first = min(there.glob("history-*.share.*.bin"))
    rows = np.fromfile(first, RECORD_DTYPE).view(Records)
    np.delete(rows, 5).tofile(first)
    assert read_history(there).counts[who] == counts[:500].sum() - 1
    rows["sequence"][5] = 0
    rows.tofile(first)
    history = read_history(there)
    assert (history.counts[who], history.torn) == (counts[:500].sum() - 1, 1)


def test_a_fold_is_read_back_and_what_is_none_refused(tmp_path: Path) -> None:
    there = tmp_path / "there"
    records = random_records(2)
    who = left(there, records)
    fold_here(there, who, FACTS, WINDOW)
    (told,) = read_folds(there).values()
    merged = Fold(FACTS, WINDOW)
    merged.sums.merge(told)
    assert merged.sections() == in_one(records).sections()
    path = there / "fold-3-1.json"
    path.write_bytes(b'{"numbers": "many"}')
    with pytest.raises(ValueError, match="object"):
        read_fold(path)


def test_a_worker_that_recorded_nothing_packs_nothing(tmp_path: Path) -> None:
    who = left(tmp_path / "there", random_records(3, 10)[:0])
    assert set(pack_here(tmp_path / "there", who, BUCKETS).values()) == {0}
