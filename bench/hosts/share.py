"""What travels from another host: *a history → its counts, and its records packed, of all or of
some resources → here*.

- A resource belongs to one of `BUCKETS` by a hash of its number, the same everywhere. Records
  travel of the first so many buckets: of all while every host stays within its budget, else of as
  many as fit for the busiest, but of the first that is not empty in any case. Resource 0, the most
  wanted one under every skew, is in the first.
- Packed: each time as its distance to the one before it in its record; first bytes of a column,
  then second ones, …, by zlib at level 1. (Distances to the record before gained nothing.) The
  budget counts packed bytes.
- What comes from elsewhere is not trusted: a block says how large it is and may not be larger;
  nothing is unpickled.
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
# One host may send so many bytes per second of the run.
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
# The best expected ratio of packed to unpacked size. A fifth is usual.
_HOPED = 1 / 8
_HEAD = struct.Struct("<II")
# The number of words in a row.
_WIDTHS = {"history": len(RECORD_FIELDS), LOST: 2}


@dataclass(frozen=True, slots=True)
class Led:
    """What who leads decided: the measured window (ns on its clock), and of how many buckets the
    records are here."""

    window_ns: tuple[int, int]
    buckets: int = BUCKETS


def buckets_of(resources: Integers) -> Integers:
    """The bucket of each resource."""
    return (resources.astype(np.uint64) * _GOLDEN >> np.uint64(54)).astype(np.int64)


def budget_per_s() -> float:
    """Packed bytes that one host may send per second of run.

    Raises UsageError when the environment says no number.
    """
    text = os.environ.get(BUDGET_VARIABLE) or str(BYTES_PER_S)
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise UsageError(
        f"{BUDGET_VARIABLE} is {text!r}; give packed bytes per second of run, like {BYTES_PER_S}"
    )


# Only packing tells how large the packed records are, and packing takes time. So the first guess
# uses the best ratio that can be hoped for. Every further guess uses the ratio that was just
# measured, and 2 % more, so that the next try most likely fits. After TRIES guesses nothing is
# sent.
def fitting(sizes: Integers, budget: float, packed: Callable[[int], int]) -> int:
    """How many buckets fit.

    `sizes`: unpacked bytes by bucket; `packed`: packs the first so many, says their bytes.
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
    """Of how many buckets records travel.

    `fits`: how many fit for each worker; `counts`: its records by bucket.
    """
    filled = np.flatnonzero(np.sum(np.array(counts, np.int64).reshape(-1, BUCKETS), axis=0))
    least = max(min(fits, default=BUCKETS), int(filled[0]) + 1 if len(filled) else 0)
    return BUCKETS if not len(filled) or filled[-1] < least else least


# Times of one record lie close together, so the distance to the one before has mostly zeros in its
# upper bytes. In rows those zeros stand between other bytes. So the bytes are sorted by column and
# by place, all first bytes, then all second ones, and zlib finds long runs. A time of 0 (did not
# happen) makes large distances, and they are exact in int64. `unpack` is the way back, so both
# change together.
def pack(words: Integers) -> bytes:
    """At most `MOST_ROWS` rows of int64 as one block."""
    steps = np.array(words, np.int64)
    steps[:, 1:TIMES] = np.diff(words[:, :TIMES], axis=1)
    columns = (
        np.ascontiguousarray(steps.T).view(np.uint8).reshape(words.shape[1], -1, 8).swapaxes(1, 2)
    )
    body = zlib.compress(columns.tobytes(), 1)
    return _HEAD.pack(len(words), len(body)) + body


# Blocks come from other hosts, and a small block of zlib can unpack to gigabytes. So the header is
# checked first. Then at most one byte more than it promises is unpacked: the byte too much shows a
# block that says less than it holds. `eof` shows a block that was cut. `zlib.decompress` alone
# could fill the memory before anybody could compare sizes.
def unpack(path: Path, width: int) -> Iterator[Integers]:
    """The blocks of a file as rows of `width` words.

    Raises ValueError when it is torn, or none of `pack`.
    """
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            rows, size = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
            if not 0 < rows <= MOST_ROWS or size > 2 * 8 * width * rows + 64:
                raise ValueError(f"{path.name} has a torn block, or one of {rows} rows")
            whole = zlib.decompressobj()
            try:
                raw = whole.decompress(file.read(size), 8 * width * rows + 1)
            except zlib.error as error:
                raise ValueError(f"not a packed block: {error}") from error
            if len(raw) != 8 * width * rows or not whole.eof:
                raise ValueError(f"a packed block of {rows} rows is torn, or larger than it says")
            columns = np.frombuffer(raw, np.uint8).reshape(width, 8, rows).swapaxes(1, 2)
            words = np.ascontiguousarray(columns).view("<i8").reshape(width, rows).T
            yield np.hstack([np.cumsum(words[:, :TIMES], axis=1), words[:, TIMES:]])


def fold_here(workdir: Path, who: Who, scenario: Scenario, window: Window) -> Integers:
    """Leave the fold of all records for the leader. Returns how many there are by bucket."""
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
    """Pack records and lost attempts of the first `buckets`; the files and their sizes."""
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
    """Put the rows of a packed file where they are read; it goes. `whole`: they are of all
    resources. Raises ValueError when it is torn; what is whole before that stays."""
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
    """Say in the folder what was decided, in one step."""
    write_whole(workdir / LED_FILE, msgspec.json.encode(led).decode(), CURE)


def read_led(workdir: Path) -> Led | None:
    """What was decided; None: nothing came from other hosts."""
    path = workdir / LED_FILE
    return decoded(path.read_bytes(), Led) if path.exists() else None


def read_fold(path: Path) -> SumsState:
    """What one worker counted. Raises ValueError when it is no such thing."""
    return decoded(path.read_bytes(), SumsState)


def read_folds(workdir: Path) -> Mapping[Who, SumsState]:
    """What the workers of other hosts counted, by worker and pid."""
    return {who: read_fold(path) for who, path in worker_files(workdir, FOLD, "json")}
