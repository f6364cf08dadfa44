"""What an application's lock is counted as: exact numbers and durations, few samples, a bounded
number of classes."""

import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import RLock, Thread

import pytest

from lockcore.clock import NS_PER_S, monotonic_ns
from lockcore.engine.observed import Listener
from lockcore.facts.model import Closed, Denied, Lease, Outcome, Tally
from lockcore.telemetry.fast import (
    ACQUIRE,
    BOUNDS_NS,
    CLASSES,
    DENIED,
    FIRST_EVERY,
    FORGOTTEN_NS,
    GONE,
    HOLD,
    OTHERS,
    PER_SECOND,
    RELEASE,
    SLOW,
    SPLIT,
    TRIES,
    Durations,
    Tallied,
)

SLOW_NS = 100_000_000
THREADS = 8
CYCLES = 2_000


class Told:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.acquires: list[tuple[str, Outcome, bool, bool]] = []
        self.releases: list[tuple[str, Outcome]] = []
        self.extensions: list[Outcome] = []

    def acquire(
        self, name: str, result: Lease | Denied, started_ns: int, *, sampled: bool, odd: bool
    ) -> None:
        self.acquires.append((name, result.outcome, sampled, odd))

    def release(self, name: str, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        self.releases.append((name, outcome))

    def extend(self, name: str, result: Lease | Denied) -> None:
        self.extensions.append(result.outcome)


def lease(
    resource: str = "r", took_ns: int = 1000, until_ns: int = 0, split_votes: int = 0
) -> Lease:
    until_ns = until_ns or monotonic_ns() + NS_PER_S
    return Lease(
        resource, b"t", 1000, 0, took_ns, until_ns, Closed(Tally(granted=3)), 1, split_votes
    )


def denied(outcome: Outcome) -> Denied:
    return Denied("r", outcome, Tally(refused=3), 1, 1, 0, 1000)


def watch_of(
    told: Told,
    class_of=None,
    every: int = 1,
    told_every=lambda every: None,
    contended_is_odd: bool = False,
) -> Tallied:
    watch = Tallied(told, SLOW_NS, class_of, told_every, contended_is_odd)
    watch.every = every
    return watch


def test_every_operation_is_counted_and_one_in_so_many_is_a_sample() -> None:
    told = Told()
    watch = watch_of(told, every=8)
    for number in range(80):
        begun_ns = number * NS_PER_S
        watch.begun()
        won = lease(took_ns=begun_ns + 1000)
        watch.ended("r", won, begun_ns)
        watch.released(won, Outcome.RELEASED, 0)
    counts = watch.counts[""]
    assert (counts.acquired, counts.released, watch.waiting) == (80, 80, 0)
    assert len(told.acquires) == len(told.releases) == 10
    assert counts.standing(monotonic_ns()) == (0, 0)


def test_what_is_slow_failed_or_lost_is_told_at_once_and_counted() -> None:
    told = Told()
    watch = watch_of(told, every=1000)
    slow = lease(took_ns=SLOW_NS + 1)
    for result in (slow, lease(split_votes=2), denied(Outcome.UNREACHABLE), None):
        watch.begun()
        watch.ended("r", result, 0)
    assert watch.waiting == 0, "also one that raised"
    assert told.acquires == [
        ("", Outcome.ACQUIRED, False, True),
        ("", Outcome.UNREACHABLE, False, True),
    ]
    watch.released(slow, Outcome.GONE, 0)
    numbers = watch.counts[""].numbers
    assert (numbers[SLOW], numbers[SPLIT], numbers[GONE], numbers[DENIED, "unreachable"]) == (
        1,
        3,
        1,
        1,
    )
    assert told.releases == [("", Outcome.GONE)]


def test_an_acquire_that_met_a_held_lock_is_told_only_where_it_is_wanted() -> None:
    for wanted in (False, True):
        told = Told()
        watch = watch_of(told, every=1000, contended_is_odd=wanted)
        watch.ended("r", denied(Outcome.CONTENDED), 0)
        assert watch.counts[""].numbers[DENIED, "contended"] == 1
        assert told.acquires == [("", Outcome.CONTENDED, False, True)] * wanted


# -- durations -------------------------------------------------------------------------------------


def test_each_duration_is_counted_in_its_bucket() -> None:
    """At every bound and beside it, in every cell of the table, and beyond all bounds."""
    near = [bound_ns + more for bound_ns in BOUNDS_NS for more in (-1, 0, 1)]
    for took_ns in (0, 1, *near, *range(0, 9_000_000, 777), 10**15, -5):
        durations = Durations()
        durations.add(took_ns)
        assert durations.buckets.index(1) == bisect_left(BOUNDS_NS, took_ns), took_ns
        assert (sum(durations.buckets), durations.total_ns) == (1, took_ns)


def counted(watch: Tallied, name: str = "") -> dict[tuple[str, str], tuple[int, int]]:
    """Instrument and outcome -> how many values are new, and their sum (ns)."""
    return {
        row: (sum(added), added_ns)
        for row, added, added_ns in watch.counts[name].news()
        if any(added)
    }


@pytest.mark.parametrize("every", [1, 3, 1000])
def test_what_is_no_sample_is_counted_with_its_duration(every: int) -> None:
    """So a quiet minute and a busy one weigh what they are: nothing is left out, and nothing is
    counted twice."""
    told = Told()
    watch = watch_of(told, every=every)
    begun_ns = monotonic_ns()
    for number in range(1, 21):
        won = lease(took_ns=begun_ns + number)
        watch.ended("r", won, begun_ns)
        watch.released(won, Outcome.RELEASED, begun_ns + number + 50)
        watch.ended("r", denied(Outcome.CONTENDED), 0)
    news = counted(watch)
    samples = [number for number in range(1, 21) if not number % every]
    rest = 20 - len(samples)
    assert Counter(outcome for _, outcome, sampled, _ in told.acquires if sampled) == Counter(
        {Outcome.ACQUIRED: len(samples), Outcome.CONTENDED: len(samples)}
    )
    assert len(told.releases) == len(samples)
    none = (0, 0)
    assert news.get((ACQUIRE, "acquired"), none) == (rest, sum(range(1, 21)) - sum(samples))
    assert news.get((TRIES, "acquired"), none) == (rest, rest * NS_PER_S)
    assert news.get((HOLD, ""), none) == (rest, 50 * rest)
    assert news.get((ACQUIRE, "contended"), none) == (rest, 1000 * rest)
    assert news.get((TRIES, "contended"), none) == (rest, rest * NS_PER_S)
    assert news.get((RELEASE, "released"), none)[0] == rest
    assert counted(watch) == {}, "asked again there is nothing new"


def test_attempts_are_counted_as_what_they_are() -> None:
    watch = watch_of(Told(), every=1000)
    for attempts in (1, 1, 2, 3, 12):
        won = lease()
        won.attempts = attempts
        watch.ended("r", won, 0)
    assert counted(watch)[TRIES, "acquired"] == (5, 19 * NS_PER_S)


def test_attempts_are_counted_once_though_a_reader_stops_at_them() -> None:
    watch = watch_of(Told(), every=1000)
    watch.ended("r", lease(), 0)
    for row, _, added_ns in watch.counts[""].news():
        if row == (TRIES, "acquired"):
            assert added_ns == NS_PER_S
            break
    assert (TRIES, "acquired") not in counted(watch)


def test_nothing_is_a_sample_before_somebody_collects() -> None:
    """A sink whose provider is set later would lose the samples of before."""
    told = Told()
    watch = Tallied(told, SLOW_NS, None, lambda every: None)
    begun_ns = monotonic_ns()
    for number in range(3 * FIRST_EVERY):
        watch.ended("r", lease(took_ns=begun_ns + number), begun_ns)
    assert told.acquires == []
    assert counted(watch)[ACQUIRE, "acquired"][0] == 3 * FIRST_EVERY


def test_a_sum_whose_count_is_not_there_yet_is_not_lost() -> None:
    durations = Durations()
    durations.add(5)
    # a thread is in the middle of one
    durations.total_ns += 7
    assert durations.news()[1] == 12
    durations.total_ns += 3
    assert durations.news() == ([0] * (len(BOUNDS_NS) + 1), 0)
    durations.buckets[0] += 1
    added, added_ns = durations.news()
    assert (sum(added), added_ns) == (1, 3)


def test_a_lease_is_gone_once_whoever_finds_out() -> None:
    watch = watch_of(Told())
    won = lease()
    watch.ended("r", won, 0)
    watch.extended(won, denied(Outcome.GONE))
    watch.gone(won)
    watch.released(won, Outcome.GONE, 0)
    assert watch.counts[""].numbers[GONE] == 1


def test_an_extension_that_reached_too_few_loses_nothing() -> None:
    told = Told()
    watch = watch_of(told)
    won = lease()
    watch.ended("r", won, 0)
    watch.extended(won, denied(Outcome.UNREACHABLE))
    assert told.extensions == [Outcome.UNREACHABLE]
    assert watch.counts[""].standing(0)[0] == 1


def test_a_lease_that_nobody_gives_back_is_overdue_and_forgotten_after_an_hour() -> None:
    watch = watch_of(Told())
    until_ns = monotonic_ns()
    watch.ended("r", lease(until_ns=until_ns), 0)
    counts = watch.counts[""]
    assert counts.standing(until_ns - 1) == (1, 0)
    assert counts.standing(until_ns + 1) == (0, 1)
    assert counts.standing(until_ns + FORGOTTEN_NS + 1) == (0, 0)
    assert not counts.held


def test_classes_are_few_whatever_the_mapping_says() -> None:
    watch = watch_of(Told(), class_of=lambda resource: resource)
    for number in range(100):
        watch.ended(f"order:{number}", lease(f"order:{number}"), 0)
    assert len(watch.counts) == CLASSES + 1
    assert watch.counts[OTHERS].acquired == 100 - CLASSES


def test_a_rush_halves_the_share_of_samples_though_nobody_collects() -> None:
    heard: list[int] = []
    watch = watch_of(Told(), every=FIRST_EVERY, told_every=heard.append)
    # 100,000 a second
    for number in range(1, 100_001):
        watch.ended("r", lease(took_ns=number * 10_000), number * 10_000)
    assert heard == [128, 256, 512, 1024, 2048]
    assert 100_000 / heard[-2] > PER_SECOND > 100_000 / heard[-1]


@pytest.mark.parametrize("a_second, every", [(0, 1), (PER_SECOND, 1), (1000, 32), (20_000, 512)])
def test_about_so_many_cycles_a_second_are_samples(a_second: int, every: int) -> None:
    watch = watch_of(Told(), every=FIRST_EVERY)
    begun_ns, _ = watch._paced
    watch.counts[""].acquired = 5 * a_second
    watch.counts[""].numbers[DENIED, "contended"] = 5 * a_second
    assert watch.pace(begun_ns + 10 * NS_PER_S) == every
    assert a_second / every <= PER_SECOND
    assert watch.pace(begun_ns + 10 * NS_PER_S + 1) == every, "asked again at once it keeps to it"


class Alone(Told):
    """A sink that notes whether it was told of two things at once."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = self.met = 0

    def acquire(
        self, name: str, result: Lease | Denied, started_ns: int, *, sampled: bool, odd: bool
    ) -> None:
        self.met += self.busy
        self.busy += 1
        time.sleep(0)
        self.busy -= 1


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def listener_of(watch: Tallied, alone: AbstractContextManager[object]) -> Listener:
    """What callers in threads that cannot be interrupted tell `watch` through."""
    return Listener(watch, lambda: False, alone)


def played_by_threads(watch: Listener, begin: Callable[[], object]) -> None:
    """So many cycles of so many threads: one in ten is refused, one in ten finds its lease gone."""

    def cycles() -> None:
        for number in range(CYCLES):
            begin()
            begun_ns = monotonic_ns()
            won = lease(took_ns=begun_ns)
            watch.ended("r", denied(Outcome.CONTENDED) if number % 10 == 9 else won, begun_ns)
            if number % 10 != 9:
                watch.released(
                    won, Outcome.GONE if number % 10 == 4 else Outcome.RELEASED, begun_ns
                )

    threads = [Thread(target=cycles) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def torn(watch: Tallied) -> None:
    """A thread that is held up in the middle of its count, and while it waits."""
    waiting = watch.waiting
    time.sleep(1e-5)
    watch.waiting = waiting + 1
    time.sleep(1e-5)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("is_torn", [False, True])
def test_many_threads_lose_no_count_and_one_that_is_torn_would_be_seen(is_torn: bool) -> None:
    told = Told()
    watch = watch_of(told, every=7)
    listener = listener_of(watch, RLock())
    whole = THREADS * CYCLES
    played_by_threads(listener, partial(torn, watch) if is_torn else listener.begun)
    counts = watch.counts[""]
    assert (counts.acquired, counts.released) == (whole * 9 // 10, whole * 8 // 10)
    assert (counts.numbers[DENIED, "contended"], counts.numbers[SPLIT]) == (
        whole // 10,
        whole // 10,
    )
    assert (counts.numbers[GONE], counts.held) == (whole // 10, {})
    assert (watch.waiting == 0) == (not is_torn)
    news = counted(watch)
    of = Counter(outcome for _, outcome, sampled, _ in told.acquires if sampled)
    assert news[ACQUIRE, "acquired"][0] + of[Outcome.ACQUIRED] == whole * 9 // 10
    assert news[TRIES, "acquired"][0] + of[Outcome.ACQUIRED] == whole * 9 // 10
    assert news[ACQUIRE, "contended"][0] + of[Outcome.CONTENDED] == whole // 10
    released = sum(outcome is Outcome.RELEASED for _, outcome in told.releases)
    assert (
        news[RELEASE, "released"][0] + released == news[HOLD, ""][0] + released == whole * 8 // 10
    )


@pytest.mark.usefixtures("hasty")
def test_the_sink_is_told_of_one_thing_at_a_time_and_two_would_be_seen() -> None:
    alone = Alone()
    two = Alone()
    for sink, lock in ((alone, RLock()), (two, nullcontext())):
        listener = listener_of(watch_of(sink, every=7), lock)
        played_by_threads(listener, listener.begun)
    assert alone.met == 0 < two.met
