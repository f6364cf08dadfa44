"""Defines the data that a worker on another host sends to its leader. The data consists of the
counts of all records, and of the packed records of some or all resources.

- There are `BUCKETS` buckets of resources, and a hash of the resource's number chooses the bucket.
  Every host uses the same hash.
- If the records of all buckets fit into every host's budget, the workers send all records. If the
  records do not fit, each worker sends the first n buckets. The number n is the same for all
  workers. The budget of the busiest host limits n. The workers always send the first bucket that is
  not empty. The first bucket contains resource 0. If the load is skewed, resource 0 is the busiest
  resource.
- In a packed record, each time is stored as the difference from the previous time in the same
  record. A packed column begins with the first bytes of all values. After them, it has the second
  bytes of all values, then the third bytes, and so on. zlib then compresses the bytes at level 1.
  Another format stored the differences between successive records, but its result was not smaller.
  The budget limits the size of the packed data.
- The leader does not trust data from another host. Each block states its size, and the leader
  refuses a larger block. The hosts do not exchange pickled objects.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from bench.errors import UsageError
from bench.measure.begun import LOST, read_lost
from bench.measure.clocks import Integers, Who, worker_files
from bench.measure.facts import Window
from bench.measure.fold import Fold
from bench.measure.grown import CURE
from bench.measure.histogram import SumsState
from bench.measure.history import read_pieces
from bench.measure.record import RECORD_FIELDS, TIMES, sound, words_of
from bench.measure.result import write_whole
from bench.measure.section import decoded
from bench.scenario import Scenario

BUCKETS = 1_024
# For each second of the run, one host may send at most this many bytes.
BYTES_PER_S = 1_000_000
# This variable sets another budget.
BUDGET_VARIABLE = "LOCKBENCH_BYTES_PER_S"
FOLD = "fold"
LED_FILE = "led.json"
# The most rows of a block.
MOST_ROWS = 1 << 17
TRIES = 5
# Fibonacci hashing: Knuth, volume 3, 6.4
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# The best expected ratio of packed to unpacked size. The usual ratio is 1/5.
_HOPED = 1 / 8
_HEAD = struct.Struct("<II")
# The number of words in a row.
_WIDTHS = {"history": len(RECORD_FIELDS), LOST: 2}


@dataclass(frozen=True, slots=True)
class Led:
    """The leader's decisions about a run.

    `window_ns` is the measured window on the leader's clock. `buckets` is how many buckets of
    records the leader fetched.
    """

    window_ns: tuple[int, int]
    buckets: int = BUCKETS


def buckets_of(resources: Integers) -> Integers:
    """Return the bucket of each resource."""
    return (resources.astype(np.uint64) * _GOLDEN >> np.uint64(54)).astype(np.int64)


def budget_per_s() -> float:
    """Return the budget of one host, in packed bytes per second of the run.

    Raises UsageError if the environment variable is not a positive number.
    """
    text = os.environ.get(BUDGET_VARIABLE) or str(BYTES_PER_S)
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise UsageError(
        f"{BUDGET_VARIABLE} is {text!r}; write packed bytes per second of run, like {BYTES_PER_S}"
    )


# The size of packed records is known only after packing, and packing takes time. So the first guess
# uses the best expected ratio. Every further guess uses the ratio that was just measured, plus 2 %.
# So the next try most likely fits. After TRIES guesses without success no record is sent.
def fitting(sizes: Integers, budget: float, packed: Callable[[int], int]) -> int:
    """Return how many buckets fit into `budget` (packed bytes).

    `sizes` has the unpacked size of each bucket in bytes. `packed(n)` packs the first n buckets and
    returns their packed size in bytes.
    """
    whole = np.cumsum(sizes)
    ratio = _HOPED
    for _ in range(TRIES):
        buckets = int(np.searchsorted(whole * ratio, budget, "right"))
        size = packed(buckets)
        if size <= budget:
            return buckets
        ratio = 1.02 * size / int(whole[buckets - 1])
    return 0


def chosen(fits: Sequence[int], counts: Sequence[Sequence[int]]) -> int:
    """Return how many buckets the workers send.

    `fits` has, for each worker, the number of buckets that fit into its budget. `counts` has, for
    each worker, the number of records in each bucket.
    """
    filled = np.flatnonzero(np.sum(np.array(counts, np.int64).reshape(-1, BUCKETS), axis=0))
    least = max(min(fits, default=BUCKETS), int(filled[0]) + 1 if len(filled) else 0)
    return BUCKETS if not len(filled) or filled[-1] < least else least


# The times of one record are close together. So the distance between two times has mostly zeros in
# its upper bytes. In a row, other bytes separate these zeros. So the bytes are sorted by column and
# by place: all first bytes, then all second bytes. In this order zlib finds long runs. A time of 0
# means that the event did not happen. Such a time makes large distances, which int64 holds exactly.
# `unpack` reverses these steps, so the two functions must change together.
def pack(words: Integers) -> bytes:
    """Pack rows of int64 into one block of bytes. `words` may have at most `MOST_ROWS` rows."""
    steps = np.array(words, np.int64)
    steps[:, 1:TIMES] = np.diff(words[:, :TIMES], axis=1)
    columns = (
        np.ascontiguousarray(steps.T).view(np.uint8).reshape(words.shape[1], -1, 8).swapaxes(1, 2)
    )
    body = zlib.compress(columns.tobytes(), 1)
    return _HEAD.pack(len(words), len(body)) + body


# Blocks come from other hosts, and a small block of zlib can unpack to gigabytes. So the header is
# checked first. Then at most one byte more than the stated size is unpacked. This extra byte shows
# a block that is larger than stated. `eof` shows a block that was cut. `zlib.decompress` could fill
# the memory before the sizes can be compared.
def unpack(path: Path, width: int) -> Iterator[Integers]:
    """Yield the blocks of a file as rows of `width` words.

    Raises ValueError if the file is damaged, or if it is not a file of blocks from `pack`.
    """
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            rows, size = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
            if not 0 < rows <= MOST_ROWS or size > 2 * 8 * width * rows + 64:
                raise ValueError(f"{path.name} has a damaged block, or a block with {rows} rows")
            whole = zlib.decompressobj()
            try:
                raw = whole.decompress(file.read(size), 8 * width * rows + 1)
            except zlib.error as error:
                raise ValueError(f"not a packed block: {error}") from error
            if len(raw) != 8 * width * rows or not whole.eof:
                raise ValueError(
                    f"a packed block is damaged, or its size does not match its {rows} rows"
                )
            columns = np.frombuffer(raw, np.uint8).reshape(width, 8, rows).swapaxes(1, 2)
            words = np.ascontiguousarray(columns).view("<i8").reshape(width, rows).T
            yield np.hstack([np.cumsum(words[:, :TIMES], axis=1), words[:, TIMES:]])


def fold_here(workdir: Path, who: Who, scenario: Scenario, window: Window) -> Integers:
    """Count all records, and write the sums to a file for the leader. Return the number of records
    in each bucket."""
    total = Fold(scenario, window)
    counts = np.zeros(BUCKETS, np.int64)
    for _, pieces, _, _ in read_pieces(workdir):
        records = pieces[sound(pieces)]
        total.count(records)
        counts += np.bincount(buckets_of(records.resource), minlength=BUCKETS)
    total.sums.add("buckets", dict(enumerate(counts.tolist())))
    (workdir / f"{FOLD}-{who[0]}-{who[1]}.json").write_bytes(msgspec.json.encode(total.sums.state))
    return counts


def pack_here(workdir: Path, who: Who, buckets: int) -> dict[str, int]:
    """Pack the records and lost attempts of the first `buckets` buckets.

    Return the size of each file in bytes.
    """
    lost = read_lost(workdir)
    pieces = (one[sound(one)] for _, one, _, _ in read_pieces(workdir))
    rows_of_kind = {
        "history": ((one["resource"], words_of(one)) for one in pieces),
        LOST: [(lost[:, 0], lost)],
    }
    sizes = {}
    for kind, parts in rows_of_kind.items():
        path = workdir / f"{kind}-{who[0]}-{who[1]}.pack"
        with path.open("wb") as file:
            for resources, words in parts:
                rows = words[buckets_of(resources) < buckets]
                for first in range(0, len(rows), MOST_ROWS):
                    file.write(pack(rows[first : first + MOST_ROWS]))
            sizes[path.name] = file.tell()
    return sizes


def unpack_here(path: Path, *, whole: bool) -> None:
    """Unpack a file into the files that the judge reads, and remove the packed file.

    If `whole` is true, the rows cover all resources. Raises ValueError if the file is damaged. If a
    block is damaged, the function keeps the blocks before it.
    """
    kind = path.name.partition("-")[0]
    share = "" if whole else ".share"
    draft = path.with_suffix(".tmp")
    try:
        for number, words in enumerate(unpack(path, _WIDTHS[kind])):
            with draft.open("wb") as file:
                file.write(np.ascontiguousarray(words, "<i8").tobytes())
            draft.replace(
                path.with_name(f"{path.stem}{share if kind != LOST else ''}.{number}.bin")
            )
    finally:
        path.unlink()


def write_led(workdir: Path, led: Led) -> None:
    """Write the leader's decisions into the folder, in one atomic step."""
    write_whole(workdir / LED_FILE, msgspec.json.encode(led).decode(), CURE)


def read_led(workdir: Path) -> Led | None:
    """Return the leader's decisions, or None if the run had no workers on other hosts."""
    path = workdir / LED_FILE
    return decoded(path.read_bytes(), Led) if path.exists() else None


def read_fold(path: Path) -> SumsState:
    """Return the counts that the file of one worker contains. Raises ValueError if the file does
    not contain counts."""
    return decoded(path.read_bytes(), SumsState)


def read_folds(workdir: Path) -> Mapping[Who, SumsState]:
    """Return the counts of the workers on other hosts, by worker and pid."""
    return {who: read_fold(path) for who, path in worker_files(workdir, FOLD, "json")}
