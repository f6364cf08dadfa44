"""Whether a loop stays awake for a reply: for whom, for how long, and how seldom once it was in
vain."""

from itertools import pairwise

from lockcore.shells.common.vigil import AWAKE_NS, LONELY, MOST_SKIPPED, Vigil


def test_a_lone_callers_loop_stays_awake_from_one_reply_to_the_next() -> None:
    vigil = Vigil(cores=2)
    assert vigil.begins(1, 0)
    assert vigil.goes_on(1, AWAKE_NS - 1)
    assert not vigil.begins(1, AWAKE_NS - 1), "it is awake already"
    assert vigil.goes_on(1, 2 * AWAKE_NS - 2), "from when that was sent"
    assert not vigil.goes_on(0, 2 * AWAKE_NS - 2), "nothing is awaited any more"
    assert not vigil.is_kept
    assert vigil.begins(1, 3 * AWAKE_NS), "that was not in vain"


def test_with_more_in_flight_or_a_single_core_it_sleeps() -> None:
    assert Vigil(cores=2).begins(LONELY, 0)
    assert not Vigil(cores=2).begins(LONELY + 1, 0)
    assert not Vigil(cores=1).begins(1, 0)


def test_what_is_in_vain_is_tried_ever_more_seldom_and_a_reply_in_time_ends_that() -> None:
    vigil = Vigil(cores=2)
    tried = list[int]()
    for sent in range(5000):
        if vigil.begins(1, sent * AWAKE_NS):
            tried.append(sent)
            assert not vigil.goes_on(1, (sent + 1) * AWAKE_NS)
    gaps = [later - earlier - 1 for earlier, later in pairwise(tried)]
    assert gaps == [min(2**number, MOST_SKIPPED) for number in range(len(gaps))]
    assert gaps[-1] == MOST_SKIPPED
    while not vigil.begins(1, 0):
        pass
    assert not vigil.begins(1, 1), "awake: the reply has come, and the next one is asked for"
    assert not vigil.goes_on(0, 2)
    assert vigil.begins(1, 3)
    assert not vigil.goes_on(1, 3 + AWAKE_NS)
    assert [vigil.begins(1, 4) for _ in range(2)] == [False, True], "as after the first one in vain"
