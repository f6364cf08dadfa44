"""Computes the outcome of a round from its votes.

Input: counts of votes, N instances and the quorum q. Output: the outcome of the round, and a
boolean value that is True if the outcome is final.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. The rules of
compiled.md change nothing here, because all functions of this file work on numbers.

Rules: q is N // 2 + 1, where N is the number of *configured* instances. The first true condition
decides the outcome. If granted ≥ q, the outcome is ACQUIRED, or TOO_LATE if no validity is left. If
refused ≥ q, the outcome is CONTENDED. If granted + refused < q, the outcome is UNREACHABLE. In all
other cases the outcome is SPLIT_VOTE. Source: the Redlock text, "The Redlock algorithm".
docs/lockcore/protocol.md explains when a round may stop. Tests check this rule for every table of
votes and every order of arrival.
"""

from lockcore.facts.model import Outcome


def quorum_of(instances: int) -> int:
    """The number of votes that win a lock. `instances` ≥ 1 is the number of configured instances.

    Instances that do not answer are included in `instances`.

    >>> [quorum_of(instances) for instances in (1, 2, 3, 4, 5)]
    [1, 2, 2, 3, 3]
    """
    if instances < 1:
        raise ValueError(f"a lock needs at least 1 instance, not {instances}")
    return instances // 2 + 1


def is_lost(granted: int, undecided: int, quorum: int) -> bool:
    """True if the grants and the undecided votes together are fewer than a quorum."""
    return granted + undecided < quorum


def outcome_of(granted: int, refused: int, quorum: int) -> Outcome:
    """The outcome of a closed round, from its numbers of grants and refusals.

    The function does not know the validity, so the caller of a lock must check the validity.

    >>> votes = ((3, 2), (2, 3), (2, 0), (2, 2))
    >>> [outcome_of(granted, refused, quorum=3).name for granted, refused in votes]
    ['ACQUIRED', 'CONTENDED', 'UNREACHABLE', 'SPLIT_VOTE']
    """
    if granted >= quorum:
        return Outcome.ACQUIRED
    if refused >= quorum:
        return Outcome.CONTENDED
    if granted + refused < quorum:
        return Outcome.UNREACHABLE
    return Outcome.SPLIT_VOTE


def is_settled(granted: int, refused: int, undecided: int, quorum: int) -> bool:
    """True if no undecided vote can change the outcome of the round."""
    if granted >= quorum:
        return True
    if granted + undecided >= quorum:
        return False
    if refused >= quorum or granted + refused + undecided < quorum:
        return True
    return granted + refused >= quorum and refused + undecided < quorum


def owned_outcome_of(ours: int, not_ours: int, instances: int, quorum: int) -> Outcome:
    """Compute the outcome of a release. `ours` instances had our key, and `not_ours` instances did
    not have our key.

    The function also serves extensions. If the operation is an extension, RELEASED means EXTENDED.
    """
    if ours >= quorum:
        return Outcome.RELEASED
    if not_ours > instances - quorum:
        return Outcome.GONE
    return Outcome.UNREACHABLE


def is_owned_settled(ours: int, not_ours: int, undecided: int, instances: int, quorum: int) -> bool:
    """True if no missing reply can change the outcome of a release or an extension."""
    if ours >= quorum or not_ours > instances - quorum:
        return True
    return ours + undecided < quorum and not_ours + undecided <= instances - quorum
