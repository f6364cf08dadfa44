"""One order over resources and times: *(resource, time) pairs → int64 keys that one fast sort orders by both*.

Rules: key = resource × span + (time − earliest): within a resource keys differ exactly as times do, and every key of a
resource is below every key of the next. Where resources × span would pass 2^62, ranges of resources get their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

_KEY_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Timeline:
    """How the times of a range of resources become keys."""

    first_resource: int
    earliest_ns: int
    span_ns: int

    def keys(self, resources: Integers, times_ns: Integers) -> Integers:
        """The key of each (resource, time); both must be within what the timeline was made for."""
        return (resources - self.first_resource) * self.span_ns + (times_ns - self.earliest_ns)


def timelines(
    resources: Integers, times_ns: Sequence[Integers], key_limit: int = _KEY_LIMIT
) -> Iterator[tuple[Timeline, NDArray[np.bool_] | slice]]:
    """Yield timelines that cover all `resources`, each with a selection of the rows that belong to it.

    `times_ns`: every array whose values will be made keys, 1 ns to either side included. One timeline, selecting all
    rows, is the rule; `key_limit` is for tests.
    """
    if not len(resources):
        return
    earliest = min(int(times.min()) for times in times_ns if len(times)) - 1
    span = max(int(times.max()) for times in times_ns if len(times)) + 2 - earliest
    width = max(key_limit // span, 1)
    first, last = int(resources.min()), int(resources.max())
    if last - first < width:
        yield Timeline(first, earliest, span), slice(None)
        return
    for rank in np.unique((resources - first) // width).tolist():
        start = first + rank * width
        yield Timeline(start, earliest, span), (resources >= start) & (resources < start + width)
