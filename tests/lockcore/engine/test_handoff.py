"""Turns passed between processes: in which order, for how many commands, and what lost words
cost."""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2s

import pytest

from lockcore.clock import NS_PER_MS
from lockcore.engine.handoff import (
    FEW_CROWDS,
    FEWER_OTHERS,
    FORGET_NS,
    LONGEST_LOOK_NS,
    MOST_KEPT,
    SOON_FREE,
    Handoff,
)
from lockcore.engine.mail import (
    MOST_ARRIVALS,
    MOST_OF_ONE,
    MOST_OTHERS,
    MOST_PER_WINDOW,
    NUMBER_BYTES,
    PROCESS_BYTES,
    WINDOW_NS,
    Allowance,
    Arrivals,
)
from lockcore.facts.model import Lease, Outcome
from lockcore.settings import RetryPolicy
from tests.lockcore.by_hand import Caller
from tests.lockcore.scripted import START_NS, settings_of
from tests.lockcore.town import House, Town


def holder(town: Town) -> tuple[House, Caller]:
    """Who holds it: one, exactly."""
    holders = [
        (house, caller)
        for house in town.houses
        for caller in house.callers
        if isinstance(caller.result, Lease)
    ]
    assert len(holders) == 1
    return holders[0]


def served(town: Town, times: int, again: bool = False) -> list[int]:
    """In which processes it is held, one after the other; with `again` each holder asks anew."""
    houses = []
    for _ in range(times):
        house, caller = holder(town)
        houses.append(town.houses.index(house))
        house.gives_back(caller)
        if again:
            house.asks()
    return houses


def test_a_waiter_elsewhere_gets_it_at_the_release_without_any_time_passing() -> None:
    town = Town()
    here, there = town.houses
    first = here.asks()
    second = there.asks()
    assert second.result is None
    here.gives_back(first)
    assert isinstance(second.result, Lease)
    assert second.result.attempts == 2


def test_nobody_sends_a_word_while_nobody_is_refused() -> None:
    town = Town()
    for _ in range(5):
        town.houses[0].gives_back(town.houses[0].asks())
    assert town.commands == {"SET": 15, "DELIFEQ": 15}


def test_processes_are_served_in_the_order_in_which_they_came() -> None:
    town = Town(4)
    for house in town.houses:
        house.asks()
    assert served(town, 4) == [0, 1, 2, 3]


def test_who_asks_anew_stands_behind_all_who_wait_elsewhere() -> None:
    town = Town(3)
    for house in town.houses:
        house.asks()
    assert served(town, 9, again=True) == [0, 1, 2] * 3


def test_a_process_first_serves_those_who_stood_in_its_line() -> None:
    town = Town(2)
    for house in (*town.houses, *town.houses, *town.houses):
        house.asks()
    # the others of the first came when somebody waited elsewhere
    assert served(town, 6) == [0, 1, 1, 1, 0, 0]
    assert served(town_of_lines(3, 3), 12, again=True) == [0, 0, 0, 1, 1, 1] * 2


def town_of_lines(*callers: int) -> Town:
    """As many callers as told in each process, all waiting."""
    town = Town(len(callers))
    for house, number in zip(town.houses, callers, strict=True):
        for _ in range(number):
            house.asks()
    return town


def test_a_lease_costs_little_more_than_its_set_and_its_release() -> None:
    town = town_of_lines(8, 8, 8)
    served(town, 8, again=True)
    town.commands.clear()
    served(town, 240, again=True)
    # 3 instances
    assert sum(town.commands.values()) / 240 < 6.6, town.commands
    assert town.commands["GETRANGE"] == 0


def handoff_in(town: Town) -> Handoff:
    """Of the first process."""
    handoff = town.houses[0].engine.handoff
    assert handoff is not None
    return handoff


def first_of(house: House) -> bytes:
    """By what a process is known."""
    assert house.engine.handoff is not None
    return house.engine.handoff.mail.me


def test_what_was_released_before_the_message_came_is_found_free_at_once() -> None:
    """The process that held it tells who waits to look again, if nobody waits there."""
    town = Town()
    here, there = town.houses
    first = here.asks()
    waiting = there.asks()
    late = there.engine.handoff
    assert isinstance(first.result, Lease)
    assert late is not None
    for server in town.servers:
        # as if released, and the message had missed it
        server.drop(b"shop:stock")
    town.commands.clear()
    # as it was a moment ago
    late._looked(late._waits[STOCK], [first_of(here) + b"8" * 15] * 2)
    town.run()
    assert isinstance(waiting.result, Lease)
    assert town.commands == {"PUBLISH": 6, "GETRANGE": 3, "SET": 3}


def test_who_died_is_passed_over() -> None:
    town = Town(3)
    first = town.houses[0].asks()
    town.houses[1].asks()
    third = town.houses[2].asks()
    town.houses[1].lives = False
    town.houses[0].gives_back(first)
    assert isinstance(third.result, Lease)


def test_who_waits_no_longer_passes_it_on() -> None:
    town = Town(3)
    first = town.houses[0].asks()
    second = town.houses[1].asks(wait_ms=20)
    third = town.houses[2].asks()
    town.run(after_ms=30)
    assert second.result.outcome is Outcome.CONTENDED
    town.houses[0].gives_back(first)
    assert isinstance(third.result, Lease)


def test_lost_words_cost_a_second_at_most() -> None:
    town = Town()
    town.mute = {0, 1, 2}
    first = town.houses[0].asks()
    second = town.houses[1].asks()
    town.run(after_ms=3000)
    town.houses[0].gives_back(first)
    assert second.result is None
    for _ in range(11):
        town.run(after_ms=100)
    assert isinstance(second.result, Lease)


@pytest.mark.parametrize(
    ("mute", "wait_polls"), [(set(), False), ({2}, False), ({1, 2}, True), ({0, 1, 2}, True)]
)
def test_who_gets_no_answer_polls_for_a_while(mute: set[int], wait_polls: bool) -> None:
    """Else who is not heard would wait for as long as others come: they never hear that they are
    waited for."""
    town = Town()
    town.mute = mute
    town.houses[0].asks()
    waiting = town.houses[1].asks()
    for half_second, polls in ((1, False), *[(2, wait_polls)] * 15):
        before = town.commands["SET"]
        for _ in range(50):
            town.run(after_ms=10)
        assert (town.commands["SET"] - before > 3) is polls, half_second
    assert waiting.result is None or wait_polls


def test_words_that_one_of_three_loses_are_heard() -> None:
    for mute, is_heard in (({2}, True), ({1, 2}, False)):
        town = Town()
        first = town.houses[0].asks()
        second = town.houses[1].asks()
        town.mute = mute
        town.houses[0].gives_back(first)
        assert isinstance(second.result, Lease) == is_heard


def test_a_holder_that_died_is_outwaited() -> None:
    town = Town()
    town.houses[0].asks()
    second = town.houses[1].asks()
    town.houses[0].lives = False
    waited_ms = 0
    while second.result is None:
        town.run(after_ms=50)
        waited_ms += 50
    assert 10_000 <= waited_ms <= 10_000 + LONGEST_LOOK_NS / 1e6 * 1.25 + 50


def test_a_long_hold_costs_few_commands() -> None:
    town = Town(2, instances=5)
    town.houses[0].asks()
    town.houses[1].asks()
    town.commands.clear()
    for _ in range(80):
        town.run(after_ms=100)
    assert sum(town.commands.values()) / 8 <= 20, town.commands


def test_a_word_that_was_forgotten_is_said_again() -> None:
    """Else a process that always has callers would never yield."""
    town = Town()
    first = town.houses[0].asks()
    second = town.houses[1].asks()
    handoff = town.houses[0].engine.handoff
    assert handoff is not None
    handoff.crowds.clear()
    for _ in range(42):
        town.run(after_ms=100)
    town.houses[0].gives_back(first)
    assert isinstance(second.result, Lease)
    assert town.commands["PUBLISH"] == 5 * 3, "one word, one more, their answers, and the turn"


def test_what_is_torn_between_the_dead_is_not_asked_for_again_and_again() -> None:
    """Left-overs of two clients: no quorum refuses, none can be had, and nobody listens."""
    town = Town(1, instances=5)
    for index, process in enumerate((b"x", b"x", b"y")):
        town.servers[index].put(b"shop:stock", process * 37, town.now_ns + 2_000 * NS_PER_MS)
    waiting = town.houses[0].asks()
    town.commands.clear()
    for _ in range(15):
        town.run(after_ms=100)
    assert town.commands["SET"] == 0
    for _ in range(15):
        town.run(after_ms=100)
    assert isinstance(waiting.result, Lease)
    assert sum(town.commands.values()) < 100


def test_where_nothing_is_heard_it_polls() -> None:
    town = Town(hears=False)
    first = town.houses[0].asks()
    second = town.houses[1].asks()
    town.run(after_ms=3)
    town.houses[0].gives_back(first)
    for _ in range(3):
        town.run(after_ms=3)
    assert isinstance(second.result, Lease)
    assert town.commands["GETRANGE"] == town.commands["PUBLISH"] == 0


def test_among_clients_with_another_policy_it_polls() -> None:
    """They hear nothing: no word of theirs would ever come."""
    town = Town(1)
    others = House(
        town, settings_of(retry=RetryPolicy("fixed", 60_000), key_prefix="shop:"), hears=False
    )
    town.houses.append(others)
    for house in (others, others, town.houses[0]):
        house.asks(wait_ms=3_600_000)
    for polls in (False, False, True, True):
        town.commands.clear()
        for _ in range(40):
            town.run(after_ms=10)
        assert (town.commands["SET"] > 20) is polls
        house, caller = holder(town)
        assert house is others
        house.gives_back(caller)
        house.asks(wait_ms=3_600_000)


def test_a_poll_policy_leaves_no_word() -> None:
    town = Town(retry=RetryPolicy("poll"))
    assert [house.engine.handoff for house in town.houses] == [None, None]


STOCK = blake2s(b"shop:stock", digest_size=16).hexdigest().encode()


def message(
    kind: bytes,
    number: int = 1,
    others: bytes = b"",
    digest: bytes = STOCK,
    process: bytes = b"x" * 22,
) -> bytes:
    """As another process publishes it."""
    return b"2:%b:%b%015d:%b:%b" % (kind, process, number, digest, others)


NO_MESSAGES = [
    b"",
    b"turn",
    b"turn " + b"x" * 23 + b"  stock",
    b"waits " + b"x" * 23 + b"  stock",
    None,
    3,
    [b"turn"],
    message(b"nothing"),
    message(b"turn")[1:],
    b"3" + message(b"turn")[1:],
    message(b"turn", digest=b"stock"),
    message(b"turn", process=b"x" * 21),
    message(b"turn") + b":",
    message(b"turn", others=b"y" * 10_000),
]


@pytest.mark.parametrize("word", NO_MESSAGES)
def test_what_is_no_message_of_this_version_does_nothing(word: object) -> None:
    town = Town()
    house = town.houses[0]
    waiting = house.asks(), house.asks()
    assert isinstance(house.engine.handoff, Handoff)
    for index in range(3):
        house.engine.handoff.heard(word, index)
    town.run()
    assert isinstance(waiting[0].result, Lease)
    assert waiting[1].result is None
    assert not house.engine.handoff.crowds
    assert not house.engine.handoff.wakeups
    assert not town.published


def test_a_turn_nobody_gave_grants_nothing() -> None:
    """The servers alone do: a false word costs an attempt."""
    town = Town()
    first = town.houses[0].asks()
    second = town.houses[1].asks()
    handoff = town.houses[1].engine.handoff
    assert isinstance(first.result, Lease)
    assert handoff is not None
    for index in range(2):
        handoff.heard(message(b"turn"), index)
    town.run()
    assert handoff.wakeups == 1
    assert second.result is None


def test_a_turn_counts_when_a_quorum_has_brought_it_and_once() -> None:
    town = Town(1)
    handoff = town.houses[0].engine.handoff
    assert handoff is not None
    counted = []
    for index in range(3):
        handoff.heard(message(b"turn"), index)
        counted.append(handoff.wakeups)
    assert counted == [0, 1, 1]


@pytest.mark.parametrize("numbers", [[1] * 9, range(9), [1, 1, 2, 2, 1, 3]])
def test_one_instance_gives_no_turn_however_often_it_brings_messages(
    numbers: Sequence[int],
) -> None:
    town = Town(1)
    handoff = handoff_in(town)
    for number in numbers:
        handoff.heard(message(b"turn", number), 2)
    assert handoff.wakeups == 0
    handoff.heard(message(b"turn", numbers[0]), 0)
    assert handoff.wakeups == 1
    for number in numbers:
        handoff.heard(message(b"turn", number), 2)
    assert handoff.wakeups == 1


def test_arrivals_by_number_alone_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault there was."""
    counts = Counter[bytes]()

    def completes(self: Arrivals, content: bytes, index: int) -> bool:
        counts[content] += 1
        return counts[content] == 2

    monkeypatch.setattr(Arrivals, "completes", completes)
    with pytest.raises(AssertionError):
        test_one_instance_gives_no_turn_however_often_it_brings_messages([1] * 9)


def test_an_instance_that_changes_a_message_does_not_complete_it() -> None:
    town = Town(1)
    handoff = handoff_in(town)
    handoff.heard(message(b"turn"), 0)
    handoff.heard(message(b"turn", others=b"y" * 22), 1)
    assert handoff.wakeups == 0


def test_a_flood_from_one_instance_makes_no_other_instance_forgotten() -> None:
    town = Town(1)
    handoff = handoff_in(town)
    handoff.heard(message(b"turn"), 0)
    for number in range(5_000):
        handoff.heard(message(b"turn", number + 10), 1)
    handoff.heard(message(b"turn"), 2)
    assert handoff.wakeups == 1
    assert not town.published


def flood(town: Town, messages: int, within_ms: float, digests: int) -> Handoff:
    """A quorum brings so many forged messages within a time, about so many resources."""
    handoff = handoff_in(town)
    engine = town.houses[0].engine
    for number in range(messages):
        town.now_ns = START_NS + int(number * within_ms * 1e6 / messages)
        engine.now_ns = town.now_ns
        word = message(
            b"waits", number, digest=b"%032d" % (number % digests), process=b"%022d" % number
        )
        for index in range(2):
            handoff.heard(word, index)
        if number % 100 == 0:
            engine.flush(town.now_ns)
    engine.flush(town.now_ns)
    return handoff


@pytest.mark.parametrize(("digests", "most"), [(1, MOST_OF_ONE), (20_000, MOST_PER_WINDOW)])
def test_a_flood_from_a_quorum_causes_a_bounded_number_of_commands(digests: int, most: int) -> None:
    """Each message that anything is done for costs an answer to three instances; the others cost
    nothing."""
    town = Town(1)
    flood(town, 20_000, within_ms=1_000, digests=digests)
    assert 0 < town.commands["PUBLISH"] <= 3 * most * (1_000 * NS_PER_MS // WINDOW_NS)


def test_an_allowance_without_bounds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Allowance, "admits", lambda *_: True)
    with pytest.raises(AssertionError):
        test_a_flood_from_a_quorum_causes_a_bounded_number_of_commands(1, MOST_OF_ONE)


def test_processes_that_nobody_hears_of_are_forgotten_at_once() -> None:
    """Else a turn would be passed to each of them in vain."""
    town = Town(1)
    handoff = flood(town, 2_000, within_ms=10_000, digests=3)
    town.run()
    assert not handoff.crowds


@pytest.mark.parametrize("digests", [1, 100, 20_000])
def test_whatever_is_heard_is_kept_boundedly(digests: int) -> None:
    town = Town(1)
    for server in range(3):
        # nobody says that nobody listens
        town.houses[0].engine.pipes[server].transmit = lambda _: 0
    handoff = flood(town, 20_000, within_ms=20_000, digests=digests)
    crowds = handoff.crowds.values()
    assert len(crowds) <= MOST_KEPT
    assert max(len(crowd.others) for crowd in crowds) <= MOST_OTHERS
    assert (
        sum(len(crowd.others) for crowd in crowds)
        <= FEW_CROWDS * MOST_OTHERS + MOST_KEPT * FEWER_OTHERS
    )
    assert all(len(one) == PROCESS_BYTES for crowd in crowds for one in crowd.others)
    assert len(handoff.mail._arrivals) <= 2 * MOST_ARRIVALS * (3 + 1)


def test_the_names_kept_are_those_that_callers_wait_for() -> None:
    town = Town(1)
    handoff = handoff_in(town)
    for number in range(3 * MOST_KEPT):
        handoff.look(f"r{number}", again=False)
    assert len(handoff._waits) <= MOST_KEPT + 1


@pytest.mark.parametrize("name", ["stock", "\n_\r" * 5 + "\r\n+OK", "a b:c,d", "ä" * 30_000])
def test_messages_have_one_length_and_hold_nothing_of_the_resources_name(name: str) -> None:
    town = Town(3)
    town.resource = name
    for house in town.houses:
        house.asks()
    assert served(town, 3) == [0, 1, 2]
    assert len(town.published) > 10
    for word in town.published:
        fixed = word[: word.rindex(b":")]
        others = word[word.rindex(b":") + 1 :]
        assert len(fixed) - len(fixed.split(b":")[1]) == len(
            b"2::%b:%b" % (b"n" * NUMBER_BYTES, STOCK)
        )
        assert all(len(one) in {0, PROCESS_BYTES} for one in others.split(b","))
        assert name.encode() not in word


@pytest.mark.parametrize("value", [b"", b"x", b"x" * 100_000, b"\n_\r" * 40])
def test_a_value_that_is_no_owner_token_costs_what_a_held_lock_costs(value: bytes) -> None:
    """An empty text looks like no key at all: the head tries some times in vain, then rests."""
    town = Town(1)
    for server in town.servers:
        server.put(b"shop:stock", value)
    waiting = town.houses[0].asks(wait_ms=60_000)
    received = town.houses[0].engine.members.status()[0].bytes_received
    town.commands.clear()
    for _ in range(300):
        town.run(after_ms=10)
    assert waiting.result is None
    looks = 3_000 // 190
    instances = 3
    assert town.commands["SET"] <= (0 if value else looks * (SOON_FREE + 1) * instances)
    assert town.houses[0].engine.members.status()[0].bytes_received - received < 10_000
    for server in town.servers:
        server.drop(b"shop:stock")
    for _ in range(100):
        town.run(after_ms=10)
    assert isinstance(waiting.result, Lease)


def test_when_all_have_been_served_nothing_is_kept() -> None:
    town = town_of_lines(3, 1, 2)
    places = Counter(served(town, 6))
    town.run(after_ms=2000)
    assert places == {0: 3, 1: 1, 2: 2}
    for house in town.houses:
        assert house.engine.handoff is not None
        assert not house.engine.turns.lines
        assert not house.engine.handoff.crowds
        assert house.engine.is_idle
    assert not any(server.keys for server in town.servers)


def test_a_crowd_without_a_message_for_six_seconds_is_forgotten() -> None:
    for pause_ns, is_passed_on in ((FORGET_NS, True), (FORGET_NS + NS_PER_MS, False)):
        town = Town(1)
        handoff = handoff_in(town)
        caller = town.houses[0].asks()
        handoff.heard(message(b"waits"), 0)
        handoff.heard(message(b"waits"), 1)
        # nobody says that nobody listens
        handoff.crowds[STOCK].others[b"y" * 22] = None
        town.now_ns += pause_ns
        town.houses[0].engine.now_ns = town.now_ns
        town.published.clear()
        handoff.released("stock")
        assert bool(handoff.passing) is is_passed_on
        assert caller.result is not None


def test_closing_passes_the_turn_on() -> None:
    town = Town(2)
    first = town.houses[0].asks()
    second = town.houses[1].asks()
    town.houses[0].engine.retire()
    town.houses[0].gives_back(first)
    assert isinstance(second.result, Lease)
