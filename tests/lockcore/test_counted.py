"""What an application's lock is counted as: exact numbers, a bounded sample, a bounded number of classes."""

import sys
import time
from collections.abc import Callable, Iterator
from threading import RLock, Thread

import pytest

from lockcore.clock import NS_PER_S, monotonic_ns
from lockcore.counted import (
    CLASSES,
    DENIED,
    FIRST_EVERY,
    FORGOTTEN_NS,
    GONE,
    OTHERS,
    PER_SECOND,
    SLOW,
    SPLIT,
    Tallied,
)
from lockcore.model import Closed, Denied, Lease, Outcome, Tally

SLOW_NS = 100_000_000
THREADS, CYCLES = 8, 2_000


class Told:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.acquires: list[tuple[str, Outcome, bool, bool]] = []
        self.releases: list[tuple[str, Outcome]] = []
        self.extensions: list[Outcome] = []

    def acquire(self, name: str, result: Lease | Denied, started_ns: int, *, sampled: bool, odd: bool) -> None:
        self.acquires.append((name, result.outcome, sampled, odd))

    def release(self, name: str, lease: Lease, outcome: Outcome, started_ns: int) -> None:
        self.releases.append((name, outcome))

    def extend(self, name: str, result: Lease | Denied) -> None:
        self.extensions.append(result.outcome)


def lease(resource: str = "r", took_ns: int = 1000, until_ns: int = 0, split_votes: int = 0) -> Lease:
    until_ns = until_ns or monotonic_ns() + NS_PER_S
    return Lease(resource, b"t", 1000, 0, took_ns, until_ns, Closed(Tally(granted=3)), 1, split_votes)


def denied(outcome: Outcome) -> Denied:
    return Denied("r", outcome, Tally(refused=3), 1, 1, 0, 1000)


def watch_of(told: Told, class_of=None, every: int = 1, told_every=lambda every: None) -> Tallied:
    watch = Tallied(told, SLOW_NS, class_of, told_every)
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
        ("", Outcome.ACQUIRED, False, False),
        ("", Outcome.UNREACHABLE, False, True),
    ]
    watch.released(slow, Outcome.GONE, 0)
    numbers = watch.counts[""].numbers
    assert (numbers[SLOW], numbers[SPLIT], numbers[GONE], numbers[DENIED, "unreachable"]) == (1, 3, 1, 1)
    assert told.releases == [("", Outcome.GONE)]


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
    for number in range(1, 100_001):  # 100,000 a second
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

    def acquire(self, name: str, result: Lease | Denied, started_ns: int, *, sampled: bool, odd: bool) -> None:
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


def played_by_threads(watch: Tallied, begin: Callable[[Tallied], None]) -> None:
    """So many cycles of so many threads: one in ten is refused, one in ten finds its lease gone."""

    def cycles() -> None:
        for number in range(CYCLES):
            begin(watch)
            begun_ns = monotonic_ns()
            won = lease(took_ns=begun_ns)
            watch.ended("r", denied(Outcome.CONTENDED) if number % 10 == 9 else won, begun_ns)
            if number % 10 != 9:
                watch.released(won, Outcome.GONE if number % 10 == 4 else Outcome.RELEASED, begun_ns)

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
@pytest.mark.parametrize("begin", [Tallied.begun, torn])
def test_many_threads_lose_no_count_and_one_that_is_torn_would_be_seen(begin: Callable[[Tallied], None]) -> None:
    watch, whole = watch_of(Told(), every=7).among_threads(RLock()), THREADS * CYCLES
    assert isinstance(watch, Tallied)
    played_by_threads(watch, begin)
    counts = watch.counts[""]
    assert (counts.acquired, counts.released) == (whole * 9 // 10, whole * 8 // 10)
    assert (counts.numbers[DENIED, "contended"], counts.numbers[SPLIT]) == (whole // 10, whole // 10)
    assert (counts.numbers[GONE], counts.held) == (whole // 10, {})
    assert (watch.waiting == 0) == (begin is not torn)


@pytest.mark.usefixtures("hasty")
def test_the_sink_is_told_of_one_thing_at_a_time_and_two_would_be_seen() -> None:
    alone, two = Alone(), Alone()
    played_by_threads(watch_of(alone, every=7).among_threads(RLock()), Tallied.begun)
    played_by_threads(watch_of(two, every=7), Tallied.begun)
    assert alone.met == 0 < two.met
