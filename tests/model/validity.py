"""The inequality of Redlock's validity, for every time and clock: *N, assumptions → a
counterexample, or none*.

Two clients hold leases of one resource by votes of N instances. All times are true times, reals in
ms. A clock of an instance runs at most 1 % faster than a client's, and a key may end 1 ms early, as
servers round. An instance has one key at a time. Source: Redis, Distributed Locks; Z3's arithmetic
of linear reals.
"""

from z3 import Bool, If, Implies, ModelRef, Or, Real, RealVal, Solver, Sum, sat

DRIFT = "0.01"
MARGIN_MS = "2"
ROUNDING_MS = "1"
# an instance's clock ÷ a client's
FASTEST = "1.01"


def counterexample(
    instances: int,
    *,
    quorum: int | None = None,
    drift: str = DRIFT,
    margin_ms: str = MARGIN_MS,
    from_grant: bool = False,
) -> ModelRef | None:
    """Times at which both leases are valid at once; None when there are none. `from_grant`:
    validity counts from the grant instead of from the sending."""
    quorum = instances // 2 + 1 if quorum is None else quorum
    solver = Solver()
    votes = []
    kept = []
    valid = []
    for name in "ab":
        ttl, sent, granted, until = (
            Real(f"{what}_{name}") for what in ("ttl", "sent", "granted", "until")
        )
        taken = [Real(f"set_{name}{number}") for number in range(instances)]
        ended = [Real(f"end_{name}{number}") for number in range(instances)]
        voted = [Bool(f"vote_{name}{number}") for number in range(instances)]
        solver.add(
            ttl >= 3,
            sent >= 0,
            until
            == (granted if from_grant else sent) + ttl - ttl * RealVal(drift) - RealVal(margin_ms),
        )
        solver.add(Sum([If(vote, 1, 0) for vote in voted]) >= quorum, granted < until)
        for at, end, vote in zip(taken, ended, voted, strict=True):
            solver.add(at >= sent, end >= at + ttl / RealVal(FASTEST) - RealVal(ROUNDING_MS))
            # its reply came before
            solver.add(Implies(vote, at <= granted))
        votes.append(voted)
        kept.append(list(zip(taken, ended, strict=True)))
        valid.append((granted, until))
    for (at_a, end_a), (at_b, end_b), vote_a, vote_b in zip(*kept, *votes, strict=True):
        solver.add(Implies(vote_a, Implies(vote_b, Or(end_a <= at_b, end_b <= at_a))))
    (begin_a, end_a), (begin_b, end_b) = valid
    solver.add(begin_a < end_b, begin_b < end_a)
    return solver.model() if solver.check() == sat else None
