"""How an application uses the lock, as a type checker reads it. Nobody runs this file.

Each `ignore` marks a mistake that a type checker must find: `test_face.py` runs mypy and pyright
on it, both in strict mode.
"""

from typing import assert_type

from lockcore import AsyncRedlock, Denied, LagCap, Lease, Outcome, Redlock, RetryPolicy


class Counting(Redlock):
    """A lock with an override."""

    tries = 0

    def try_acquire(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Lease | Denied:
        self.tries += 1
        return super().try_acquire(resource, ttl_ms, wait_ms)


class AsyncCounting(AsyncRedlock):
    """The same, awaited."""

    tries = 0

    async def try_acquire(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Lease | Denied:
        self.tries += 1
        return await super().try_acquire(resource, ttl_ms, wait_ms)


def in_a_thread(urls: list[str]) -> None:
    with Redlock.connect(
        urls,
        shell="threads",
        key_prefix="app:",
        max_ttl_ms=5_000,
        instance_timeout_ms=20.0,
        retry=RetryPolicy("poll", window_ms=2),
        drift_factor=0.02,
        rejoin="trust-first",
        observe_every=10,
        connect_timeout_s=0.5,
        merge_releases=False,
        lag_cap=LagCap(operations=100),
    ) as lock:
        assert_type(lock, Redlock)
        assert_type(lock.try_acquire("stock", 1_000, wait_ms=5), Lease | Denied)
        lease = lock.acquire("stock", ttl_ms=1_000)
        assert_type(lease, Lease)
        assert_type(lock.try_extend(lease), Lease | Denied)
        assert_type(lock.try_release(lease), Outcome)
        with lock.hold("stock", 1_000) as held:
            assert_type(held, Lease)
        lock.try_aquire("stock", 1_000)  # type: ignore[attr-defined]
        lock.try_acquire("stock")  # type: ignore[call-arg]
        lock.try_acquire("stock", "1 s")  # type: ignore[arg-type]
        lock.try_release(lock.try_acquire("stock", 1_000))  # type: ignore[arg-type]
    assert_type(Counting.connect(urls), Counting)
    Redlock.connect(urls, max_ttl=5_000)  # type: ignore[call-arg]
    Redlock.connect(urls, max_ttl_ms="5 s")  # type: ignore[arg-type]
    Redlock.connect(urls, rejoin="never")  # type: ignore[arg-type]
    Redlock.connect(urls, shell="asyncio")  # type: ignore[arg-type]


async def in_a_task(urls: list[str]) -> None:
    async with await AsyncRedlock.connect(urls, max_ttl_ms=5_000) as lock:
        assert_type(lock, AsyncRedlock)
        assert_type(await lock.try_acquire("stock", 1_000), Lease | Denied)
        lease = await lock.acquire("stock", ttl_ms=1_000)
        assert_type(await lock.try_release(lease), Outcome)
        async with lock.hold("stock", 1_000) as held:
            assert_type(held, Lease)
        print(lock.try_acquire("stock", 1_000).resource)  # type: ignore[attr-defined]
    assert_type(await AsyncCounting.connect(urls), AsyncCounting)
    await AsyncRedlock.connect(urls, max_ttl=5_000)  # type: ignore[call-arg]
    await AsyncRedlock.connect(urls, shell="gevent")  # type: ignore[call-arg]
