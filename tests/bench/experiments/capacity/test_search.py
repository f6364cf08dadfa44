"""Where the next probe of a capacity search goes."""

import pytest
from msgspec import structs

from bench.experiments.capacity import search
from bench.experiments.capacity.result import Seen
from bench.experiments.capacity.search import Findings
from tests.bench.experiments.capacity.test_judge import PROBE, SLO, loop

HELD = Seen.HELD
MISSED = Seen.MISSED
PAUSED = Seen.PAUSED
Look = tuple[float, Seen]


def test_after_paused_probes_the_search_looks_for_a_clear_miss_at_higher_rates() -> None:
    def next_rate(*looks: Look) -> float:
        probes = [structs.replace(PROBE, rate_per_s=rate, seen=seen) for rate, seen in looks]
        return search.next_probe(Findings(probes, [loop(1_100.0)]), SLO)[1] or 0.0

    few = ((900.0, HELD), (950.0, HELD))
    assert next_rate(*few, (1_000.0, PAUSED)) == pytest.approx(1.1 * next_rate(*few), rel=0.01)
    assert next_rate(*few, (1_000.0, PAUSED), (1_100.0, PAUSED)) == pytest.approx(
        1.21 * next_rate(*few), rel=0.01
    )
    assert next_rate(*few, (1_000.0, PAUSED), (1_100.0, HELD)) == next_rate(*few, (1_100.0, HELD))


def test_probes_at_the_lowest_rate_and_in_the_middle_show_that_no_rate_holds() -> None:
    """A paused one is made again.

    The lowest rate alone shows nothing: a server may be slow after each rest.
    """
    missed = [loop(100.0, p99=0.05)]
    wanted = list[float | None]()
    looks = list[Look]()
    for seen in (PAUSED, MISSED, MISSED, MISSED, MISSED, MISSED):
        probes = [structs.replace(PROBE, rate_per_s=rate, seen=one) for rate, one in looks]
        wanted.append(search.next_probe(Findings(probes, missed), SLO)[1])
        looks.append((wanted[-1] or 0.0, seen))
    assert wanted == [1.0, 1.0, 1.0, 40.0, 60.0, 80.0]
    probes = [structs.replace(PROBE, rate_per_s=rate, seen=one) for rate, one in looks]
    assert search.next_probe(Findings(probes, missed), SLO)[1] is None
    held = [structs.replace(PROBE, rate_per_s=search.LOWEST, seen=HELD)]
    assert search.next_probe(Findings(held, missed), SLO)[1] not in (search.LOWEST, 40.0)
