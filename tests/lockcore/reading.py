"""The rules of the README's vocabulary, read naively: *all votes → a name; votes so far → the names
still possible*.

Written from the text alone, by counting and by trying every completion; nothing of
`lockcore.facts.quorum` is called. This is what the clever rules are held against.
"""

from collections.abc import Sequence
from functools import cache
from itertools import combinations_with_replacement

GRANTED = "granted"
REFUSED = "refused"
ERRORED = "errored"
SILENT = "silent"
ABSENT = "absent"
VOTES = (GRANTED, REFUSED, ERRORED, SILENT, ABSENT)
OURS = "ours"
NOT_OURS = "not ours"


def quorum(instances: int) -> int:
    """More than half of the configured instances."""
    return next(votes for votes in range(1, instances + 1) if 2 * votes > instances)


def set_name(votes: Sequence[str]) -> str:
    """The name of a round of SETs in which every instance's vote is known."""
    q = quorum(len(votes))
    if votes.count(GRANTED) >= q:
        return "acquired"
    if votes.count(REFUSED) >= q:
        return "contended"
    if votes.count(GRANTED) + votes.count(REFUSED) < q:
        return "unreachable"
    return "split_vote"


@cache
def set_names(known: tuple[str, ...], undecided: int) -> frozenset[str]:
    """The names a round may still get when `undecided` instances have yet to vote."""
    completions = combinations_with_replacement((GRANTED, REFUSED, ERRORED), undecided)
    return frozenset(set_name((*known, *rest)) for rest in completions)


def must_clean_up(known: Sequence[str], undecided: int) -> bool:
    """Clean-up starts once granted + undecided < q."""
    return known.count(GRANTED) + undecided < quorum(len(known) + undecided)


def owned_name(found: Sequence[str]) -> str:
    """The name of a release in which every instance's answer is known (`NOT_OURS` also where it
    cannot be ours)."""
    q = quorum(len(found))
    if found.count(OURS) >= q:
        return "released"
    if found.count(NOT_OURS) > len(found) - q:
        return "gone"
    return "unreachable"


@cache
def owned_names(known: tuple[str, ...], undecided: int) -> frozenset[str]:
    """The names a release may still get when `undecided` instances have yet to answer."""
    completions = combinations_with_replacement((OURS, NOT_OURS, ERRORED), undecided)
    return frozenset(owned_name((*known, *rest)) for rest in completions)
