"""This module fills the rows of lockbench in Locust's table: *the records of a second → counts →
Locust's StatsEntry*.

Rules
- Each delta is added to Locust's entry and to Locust's total. A worker adds its last delta before
  its last report. So at the end, Locust's entry and Locust's total have exactly the same counts as
  lockbench.
- Each key of Locust's table of response times is a number of milliseconds. lockbench rounds this
  number to two significant digits. Locust itself would round it to whole milliseconds.

Source: locust.stats, "customizing response time bucketing" in its documentation.
"""

import math
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
from locust import stats as locust_stats
from locust.stats import RequestStats, StatsEntry, StatsError
from numpy.typing import NDArray

from bench.measure.histogram import Histogram, highest_of_bucket, lowest_of_bucket
from bench.measure.record import ACQUIRED, OUTCOMES, RELEASED, Records
from lockcore.clock import NS_PER_MS

# So many records are counted at once, which takes about 100 µs.
FOLD = 1500


def bucket_ms(milliseconds: float) -> float:
    """Return `milliseconds` (≥ 0) rounded to two significant digits: 0.1472 → 0.15, 3.44 → 3.4, 147
    → 150."""
    if milliseconds <= 0:
        return 0
    return round(milliseconds, 1 - math.floor(math.log10(milliseconds)))


# Durations (ns), outcome codes, and the code of a success.
Taken = tuple[NDArray[np.int64], NDArray[np.int64], int]


def acquires_of(records: Records) -> Taken:
    """Return the duration (ns) of each acquire, the outcome code of each acquire, and the outcome
    code of a success. Each duration begins at the intended start of the acquire."""
    return (
        records.ended_ns - records.intended_ns,
        records.acquire_code,
        ACQUIRED,
    )


def releases_of(records: Records) -> Taken:
    """Return the duration (ns) of each release, the outcome code of each release, and the outcome
    code of a success. The result leaves out the releases without an outcome."""
    codes = records.release_code
    answered = codes != 0
    took_ns = records.release_replied_ns - records.release_sent_ns
    return took_ns[answered], codes[answered], RELEASED


class Row:
    """One row of the table.

    `select` computes the durations and outcomes of the row from the records. If `fire` is not None,
    this object calls `fire` for every operation, and so causes an event of Locust. Locust then
    fills its table from these events.
    """

    def __init__(
        self,
        method: str,
        name: str,
        select: Callable[[Records], Taken],
        fire: Callable[..., None] | None = None,
    ) -> None:
        self.method = method
        self.name = name
        self.fire = fire
        self._select = select
        # Operations since the last report.
        self._new = Histogram()
        self._failures = Counter[str]()
        # The counts of operations up to the last report.
        self._told = self._told_failures = 0

    def fold(self, records: Records) -> None:
        """Count these operations."""
        times_ns, codes, success = self._select(records)
        self._new.add(times_ns)
        self._failures.update(OUTCOMES[code] for code in codes[codes != success].tolist())

    def report(self, stats: RequestStats) -> None:
        """Add the operations since the last report to Locust's table."""
        new = self._new
        self._new = Histogram()
        failures = self._failures
        self._failures = Counter()
        self._told += new.count
        self._told_failures += failures.total()
        if self.fire is not None or not new.count:
            return
        delta = self._delta(stats, new, failures.total())
        stats.get(self.name, self.method).extend(delta)
        stats.total.extend(delta)
        for text, times in failures.items():
            key = StatsError.create_key(self.method, self.name, text)
            error = stats.errors.setdefault(key, StatsError(self.method, self.name, text))
            error.occurred()
            error.occurrences += times - 1

    def tell(self, took_ns: int, exception: str | None) -> None:
        """Fire an event for one operation.

        `took_ns`: the duration of the operation. `exception`: the name of the failure, or None if
        the operation succeeded.
        """
        assert self.fire is not None
        self.fire(
            request_type=self.method,
            name=self.name,
            response_time=took_ns / NS_PER_MS,
            response_length=0,
            exception=exception,
            context={},
        )

    @property
    def counts(self) -> tuple[int, int]:
        """The number of requests and the number of failures so far. Both numbers include the
        operations that the next report will add."""
        return self._told + self._new.count, self._told_failures + self._failures.total()

    def _delta(self, stats: RequestStats, new: Histogram, failures: int) -> StatsEntry:
        delta = StatsEntry(stats, self.name, self.method)
        now_s = time.time()
        delta.last_request_timestamp = now_s
        delta.num_requests = new.count
        delta.num_failures = failures
        delta.total_response_time = new.sum_ns / NS_PER_MS  # type: ignore[assignment]
        shortest_ns = lowest_of_bucket(int(new.counts.nonzero()[0][0]))
        delta.min_response_time = shortest_ns / NS_PER_MS  # type: ignore[assignment]
        delta.max_response_time = new.max_ns / NS_PER_MS  # type: ignore[assignment]
        delta.response_times = _response_times(new)  # type: ignore[assignment]
        delta.num_reqs_per_sec = {int(now_s): new.count}
        delta.num_fail_per_sec = {int(now_s): failures} if failures else {}
        return delta


_BUCKETS = range(len(Histogram().counts))
_MIDDLES = (
    (lowest_of_bucket(index) + highest_of_bucket(index)) / 2 / NS_PER_MS for index in _BUCKETS
)
_KEYS, _KEY_OF_BUCKET = np.unique([bucket_ms(middle) for middle in _MIDDLES], return_inverse=True)


def _response_times(histogram: Histogram) -> dict[float, int]:
    filled = np.flatnonzero(histogram.counts)
    sums = np.bincount(
        _KEY_OF_BUCKET[filled], weights=histogram.counts[filled], minlength=len(_KEYS)
    )
    return dict(
        zip(_KEYS[sums > 0].tolist(), sums[sums > 0].astype(np.int64).tolist(), strict=True)
    )


def keep_fractions() -> None:
    """Make Locust's table keep fractions of a millisecond.

    Call this once per process, when the locustfile is imported.
    """
    locust_stats.bucket_response_time = bucket_ms  # type: ignore[assignment]
