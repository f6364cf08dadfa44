"""Checksums of a history. The rows of a history are divided into blocks, and a separate file
contains a checksum for each block. A reader uses the checksums to detect changed rows.

Rules
- To seal a block means to store its checksum. The writer seals each block only once. It seals a
  block when the block is full, when the file of the block is full, or when the writer closes. If
  the writer is killed, some rows stay unsealed. The run then ended early, so readers do not report
  the unsealed rows as damaged. If the writer closed normally, all rows are sealed.
- The checksum does not include the votes of a record, because votes may arrive after the block is
  sealed. No verdict depends on votes.
- The checksum is zlib's CRC-32 (RFC 1952). This checksum detects every change of a single bit. The
  checksum fails to detect about one in 4 × 10⁹ of all other changes.
- The checksum of 512 records takes 45 µs (2026-11-27, two busy cores), which is 0.09 µs per record.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from bench.measure.clocks import Integers, Who, rows_of
from bench.measure.grown import Grown

# The first parts of file names, for seals of records and for seals of lost attempts.
HISTORY = "seals"
LOST = "lostseals"
BLOCK = 512  # rows
# No writer makes a block with more rows than this.
MOST_ROWS = 1 << 20
# The index of the votes in a record.
VOTES = 12
# The columns of a seal: the first row of the block, the number of rows, their checksum, and 1 if
# the seal is complete.
_ROW = 4

# The number of the first row, the number of rows, and the checksum of the rows.
Block = tuple[int, int, int]


def sum_of(rows: Integers, without: int = -1) -> int:
    """Return the checksum of rows of int64. `without` is the index of a column that the checksum
    ignores. If `without` is below 0, the checksum includes all columns."""
    words = np.array(rows, "<i8")
    if without >= 0:
        words[:, without] = 0
    return crc32(words.tobytes())


class Seals:
    """Writes the checksums of one kind of rows. All rows belong to one worker, which runs in this
    process."""

    def __init__(self, workdir: str | os.PathLike[str], kind: str, worker: int) -> None:
        self._path = Path(workdir) / f"{kind}-{worker}-{os.getpid()}.bin"
        self._file = Grown(self._path)
        self._words = memoryview(b"").cast("q")
        self._word = 0

    # The four columns of a seal are stored one by one, and the last one marks it as complete. If
    # the writer is killed in between, the last column stays 0 and `read` ignores the seal. The last
    # chunk of the file may be only partly used, and `read` ignores its zeros in the same way.
    def add(self, first: int, rows: Integers, without: int = -1) -> None:
        """Seal `rows` as one block. `first` is the number of the first row.

        Raises EnvironmentNotReadyError.
        """
        at = self._word
        if at + _ROW > len(self._words):
            self._words = self._file.chunk()
            at = 0
        self._words[at] = first
        self._words[at + 1] = len(rows)
        self._words[at + 2] = sum_of(rows, without)
        self._words[at + 3] = 1
        self._word = at + _ROW

    def forget(self) -> None:
        """Remove all seals. Before this call, the caller must remove all rows that have a seal."""
        self._words = memoryview(b"").cast("q")
        self._word = 0
        self._file.cut(0)

    def close(self) -> None:
        """Release the view of the file. After this call, the object cannot seal any rows."""
        self._words = memoryview(b"").cast("q")


def read(workdir: str | os.PathLike[str], kind: str, who: Who) -> list[Block]:
    """Return the blocks that a worker has sealed."""
    path = Path(workdir) / f"{kind}-{who[0]}-{who[1]}.bin"
    if not path.exists():
        return []
    return [
        (first, count, total)
        for first, count, total, there in rows_of(path, _ROW).tolist()
        if there
    ]


def malformed(blocks: Sequence[Block]) -> int:
    """Return how many of `blocks` contain a number that no writer stores."""
    return sum(
        not (first >= 0 and 0 < count <= MOST_ROWS and 0 <= total < 1 << 32)
        for first, count, total in blocks
    )


# Every file is checked against all blocks of its worker, and some of these blocks may belong to
# other files. A block never spans two files, because the recorder seals at the end of each file. So
# it is not a fault if a block is not completely within these rows. A damaged seal is still noticed,
# because its rows count as unsealed. If a worker ended in order, unsealed rows make safety UNKNOWN
# (`without_seal`).
def check(
    blocks: Sequence[Block],
    first: int,
    rows: Integers,
    written: NDArray[np.bool_],
    without: int = -1,
) -> tuple[NDArray[np.bool_], int]:
    """Return a mask of the `rows` that are in a block with a wrong checksum. The second return
    value is the number of complete rows that do not belong to any block.

    `first` is the number of the first row. `written` is a mask of the complete rows.
    """
    broken = np.zeros(len(rows), bool)
    sealed = np.zeros(len(rows), bool)
    for start, count, total in blocks:
        inside = slice(start - first, start - first + count)
        if not (0 <= inside.start < inside.stop <= len(rows)):
            # The block belongs to another file, or its seal is torn. If it is torn, the rows count
            # as unsealed.
            continue
        sealed[inside] = True
        broken[inside] |= sum_of(rows[inside], without) != total
    return broken, int((written & ~sealed).sum())


def reseal(workdir: str | os.PathLike[str], worker: int, segments: Sequence[Integers]) -> None:
    """Replace the seals of all records of this process. `segments` contains one array for each file
    of this process, and each array has all current rows of the file."""
    (Path(workdir) / f"{HISTORY}-{worker}-{os.getpid()}.bin").unlink(missing_ok=True)
    new_seals = Seals(workdir, HISTORY, worker)
    base = 0
    for rows in segments:
        for start in range(0, len(rows), BLOCK):
            new_seals.add(base + start, rows[start : start + BLOCK], VOTES)
        base += len(rows)
    new_seals.close()
