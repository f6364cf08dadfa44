"""Instances that come, go and return: who votes, what is owed to whom, when it is tried again."""

import gc

import pytest

from lockcore.clock import NS_PER_MS, drift_ns
from lockcore.engine.engine import Engine
from lockcore.facts.membership import Hello, twin_of
from tests.doubles.keyspace import OK, ONE
from tests.lockcore.scripted import EVALSHA, TTL_MS, ScriptedFleet, name_of, settings_of, token_of

WHOLE_MS = TTL_MS + drift_ns(TTL_MS, 0.01) / NS_PER_MS


def states(fleet: ScriptedFleet) -> list[str]:
    return [status.state for status in fleet.engine.members.status()]


def owed(fleet: ScriptedFleet) -> list[int]:
    return [status.owed_releases for status in fleet.engine.members.status()]


def test_an_engine_that_nobody_has_any_more_is_freed() -> None:
    """Also of machine code, and where nobody has closed it."""

    def engines() -> set[int]:
        gc.collect()
        return {id(one) for one in gc.get_objects() if type(one) is Engine}

    fleet = ScriptedFleet(3)
    fleet.begin("resource")
    own = id(fleet.engine)
    # Engines of other tests may still be there, or be freed meanwhile.
    assert own in engines()
    del fleet
    assert own not in engines()


# -- votes -----------------------------------------------------------------------------------------


def test_the_voters_are_one_object_as_long_as_they_are_the_same(fleet: ScriptedFleet) -> None:
    """What is compared by identity on every release."""
    voters = fleet.engine.voters
    fleet.detach(1)
    assert fleet.engine.voters is not voters
    assert [pipe.index for pipe in fleet.engine.voters] == [0, 2]
    fleet.attach(1)
    assert fleet.engine.voters is voters


def test_a_batch_goes_to_those_who_voted_when_it_was_made() -> None:
    fleet = ScriptedFleet(3, connect=False)
    fleet.attach(0)
    fleet.attach(1)
    early = fleet.begin("early")
    fleet.attach(2)
    late = fleet.begin("late")
    fleet.flush()
    assert [fleet.about(index, early) for index in range(3)] == [["set"], ["set"], []]
    assert [fleet.about(index, late) for index in range(3)] == [["set"]] * 3


# -- abstention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rejoin", ["delay", "trust-first"])
def test_a_restarted_instance_abstains_for_the_whole_max_ttl_and_drift(rejoin: str) -> None:
    fleet = ScriptedFleet(3, settings=settings_of(rejoin=rejoin))
    fleet.detach(0)
    fleet.attach(0, "restarted", uptime_s=1_000_000)
    assert states(fleet) == ["abstaining", "voting", "voting"]
    assert "restarted" in fleet.engine.members.status()[0].reason
    assert fleet.engine.next_tick_ns(fleet.now_ns) == fleet.now_ns + WHOLE_MS * NS_PER_MS
    fleet.after(WHOLE_MS)
    fleet.now_ns -= 1
    fleet.tick()
    assert states(fleet)[0] == "abstaining"
    assert len(fleet.ask("a").voters) == 2
    fleet.now_ns += 1
    fleet.tick()
    assert states(fleet)[0] == "voting"
    assert fleet.engine.members.status()[0].reason == ""
    assert len(fleet.ask("b").voters) == 3


def test_an_abstaining_instance_gets_no_set_but_extensions_and_releases_and_its_yes_counts() -> (
    None
):
    """Two of three granted, and both abstain afterwards: one with the key still there."""
    fleet = ScriptedFleet(3, settings=settings_of(rejoin="trust-first"))
    fleet.detach(2)
    lease = fleet.won("held")
    for index in (1, 2):
        if index == 1:
            fleet.detach(index)
        fleet.attach(index, f"restarted-{index}")
    assert states(fleet) == ["voting", "abstaining", "abstaining"]
    refused = fleet.ask("new")
    assert name_of(refused) == "unreachable"
    assert all(fleet.about(index, refused) == [] for index in range(3))
    fleet.after(1)
    extension = fleet.extend(lease)
    assert [fleet.about(index, extension.won)[-1:] for index in range(3)] == [["extend"]] * 3
    fleet.reply(2, b"$-1\r\n")
    fleet.reply_all(OK, of=[0, 1])
    assert name_of(extension) == "released"
    release = fleet.release(lease)
    fleet.reply_all(ONE, of=[0, 1])
    assert name_of(release) == "released"


@pytest.mark.parametrize("again, more_ms", [("restarted", 0), ("restarted again", WHOLE_MS / 2)])
def test_an_abstention_goes_on_over_a_broken_connection_and_starts_anew_with_another_restart(
    again: str, more_ms: float
) -> None:
    fleet = ScriptedFleet(3, settings=settings_of(rejoin="trust-first"))
    for run_id in ("restarted", again):
        fleet.detach(0)
        fleet.attach(0, run_id)
        fleet.after(WHOLE_MS / 2)
    fleet.now_ns -= 1
    fleet.tick(more_ms)
    assert states(fleet)[0] == "abstaining"
    fleet.now_ns += 1
    fleet.tick()
    assert states(fleet)[0] == "voting"


# -- what is owed ----------------------------------------------------------------------------------


def test_an_owed_release_is_sent_in_the_dialect_of_the_new_connection(fleet: ScriptedFleet) -> None:
    lease = fleet.won()
    fleet.detach(0)
    fleet.release(lease)
    fleet.attach(0, dialect=EVALSHA)
    fleet.flush()
    assert fleet.sent[0][-1][0] == b"EVALSHA"


@pytest.mark.parametrize("extended", [False, True])
def test_an_owed_release_is_kept_as_long_as_any_lease_may_last(extended: bool) -> None:
    """The lease may have been extended up to max_ttl, so the TTL of its SET says nothing."""
    for late_ms, expected in ((WHOLE_MS - 1, 1), (WHOLE_MS, 0)):
        fleet = ScriptedFleet(3)
        lease = fleet.won(ttl_ms=1_000)
        if extended:
            fleet.after(900)
            fleet.extend(lease, TTL_MS)
            fleet.reply_all(OK)
        fleet.detach(0)
        fleet.release(lease)
        fleet.after(late_ms)
        fleet.attach(0)
        fleet.flush()
        assert fleet.kinds(0).count("release") == expected


def test_what_is_owed_to_an_instance_that_stays_down_is_dropped_when_it_has_expired(
    fleet: ScriptedFleet,
) -> None:
    lease = fleet.won()
    fleet.detach(0)
    fleet.release(lease)
    fleet.after(WHOLE_MS - 1)
    fleet.detach(0, "connection refused")
    assert owed(fleet) == [1, 0, 0]
    fleet.after(1)
    fleet.detach(0, "connection refused")
    assert owed(fleet) == [0, 0, 0]


def test_an_answer_to_a_release_sent_again_does_not_count_for_another_instance() -> None:
    fleet = ScriptedFleet(3, settings=settings_of(instance_timeout_ms=2_000))
    release = fleet.release(fleet.won())
    fleet.detach(0)
    fleet.after(60)
    fleet.attach(0)
    fleet.flush()
    fleet.reply(0, ONE)
    fleet.reply(1, b":0\r\n")
    assert name_of(release) is None
    assert release.tally == (0, 1, 0, 1, 0, 1)


def test_the_old_connection_is_killed_before_anything_else_goes_over_the_new_one() -> None:
    fleet = ScriptedFleet(3, connect=False)
    for index in range(3):
        fleet.attach(index, client_id=40 + index)
    lease = fleet.won()
    fleet.detach(0)
    fleet.release(lease)
    fleet.attach(0, client_id=50)
    fleet.begin("next")
    fleet.flush()
    assert fleet.sent[0][1] == [b"CLIENT", b"KILL", b"ID", b"40"]
    assert fleet.kinds(0) == ["set", "other", "release", "set"]
    fleet.reply(0, b"-ERR No such client\r\n", ONE, OK)
    assert fleet.engine.members.status()[0].pending == 0
    assert fleet.engine.members.status()[0].errors == {}


@pytest.mark.parametrize("why", ["restarted", "its id is not known"])
def test_no_connection_is_killed_where_the_old_one_cannot_be_there(why: str) -> None:
    """Another process gives ids of its own: killing by id would hit a stranger."""
    fleet = ScriptedFleet(1, connect=False)
    fleet.attach(0, "before", client_id=40 if why == "restarted" else 0)
    fleet.detach(0)
    fleet.attach(0, "after" if why == "restarted" else "before", client_id=41)
    fleet.flush()
    assert fleet.sent[0] == []


# -- trying again ----------------------------------------------------------------------------------


def test_a_lost_instance_is_tried_again_after_pauses_that_double_to_two_seconds(
    fleet: ScriptedFleet,
) -> None:
    pauses = []
    for _ in range(9):
        fleet.detach(0, "connection refused")
        next_ns = fleet.engine.next_tick_ns(fleet.now_ns)
        pauses.append((next_ns - fleet.now_ns) / NS_PER_MS)
        fleet.now_ns = next_ns - 1
        assert fleet.engine.members.due_connects(fleet.now_ns) == []
        fleet.now_ns += 1
        assert fleet.engine.members.due_connects(fleet.now_ns) == [0]
        # asked for once, until attach or detach answers
        assert fleet.engine.members.due_connects(fleet.now_ns) == []
    assert pauses == [50, 100, 200, 400, 800, 1600, 2000, 2000, 2000]
    fleet.attach(0)
    fleet.detach(0)
    assert fleet.engine.next_tick_ns(fleet.now_ns) == fleet.now_ns + 50 * NS_PER_MS


def test_an_instance_that_never_came_up_is_tried_at_once() -> None:
    fleet = ScriptedFleet(3, connect=False)
    fleet.attach(1)
    assert fleet.engine.members.due_connects(fleet.now_ns) == [0, 2]
    assert states(fleet) == ["down", "voting", "down"]
    assert fleet.engine.members.status()[0].reason == "not connected yet"


def test_a_refused_instance_says_why_and_is_tried_again(fleet: ScriptedFleet) -> None:
    fleet.detach(1)
    fleet.engine.members.detach(1, "it is a replica", fleet.now_ns, refused=True)
    status = fleet.engine.members.status()[1]
    assert (status.state, status.reason) == ("refused", "it is a replica")
    fleet.after(3_000)
    assert fleet.engine.members.due_connects(fleet.now_ns) == [1]


def test_the_same_server_twice_is_found_by_its_run_id(fleet: ScriptedFleet) -> None:
    members = fleet.engine.members.states
    twin = Hello("run-2", 10, "scripted 1", 1)
    assert twin_of(members, 0, twin) == 2
    assert twin_of(members, 2, twin) is None
    fleet.detach(2)
    assert twin_of(members, 0, twin) is None


# -- what is shown ---------------------------------------------------------------------------------


def test_the_status_shows_an_instance_as_it_stands() -> None:
    fleet = ScriptedFleet(3, dialect=EVALSHA)
    fleet.ask()
    fleet.reply(0, OK)
    fleet.detach(1)
    fleet.attach(1)
    first, second, _ = fleet.engine.members.status()
    assert (first.index, first.address, first.state, first.reason) == (0, "host:7000", "voting", "")
    assert (first.run_id, first.server, first.release_command) == ("run-0", "scripted 1", "evalsha")
    assert (first.commands, first.writes, first.reads, first.bytes_received) == (1, 1, 1, len(OK))
    assert first.bytes_sent == len(fleet.writes[0][0])
    assert (first.pending, first.reconnects, second.reconnects) == (0, 0, 1)


def test_every_engine_has_a_token_prefix_of_its_own_and_every_attempt_a_token() -> None:
    settings = settings_of()
    engines = [Engine(["host:1"], settings, lambda: None) for _ in range(20)]
    tokens = [
        token_of(engine.set_round("r", engine.terms(1_000), 1))
        for engine in engines
        for _ in range(1_000)
    ]
    assert len(set(tokens)) == len(tokens)
    assert len({len(token) for token in tokens}) == 1
    prefixes = {token[:22] for token in tokens}
    assert len(prefixes) == len(engines)
    drawn = set(b"".join(prefixes))
    assert len(drawn) > 40, (
        "a prefix of 22 characters of 64 possible ones has 132 bits; these have fewer"
    )
