"""What callers want and when: shares, lengths, schedules that a seed repeats; handed out on time,
late, or never."""

from collections.abc import Callable
from itertools import count, islice, takewhile

import gevent
import numpy as np
import pytest

from bench.errors import UsageError
from bench.measure.record import CALLERS_PER_WORKER
from bench.scenario import Delay, Skew
from bench.workloads.alarm import CANCELLED, Alarm, Pacer
from bench.workloads.demand import CHUNK, Contention, due_between, offsets_ns
from lockcore.clock import monotonic_ns

NONE = Delay()
MANY = 60_000


def contention(
    skew: Skew | None = None,
    resources: int = 100,
    hold: Delay = NONE,
    think: Delay = NONE,
    seed: int = 1,
):  # type: ignore[no-untyped-def]
    return Contention(skew or Skew(), resources, hold, think, seed)


def shares(skew: Skew, resources: int) -> np.ndarray:
    drawn = list(islice(contention(skew, resources).resources(0), MANY))
    return np.bincount(drawn, minlength=resources) / MANY


@pytest.mark.parametrize(
    ("skew", "exponent"),
    [(Skew(), 0), *((Skew("zipf", exponent), exponent) for exponent in (0.5, 1.0, 1.1, 2.0))],
)
def test_shares_follow_zipfs_law_and_are_all_alike_when_uniform(
    skew: Skew, exponent: float
) -> None:
    weights = np.arange(1, 51) ** -float(exponent)
    assert shares(skew, 50) == pytest.approx(weights / weights.sum(), abs=0.01)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
def test_the_hot_resource_gets_its_share_and_the_others_the_rest(share: float) -> None:
    found = shares(Skew("hot", share), 11)
    assert found[0] == pytest.approx(share, abs=0.01)
    assert found[1:] == pytest.approx(np.full(10, (1 - share) / 10), abs=0.01)


@pytest.mark.parametrize("skew", [Skew(), Skew("zipf", 1.1), Skew("hot", 0.9)])
def test_draws_are_plain_integers_within_the_resources(skew: Skew) -> None:
    drawn = list(islice(contention(skew, 7).resources(0), 5000))
    assert {type(index) for index in drawn} == {int}
    assert set(drawn) <= set(range(7))
    assert list(islice(contention(skew, 1).resources(3), 5)) == [0] * 5


def test_a_caller_repeats_its_choices_and_no_two_callers_share_them() -> None:
    one, again, other = (list(islice(contention().resources(caller), 200)) for caller in (4, 4, 5))
    assert one == again
    assert one != other
    assert one != list(islice(contention(seed=2).resources(4), 200))


def test_nine_in_ten_operations_are_a_readers_and_a_seed_repeats_them() -> None:
    one, again, other = (list(islice(contention().readers(caller), MANY)) for caller in (4, 4, 5))
    assert set(one) == {0, 1}
    assert np.mean(one) == pytest.approx(0.9, abs=0.01)
    assert one == again != other


def test_an_exponential_think_has_its_mean() -> None:
    drawn = list(islice(contention(think=Delay("exp", 2.0)).thinks_ns(0), MANY))
    assert np.mean(drawn) == pytest.approx(2_000_000, rel=0.02)
    assert np.std(drawn) == pytest.approx(2_000_000, rel=0.03)


def test_a_lognormal_hold_has_its_median_and_sigma() -> None:
    drawn = np.array(list(islice(contention(hold=Delay("lognormal", 5.0, 0.7)).holds_ns(0), MANY)))
    assert np.median(drawn) == pytest.approx(5_000_000, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(0.7, rel=0.02)


def test_a_wild_tail_stays_within_an_integer() -> None:
    drawn = list(islice(contention(hold=Delay("lognormal", 1000.0, 10.0)).holds_ns(0), 20_000))
    assert min(drawn) >= 0
    assert max(drawn) <= 86_400 * 10**9


@pytest.mark.parametrize("each", [(10, 10, 10), (3, 2, 2), (1, 1, 0), (7,)])
def test_under_own_no_two_callers_of_any_process_ever_want_the_same_resource(
    each: tuple[int, ...],
) -> None:
    """`each`: the callers of every worker, as Locust deals them out, over no more resources than
    there are callers."""
    wanted = []
    for worker, callers in enumerate(each):
        own = Contention(Skew("own"), sum(each), NONE, NONE, 1, seat=(worker, len(each)))
        for number in range(callers):
            # Locust's own numbers of workers have gaps
            draws = own.resources(5 * CALLERS_PER_WORKER + number)
            first = next(draws)
            assert [next(draws) for _ in range(5)] == [first] * 5
            wanted.append(first)
    assert sorted(wanted) == list(range(sum(each)))


def test_under_own_a_caller_for_whom_no_resource_is_left_is_refused() -> None:
    own = Contention(Skew("own"), 4, NONE, NONE, 1, seat=(1, 2))
    assert [next(own.resources(number)) for number in (0, 1)] == [1, 3]
    with pytest.raises(
        UsageError, match="each caller needs its own resource, but there are only 4"
    ):
        own.resources(2)


MS = 1_000_000

# across chunk borders
COUNT = 3 * CHUNK + 17


def first(number: int, *args: object) -> list[int]:
    return list(islice(offsets_ns(*args), number))  # type: ignore[arg-type]


@pytest.mark.parametrize("spacing", ["fixed", "poisson"])
@pytest.mark.parametrize("parts", [1, 2, 3, 5, 7, 64, CHUNK + 1])
def test_the_shares_of_any_number_of_workers_are_the_whole_schedule(
    spacing: str, parts: int
) -> None:
    whole = first(COUNT, 1500.0, spacing, 7)
    shares = [first(-(-COUNT // parts), 1500.0, spacing, 7, part, parts) for part in range(parts)]
    dealt = [shares[index % parts][index // parts] for index in range(COUNT)]
    assert dealt == whole


def test_fixed_arrivals_do_not_drift_at_an_odd_rate() -> None:
    times = first(30_000, 3.0, "fixed", 1)
    assert times[29_999] == round(29_999 * 1e9 / 3)


def test_poisson_gaps_have_the_rate_and_spread_of_independent_callers() -> None:
    gaps = np.diff(first(40_000, 2000.0, "poisson", 11))
    assert gaps.mean() == pytest.approx(500_000, rel=0.02)
    # exponential: deviation = mean
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert (gaps > 500_000).mean() == pytest.approx(np.exp(-1), abs=0.01)


def test_the_same_seed_gives_the_same_schedule_and_another_seed_another() -> None:
    assert first(CHUNK, 10.0, "poisson", 1) == first(CHUNK, 10.0, "poisson", 1)
    assert first(CHUNK, 10.0, "poisson", 1) != first(CHUNK, 10.0, "poisson", 2)


@pytest.mark.parametrize("spacing", ["fixed", "poisson"])
@pytest.mark.parametrize(("since_s", "until_s"), [(0.0, 3.0), (0.7, 3.0), (1.0, 1.0), (2.9, 3.1)])
def test_what_is_due_is_what_the_schedule_hands_out(
    spacing: str, since_s: float, until_s: float
) -> None:
    since_ns = round(since_s * 1e9)
    until_ns = round(until_s * 1e9)
    times = takewhile(lambda at: at < until_ns, offsets_ns(1234.5, spacing, 7))
    assert due_between(1234.5, spacing, 7, since_ns, until_ns) == sum(
        at >= since_ns for at in times
    )


def late(*lateness_ns: int) -> Callable[[int], int]:
    """A timer that returns at once with the lateness it was told."""
    script = iter(lateness_ns)
    return lambda _due_ns: next(script)


def test_an_arrival_that_is_due_is_taken_at_once_and_counts_as_queued() -> None:
    origin_ns = monotonic_ns() - 1000 * MS
    pacer = Pacer(late(), count(0, MS), origin_ns)
    assert [pacer.take(), pacer.take()] == [origin_ns, origin_ns + MS]
    assert (pacer.queued, pacer.late, pacer.lateness_ns) == (2, 0, [])


def test_an_arrival_to_come_is_waited_for() -> None:
    origin_ns = monotonic_ns() + 3600 * 1000 * MS
    waited = []
    timer = late(7, 0, 1 * MS + 1)
    pacer = Pacer(lambda due_ns: waited.append(due_ns) or timer(due_ns), count(0, MS), origin_ns)
    assert (
        [pacer.take() for _ in range(3)]
        == [origin_ns, origin_ns + MS, origin_ns + 2 * MS]
        == waited
    )
    assert pacer.queued == 0
    assert pacer.lateness_ns == [7, 0, MS + 1]
    # more than a millisecond late, and nothing else
    assert pacer.late == 1


def test_the_warm_up_does_not_judge_the_timer() -> None:
    origin_ns = monotonic_ns() + 3600 * 1000 * MS
    pacer = Pacer(late(5 * MS, 5 * MS, 5), count(0, MS), origin_ns, measure_ns=2 * MS)
    for _ in range(3):
        pacer.take()
    assert (pacer.late, pacer.lateness_ns) == (0, [5])


def test_the_schedule_ends_at_its_end() -> None:
    origin_ns = monotonic_ns() - 1000 * MS
    pacer = Pacer(late(), count(0, MS), origin_ns, end_ns=3 * MS)
    assert [bool(pacer.take()) for _ in range(5)] == [True, True, True, False, False]


def test_a_cancelled_wait_is_no_start() -> None:
    pacer = Pacer(late(CANCELLED), count(0, MS), monotonic_ns() + 3600 * 1000 * MS)
    assert pacer.take() == 0


def test_callers_share_one_schedule_and_each_arrival_is_taken_once() -> None:
    alarm = Alarm()
    origin_ns = monotonic_ns() + MS
    pacer = Pacer(alarm.wait_until, count(0, MS // 10), origin_ns, end_ns=10 * MS)
    taken: list[int] = []

    def call() -> None:
        while due_ns := pacer.take():
            assert monotonic_ns() >= due_ns
            taken.append(due_ns)
            gevent.sleep(0.0005)

    gevent.joinall([gevent.spawn(call) for _ in range(8)], raise_error=True)
    alarm.close()
    assert sorted(taken) == list(islice(count(origin_ns, MS // 10), 100))
