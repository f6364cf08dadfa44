"""The end of a run of several workers: whatever happens to one of them, the others are waited for,
and no longer."""

from itertools import permutations, product

import pytest

from bench.hosts.ending import FINAL, Ending, Progress

NODES = ("one", "two", "three")
STEPS = (Progress.FINISHED, Progress.FOLDED, Progress.HERE)


def brought(ending: Ending, node: str, *steps: Progress) -> Ending:
    for step in steps:
        assert ending.note(node, step)
    return ending


@pytest.mark.parametrize("reached", range(len(STEPS)))
@pytest.mark.parametrize("others", [*product(range(len(STEPS) + 1), repeat=2)])
def test_a_death_at_any_time_shortens_whom_to_wait_for_and_changes_nobody_else(
    reached: int, others: tuple[int, int]
) -> None:
    ending = Ending(NODES)
    for node, number in zip(NODES, (reached, *others), strict=True):
        brought(ending, node, *STEPS[:number])
    before = {node: ending.progress(node) for node in NODES}
    assert ending.note("one", Progress.LOST)
    for progress in Progress:
        waiting = [node for node in NODES[1:] if before[node] is progress]
        assert ending.at(progress) == (["one"] if progress is Progress.LOST else []) + waiting


def test_every_order_of_the_same_messages_comes_to_the_same_end() -> None:
    messages = [("one", step) for step in STEPS] + [
        ("two", Progress.FINISHED),
        ("two", Progress.LOST),
    ]
    ends = set()
    for order in permutations(range(len(messages))):
        one = [at for at in order if at < len(STEPS)]
        two = [at for at in order if at >= len(STEPS)]
        if one != sorted(one) or two != sorted(two):
            # each worker's own messages come in order
            continue
        ending = Ending(("one", "two"))
        for at in order:
            ending.note(*messages[at])
        ends.add((ending.progress("one"), ending.progress("two")))
    assert ends == {(Progress.HERE, Progress.LOST)}


@pytest.mark.parametrize("final", FINAL)
@pytest.mark.parametrize("late", Progress)
def test_what_comes_late_or_twice_changes_nothing(final: Progress, late: Progress) -> None:
    ending = Ending(NODES)
    if final is Progress.HERE:
        brought(ending, "one", *STEPS)
    else:
        brought(ending, "one", Progress.LOST)
    assert not ending.note("one", late)
    assert ending.progress("one") is final
    twice = brought(Ending(NODES), "two", Progress.FINISHED)
    assert not twice.note("two", Progress.FINISHED)
    assert twice.at(Progress.FINISHED) == ["two"]


def test_no_state_is_skipped_and_who_joins_later_takes_no_part() -> None:
    ending = Ending(NODES)
    assert not ending.note("one", Progress.FOLDED)
    assert not ending.note("one", Progress.HERE)
    assert not ending.note("four", Progress.FINISHED)
    assert ending.at(Progress.WORKING) == list(NODES)
    assert ending.progress("four") is None


def test_those_whose_time_is_over_are_lost_and_the_others_are_not() -> None:
    ending = brought(Ending(NODES), "two", *STEPS)
    ending.lose(NODES)
    assert ending.at(Progress.LOST) == ["one", "three"]
    assert ending.at(Progress.HERE) == ["two"]
