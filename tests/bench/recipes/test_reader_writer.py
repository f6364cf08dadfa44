"""A lock with two sides: readers together, a writer alone, and each gives back its own."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from redis import Redis

from bench.recipes.protocol import RecipeSettings
from bench.recipes.reader_writer import ReaderWriter, ReaderWriterLate
from lockcore import Denied, Lease, Outcome

pytestmark = pytest.mark.integration
TTL_MS = 2000


@pytest.fixture
def lock(server: Redis, fleet, settings: RecipeSettings) -> Iterator[ReaderWriter]:
    made = ReaderWriter.connect(fleet.urls[:1], settings)
    yield made
    made.close()


def written(lock: ReaderWriter) -> Lease | Denied:
    return lock.acquire("r1", TTL_MS, 0)


def read(lock: ReaderWriter, ttl_ms: int = TTL_MS) -> Lease | Denied:
    return lock.acquire_shared("r1", ttl_ms, 0)


def granted(answer: Lease | Denied) -> Lease:
    assert isinstance(answer, Lease), answer
    return answer


def test_readers_hold_together_and_a_writer_comes_when_the_last_has_left(lock, server) -> None:
    readers = [granted(read(lock)) for _ in range(3)]
    for reader in readers:
        denied = written(lock)
        assert isinstance(denied, Denied)
        assert denied.outcome is Outcome.CONTENDED
        assert lock.release(reader) is Outcome.RELEASED
    writer = granted(written(lock))
    assert isinstance(read(lock), Denied)
    assert isinstance(written(lock), Denied)
    assert lock.release(writer) is Outcome.RELEASED
    assert server.dbsize() == 0


def test_a_reader_that_ended_keeps_no_writer_out_and_gives_nothing_back(lock) -> None:
    reader = granted(read(lock, 200))
    writer = granted(lock.acquire("r1", TTL_MS, 9000))
    assert lock.release(reader) is Outcome.GONE
    assert isinstance(read(lock), Denied)
    assert lock.release(writer) is Outcome.RELEASED
    assert lock.release(writer) is Outcome.GONE


def test_a_reader_with_a_short_ttl_ends_alone(lock, server) -> None:
    """Readers that came before it keep their own ends."""
    long = granted(read(lock))
    granted(lock.acquire_shared("r1", 200, TTL_MS))
    assert server.pttl("test:r1:readers") > 1000
    assert isinstance(written(lock), Denied)
    assert lock.release(long) is Outcome.RELEASED


def test_a_reader_comes_between_the_look_of_the_late_writer_and_its_set(
    lock, fleet, settings: RecipeSettings
) -> None:
    readers: list[Lease] = []

    def gate(point: str) -> None:
        if point == "after-check":
            readers.append(granted(read(lock)))

    late = ReaderWriterLate.connect(fleet.urls[:1], replace(settings, gate=gate))
    writer = granted(written(late))
    assert readers
    assert writer.granted_ns < readers[0].valid_until_ns
    late.close()
