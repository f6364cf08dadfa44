"""Finds the holders of a lock at each moment, and decides whether there are too many holders. The
functions are pure.

lockbench uses these functions when it judges a load, and also when it reads a stored result.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from bench.measure.section import Amount, Count, Section, says


class HeldSpan(Section, frozen=True):
    """The time span in which a client held the lock."""

    client: Annotated[Count, says("the client's number, from 0")]
    side: Annotated[
        Literal["", "read", "write"],
        says("read or write, if the lock is shared; empty if it is not shared"),
    ]
    from_ms: Annotated[Amount, says("time from the first request of the load to the grant")]
    until_ms: Annotated[
        Amount,
        says("time from the first request of the load to the release or the end of the lease"),
    ]


def crowds(spans: Sequence[HeldSpan]) -> Iterator[list[HeldSpan]]:
    """Yield the holders after each grant. If a lease ends at the moment of a grant, its client is
    not a holder any more.
    """
    held: list[HeldSpan] = []
    for span in sorted(spans, key=lambda one: one.from_ms):
        held = [*(one for one in held if one.until_ms > span.from_ms), span]
        yield held


def is_too_many(held: Sequence[HeldSpan], capacity: int, *, shared: bool) -> bool:
    """Return True if these clients may not hold the lock together. If `shared` is true, only
    readers may hold the lock together.
    """
    if shared:
        return len(held) > 1 and any(one.side != "read" for one in held)
    return len(held) > capacity
