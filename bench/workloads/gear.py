"""What a caller works with: *a worker's parts → the values one loop needs, looked up once*.

Rules: no logic. A None stands for a step that the scenario does not have. Source: operation.py and user.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.measure.record import Write
from bench.recipes.protocol import Acquire, Release
from lockcore import Lease, Tally


class PackedVotes(dict[Tally, int]):
    """The `votes` field of a record for every tally seen so far: there are few of them, and packing costs 0.4 µs."""

    def __missing__(self, tally: Tally) -> int:
        packed = 0
        for place, count in enumerate(tally):
            packed |= count << 8 * place
        self[tally] = packed
        return packed


@dataclass(frozen=True, slots=True)
class Gear:
    """See `Worker.gear`. Times are ns but `ttl_ms` and `wait_ms`.

    `tell` takes an acquire's time and how it failed, `keep` for how long the caller was kept from its next operation.
    `begun[place]`: when the operation in progress was begun. `lost` takes attempts that a record has no room for.
    `still_open`: the votes of a round that is not closed, all of them undecided.
    """

    acquire: Acquire
    release: Release
    ttl_ms: int
    wait_ms: int
    caller: int
    names: list[str]
    resources: Iterator[int]
    take: Callable[[], int] | None
    holds_ns: Iterator[int] | None
    thinks_ns: Iterator[int] | None
    nap_until: Callable[[int], int]
    rest_until: Callable[[int], None]
    write: Write
    begun: memoryview
    place: int
    lost: Callable[[int, Sequence[int]], None]
    votes: PackedVotes
    still_open: int
    pending: Callable[[tuple[int, Lease]], None]
    tell: Callable[[int, str | None], None] | None
    cut: Callable[[], None]
    keep: Callable[[int], None]
