"""The record of an operation. A record has 128 bytes, and a numpy array of records has one row for
each operation.

- A record is 16 little-endian int64 (`RECORD_FIELDS`). Times are nanoseconds of CLOCK_MONOTONIC. A
  time of 0 means that the event did not happen.
- The worker writes the record of an operation when the operation has ended. Until then, only the
  start of the operation is stored, on a separate page (begun.py).
- The function `sound` separates possible records from impossible records.
"""

from typing import TYPE_CHECKING, Annotated, Any, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bench.measure.clocks import Integers
from bench.measure.section import Section, says


class OperationFacts(Section, frozen=True, kw_only=True):
    """One recorded operation.

    Times are ns of CLOCK_MONOTONIC; 0 means that the event did not happen. The first 16 fields have
    the same names and the same order as the fields of a record.
    """

    intended_ns: Annotated[
        int, says("scheduled start of the acquire; equal to start_ns in a closed loop")
    ] = 0
    start_ns: Annotated[int, says("when the caller called acquire")]
    attempt_ns: Annotated[
        int,
        says("time just before the first command of the last attempt; 0 if no attempt was sent"),
    ] = 0
    granted_ns: Annotated[
        int, says("the time at which the client checked the validity of the lease")
    ] = 0
    valid_until_ns: Annotated[int, says("end of the lease, on the clock of the client")] = 0
    work_end_ns: Annotated[int, says("time at which the protected work ended")] = 0
    release_sent_ns: Annotated[int, says("time just before the release was sent")] = 0
    release_replied_ns: Annotated[int, says("time at which the release returned")] = 0
    ended_ns: Annotated[int, says("time at which the acquire returned, with or without a lease")]
    resource: Annotated[int, says("index of the resource")]
    caller: Annotated[int, says("index of the user; each user of the run has another index")]
    outcome: Annotated[str, says("outcome of the acquire")]
    votes: Annotated[
        int,
        says(
            "votes of the last round, with one byte per kind: granted (lowest byte), refused, "
            "errored, silent, absent, undecided; the next byte is 1 if more votes arrived later"
        ),
    ] = 0
    attempts: Annotated[
        int, says("two numbers in one: the number of rounds + 2^32 × the number of split votes")
    ] = 0
    owner: Annotated[int, says("digest of the owner token, as a signed integer of 64 bits")] = 0
    sequence: Annotated[
        int, says("position of the operation in the history of its load process, from 1")
    ]
    release_outcome: Annotated[
        str, says("outcome of the release; `none` if there was no release")
    ] = "none"
    reader: Annotated[
        bool,
        says("true if the caller is a reader, which may share the resource with other readers"),
    ] = False

    @classmethod
    def of(cls, record: np.void) -> Self:
        """Return an object with the fields of `record`. A record contains a code for each outcome.
        The returned object contains a word instead of the code."""
        fields: dict[str, Any] = {name: int(record[name]) for name in RECORD_FIELDS}
        code = fields["outcome"]
        outcomes = {
            "outcome": OUTCOMES[code & 0xFF],
            "release_outcome": OUTCOMES[code >> 8 & 0xFF],
            "reader": code & READER != 0,
        }
        return cls(**fields | outcomes)


# The fields in the order of the record. `outcome` is acquire code | release code << 8, and also |
# READER if the operation belongs to a reader. `sequence` is slot + 1, and the recorder writes this
# field last.
RECORD_FIELDS = OperationFacts.__struct_fields__[:16]
RECORD_DTYPE = np.dtype([(name, "<i8") for name in RECORD_FIELDS])
RECORD_BYTES = RECORD_DTYPE.itemsize

OUTCOMES = (
    "none",
    "acquired",
    "contended",
    "split_vote",
    "unreachable",
    "too_late",
    "extended",
    "released",
    "gone",
)
# Outcome.value -> code
OUTCOME_CODES: dict[str, int] = {name: code for code, name in enumerate(OUTCOMES)}

# This bit of `outcome` says that the operation belongs to a reader. Without this bit, the operation
# must not share the resource with readers. It may share the resource with at most `capacity` - 1
# other operations.
READER = 1 << 16

# `caller` = index of the worker × CALLERS_PER_WORKER + number of the caller in that worker.
CALLERS_PER_WORKER = 100_000
# The first TIMES fields of a record are times.
TIMES = 9


class RecordColumn:
    """Makes a field of `Records` available as an attribute. Therefore an editor and mypy know the
    name of the field."""

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, records: "Records", _owner: type) -> Integers:
        return np.asarray(records[self._name])


class Records(NDArray[np.void]):
    """A one-dimensional array of records (RECORD_DTYPE). Each field of a record is an attribute."""

    intended_ns = RecordColumn()
    start_ns = RecordColumn()
    attempt_ns = RecordColumn()
    granted_ns = RecordColumn()
    valid_until_ns = RecordColumn()
    work_end_ns = RecordColumn()
    release_sent_ns = RecordColumn()
    release_replied_ns = RecordColumn()
    ended_ns = RecordColumn()
    resource = RecordColumn()
    caller = RecordColumn()
    outcome = RecordColumn()
    votes = RecordColumn()
    attempts = RecordColumn()
    owner = RecordColumn()
    sequence = RecordColumn()

    @property
    def acquire_code(self) -> Integers:
        """The outcome of each acquire, as an index into `OUTCOMES`."""
        return self.outcome & 0xFF

    @property
    def release_code(self) -> Integers:
        """The outcome of each release, as an index into `OUTCOMES`. 0 means that there was no
        release."""
        return self.outcome >> 8 & 0xFF

    @property
    def reader(self) -> NDArray[np.bool_]:
        """A mask of the operations that belong to readers."""
        return np.asarray(self.outcome & READER != 0)

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def __getitem__(self, name: str) -> Integers: ...

        @overload
        def __getitem__(self, row: int) -> np.void: ...

        @overload
        def __getitem__(self, rows: Integers | NDArray[np.bool_] | slice) -> Self: ...

        def __getitem__(self, key: object) -> object: ...


def records_of(rows: ArrayLike) -> Records:
    """Convert `rows` to `Records`. The rows are an array of RECORD_DTYPE, or a list of tuples. Each
    tuple has the values of all fields."""
    return np.asarray(rows, RECORD_DTYPE).view(Records)


NEVER_NS = 1 << 62


ACQUIRED = OUTCOME_CODES["acquired"]
CONTENDED = OUTCOME_CODES["contended"]
RELEASED = OUTCOME_CODES["released"]
GONE = OUTCOME_CODES["gone"]
_DENIED = [OUTCOME_CODES[name] for name in ("contended", "split_vote", "unreachable", "too_late")]
_GIVEN_BACK = [OUTCOME_CODES[name] for name in ("none", "released", "gone", "unreachable")]


# This bit of `votes` means that some votes arrived after the record was written.
LATE_VOTES = 1 << 48


def sound(records: Records) -> NDArray[np.bool_]:
    """Return a mask of the possible records.

    The times of a possible record are in this order, without the events that did not happen:
    intended ≤ start ≤ attempt ≤ granted ≤ ended ≤ release sent ≤ replied.

    A possible record also has valid codes for its outcomes.
    """
    start, attempt, granted, ended = (
        records[f"{name}_ns"] for name in ("start", "attempt", "granted", "ended")
    )
    sent = records.release_sent_ns
    replied = records.release_replied_ns
    until = records.valid_until_ns
    code = records.acquire_code
    released = (records.outcome & ~READER) >> 8
    won = code == ACQUIRED
    attempt_fits = (attempt == 0) | (
        (start <= attempt) & (attempt <= np.where(won, granted, ended))
    )
    of_lease = (start <= granted) & (granted <= ended) & ((sent == 0) | (sent >= ended))
    of_lease &= (replied == 0) | (replied >= sent)
    of_denial = (
        np.isin(code, _DENIED) & (granted == 0) & (sent == 0) & (replied == 0) & (released == 0)
    )
    believable = (
        attempt_fits
        & np.isin(released, _GIVEN_BACK)
        & (records.resource >= 0)
        & (records.caller >= 0)
    )
    believable &= (
        (records.attempts >= 0)
        & (records.intended_ns <= start)
        & (start <= ended)
        & (until < NEVER_NS)
    )
    believable &= (records.intended_ns >= 0) & (np.maximum(ended, replied) < NEVER_NS)
    return np.asarray(believable & np.where(won, of_lease, of_denial))


def ends_ns(records: Records) -> Integers:
    """Return the end of each operation (ns). An operation ends when its release returns. If there
    is no release, the operation ends when its acquire returns."""
    return np.asarray(np.maximum(records.ended_ns, records.release_replied_ns))


def words_of(records: Records) -> Integers:
    """Return the records as rows of int64."""
    return np.ascontiguousarray(records).view("<i8").reshape(len(records), len(RECORD_FIELDS))


def extent_ns(records: Records) -> tuple[int, int]:
    """Return the earliest and the latest time in these records. The function ignores times of 0."""
    times = words_of(records)[:, :TIMES]
    return int(times.min(where=times != 0, initial=NEVER_NS)), int(times.max(initial=0))
