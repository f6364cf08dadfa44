"""The load of `lockbench fsync`, counted: by the intended start what is late, by the end what was
granted."""

from types import SimpleNamespace

from bench.experiments.durability.load_process import PhaseTally

WINDOW = (1_000, 2_000)


def tally_of(*operations: tuple[int, int]) -> PhaseTally:
    tally = PhaseTally(WINDOW)
    for intended_ns, ended_ns in operations:
        tally.intended.append(intended_ns)
        tally.ended.append(ended_ns)
    return tally


def test_a_grant_counts_where_it_ended_and_a_latency_where_it_was_due() -> None:
    done = tally_of((900, 1_000), (1_000, 1_300), (1_900, 2_600), (2_000, 2_000))
    histogram, granted = done.histogram()
    assert granted == 2, "one due before the window ended in it, one due in it ended after it"
    assert (histogram.count, histogram.max_ns) == (2, 700)


def test_what_was_denied_is_counted_by_its_outcome_and_released_by_nobody() -> None:
    due = iter((1, 2, 3, 0))
    tally = PhaseTally((0, 1 << 62), SimpleNamespace(take=lambda: next(due)))
    told = iter(("unreachable", lambda: True, lambda: False))
    tally.call("r0", lambda _resource: next(told))
    assert tally.denied == {"unreachable": 1}
    assert tally.intended.tolist() == [2, 3]
    assert tally.release_failures == 1
