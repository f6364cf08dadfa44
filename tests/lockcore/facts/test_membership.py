"""How long an instance that has just connected must not vote."""

import pytest

from lockcore.clock import NS_PER_MS, NS_PER_S
from lockcore.facts.membership import Hello, Membership, Rejoin, State, abstention_ns

MAX_TTL_MS = 10_000
# max_ttl + drift of 1 % + 2 ms
WHOLE_NS = (10_000 + 100 + 2) * NS_PER_MS


def abstains_ns(rejoin: Rejoin, known: str | None, uptime_s: int, run_id: str = "now") -> int:
    before = Hello(known, 7, "redis 7", 1) if known else None
    return abstention_ns(Hello(run_id, uptime_s, "redis 7", 1), before, rejoin, MAX_TTL_MS, 0.01)


@pytest.mark.parametrize("uptime_s", [0, 5, 1_000_000])
@pytest.mark.parametrize(
    "rejoin, expected_ns", [("delay", WHOLE_NS), ("trust-first", WHOLE_NS), ("trust", 0)]
)
def test_a_changed_run_id_abstains_for_the_whole_time_whatever_its_uptime(
    rejoin: Rejoin, expected_ns: int, uptime_s: int
) -> None:
    assert abstains_ns(rejoin, "before", uptime_s) == expected_ns


@pytest.mark.parametrize("rejoin", ["delay", "trust-first", "trust"])
def test_the_same_run_id_does_not_abstain(rejoin: Rejoin) -> None:
    assert abstains_ns(rejoin, "now", 0) == 0


@pytest.mark.parametrize(
    "uptime_s, expected_ns",
    [
        (0, WHOLE_NS),
        # uptime counts whole seconds: 1 may mean a moment
        (1, WHOLE_NS),
        (2, WHOLE_NS - NS_PER_S),
        (11, WHOLE_NS - 10 * NS_PER_S),
        (12, 0),
        (1_000_000, 0),
        # a clock that was set back
        (-5, WHOLE_NS),
    ],
)
def test_a_first_contact_abstains_for_what_its_uptime_does_not_cover(
    uptime_s: int, expected_ns: int
) -> None:
    assert abstains_ns("delay", None, uptime_s) == expected_ns


@pytest.mark.parametrize("rejoin", ["trust-first", "trust"])
def test_a_first_contact_counts_at_once_where_it_is_trusted(rejoin: Rejoin) -> None:
    assert abstains_ns(rejoin, None, 0) == 0


def test_a_member_goes_through_its_states() -> None:
    member = Membership()
    seen = []
    hello = Hello("a", 1, "redis 7", 1)
    seen.append(member.state)
    member.joined(hello, 10, now_ns=100)
    seen.append(member.state)
    assert not member.abstained(109)
    assert member.abstained(110)
    # said once
    assert not member.abstained(111)
    seen.append(member.state)
    member.lagged("slow")
    seen.append(member.state)
    member.caught_up()
    member.lost("reset", 200)
    seen.append(member.state)
    member.lost("a replica", 300, refused=True)
    seen.append(member.state)
    assert seen == [
        State.DOWN,
        State.ABSTAINING,
        State.VOTING,
        State.LAGGING,
        State.DOWN,
        State.REFUSED,
    ]


def test_only_a_voting_member_can_lag_and_only_a_lagging_one_catches_up() -> None:
    member = Membership()
    seen = []
    member.joined(Hello("a", 1, "redis 7", 1), 10, now_ns=100)
    member.lagged("slow")
    seen.append(member.state)
    member.caught_up()
    seen.append(member.state)
    member.lost("reset", 200)
    member.caught_up()
    seen.append(member.state)
    assert seen == [State.ABSTAINING, State.ABSTAINING, State.DOWN]


def test_an_abstention_of_no_time_is_none() -> None:
    member = Membership()
    member.joined(Hello("a", 1, "redis 7", 1), 0, now_ns=100)
    assert (member.state, member.reason) == (State.VOTING, "")
