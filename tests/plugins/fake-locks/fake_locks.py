"""Locks that do not lock, as recipes: *a fake, under load → never SAFE*.

The negative controls of the oracle. Each is offered by an entry point, as any recipe of another
package is; none is a part of lockbench.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Self

import gevent

from bench.recipes.plain import HELD, PlainRecipe, Refusal
from bench.recipes.protocol import About, RecipeSettings
from bench.recipes.redlock import RedlockRecipe
from lockcore import Denied, Lease, Outcome
from lockcore.clock import NS_PER_MS, monotonic_ns

LATE_S = 0.001


class _Fake(PlainRecipe):
    """SET NX PX and a DEL without owner check, until a fake does otherwise."""

    about = About(how="a fake for tests", flaw="does not lock", safe=True)

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """Connect, and count refusals from 1."""
        recipe = super().connect(targets, settings)
        recipe.refusals = count(1)
        return recipe

    refusals: count[int]

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Ask once."""
        token = self.new_token()
        started_ns = monotonic_ns()
        if self.ask(
            "SET", self.key(resource), token, "NX", "PX", ttl_ms
        ) is None and not self.refused(resource):
            return HELD
        return self.leased(resource, token, ttl_ms, started_ns)

    def refused(self, resource: str) -> bool:
        """The key is held; True to say yes all the same."""
        return False

    def give_back(self, lease: Lease) -> Outcome:
        """Delete whatever is there."""
        return self.delete(lease.resource)


class AlwaysYes(_Fake):
    """Says yes whatever the server says."""

    def refused(self, resource: str) -> bool:
        """Yes."""
        return True


class YesToEverySecond(_Fake):
    """Says yes to every second attempt that was refused."""

    def refused(self, resource: str) -> bool:
        """Yes, no, yes, …"""
        return next(self.refusals) % 2 == 1


class LateRelease(_Fake):
    """Releases, and once more a little later: what is then there is another's."""

    def give_back(self, lease: Lease) -> Outcome:
        """Delete now and later."""
        gevent.spawn_later(LATE_S, self.delete, lease.resource)
        return self.delete(lease.resource)


class LetsGoByTimer(_Fake):
    """Deletes its own key by a timer, half a millisecond after the grant."""

    def leased(
        self, resource: str, token: bytes, ttl_ms: int, started_ns: int, **more: Any
    ) -> Lease:
        """Grant it, and let it go."""
        lease = super().leased(resource, token, ttl_ms, started_ns, **more)
        threading.Timer(LATE_S / 2, self.delete, [resource]).start()
        return lease


class LetsGoByThread(LetsGoByTimer):
    """The same by a thread that Python's threading does not know."""

    def leased(
        self, resource: str, token: bytes, ttl_ms: int, started_ns: int, **more: Any
    ) -> Lease:
        """Grant it, and let it go."""
        lease = _Fake.leased(self, resource, token, ttl_ms, started_ns, **more)

        def let_go() -> None:
            time.sleep(LATE_S / 2)
            self.delete(resource)

        _thread.start_new_thread(let_go, ())
        return lease


class LetsGoByThreadWithArguments(LetsGoByTimer):
    """The same by a thread of Python's threading, which is simulated."""

    def leased(
        self, resource: str, token: bytes, ttl_ms: int, started_ns: int, **more: Any
    ) -> Lease:
        """Grant it, and let it go."""
        lease = _Fake.leased(self, resource, token, ttl_ms, started_ns, **more)
        threading.Thread(
            target=self.let_go, args=[resource], kwargs={"after_s": LATE_S / 2}, daemon=True
        ).start()
        return lease

    def let_go(self, resource: str, *, after_s: float) -> None:
        """Delete it a little later."""
        time.sleep(after_s)
        self.delete(resource)


class ThreadThatRaises(LetsGoByThreadWithArguments):
    """The thread ends by an exception, which nobody hears of."""

    def let_go(self, resource: str, *, after_s: float) -> None:
        """Fail."""
        raise RuntimeError(resource, after_s)


class LetsGoByPool(LetsGoByThreadWithArguments):
    """The same by a pool of threads."""

    def leased(
        self, resource: str, token: bytes, ttl_ms: int, started_ns: int, **more: Any
    ) -> Lease:
        """Grant it, and let it go."""
        lease = _Fake.leased(self, resource, token, ttl_ms, started_ns, **more)
        ThreadPoolExecutor(1).submit(self.let_go, resource, after_s=LATE_S / 2)
        return lease


class ForeignDelete(_Fake):
    """Removes the holder's key when it is refused, and tries again."""

    def refused(self, resource: str) -> bool:
        """Delete what is in the way."""
        if next(self.refusals) % 4 == 0:
            self.delete(resource)
        return False


class Silent(_Fake):
    """Says yes and never sends anything; a mutex of this process keeps its callers apart."""

    held: set[str]

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """Connect, as one must."""
        recipe = super().connect(targets, settings)
        recipe.held = set()
        return recipe

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Ask nobody."""
        started_ns = monotonic_ns()
        if resource in self.held:
            return HELD
        self.held.add(resource)
        return self.leased(resource, self.new_token(), ttl_ms, started_ns)

    def give_back(self, lease: Lease) -> Outcome:
        """Tell nobody."""
        self.held.discard(lease.resource)
        return Outcome.RELEASED


class NeverReleases(_Fake):
    """Says that it has released, and has not."""

    def give_back(self, lease: Lease) -> Outcome:
        """Do nothing."""
        return Outcome.RELEASED


class YesAfterTheEnd(_Fake):
    """Says yes when its lease has ended already."""

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Ask once, and believe what is no longer true."""
        result = super().attempt(resource, ttl_ms)
        if isinstance(result, Lease):
            result.valid_until_ns = result.granted_ns - NS_PER_MS
        return result


class GrantedLater(_Fake):
    """Says yes whatever the server says, and that this was a minute later."""

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Ask once, and shift the grant."""
        token = self.new_token()
        started_ns = monotonic_ns()
        self.ask("SET", self.key(resource), token, "NX", "PX", ttl_ms)
        lease = self.leased(resource, token, ttl_ms, started_ns)
        lease.granted_ns += 60_000 * NS_PER_MS
        return lease


class NeverYes(_Fake):
    """Grants nothing."""

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Ask, and say no."""
        self.ask("EXISTS", self.key(resource))
        return HELD


class Honest(_Fake):
    """The positive control: what the fakes are made of, and nothing more."""


class ReturnsLate(Honest):
    """Says when it was granted, truly, and returns 20 ms later."""

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        """As it should be, but late."""
        answer = super().acquire(resource, ttl_ms, wait_ms)
        gevent.sleep(0.02)
        return answer


class HandsOutEnded(Honest):
    """Hands out every lease when it has ended."""

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        """Wait until the lease is over."""
        answer = super().acquire(resource, ttl_ms, wait_ms)
        if isinstance(answer, Lease):
            gevent.sleep((answer.valid_until_ns - monotonic_ns()) / 1e9 + 0.002)
        return answer


class OneLease(AlwaysYes):
    """Hands out one Lease object for all, whatever the server says, and changes it each time."""

    shared: Lease | None = None

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Ask once, and fill in the object that everybody has."""
        answer = super().attempt(resource, ttl_ms)
        if not isinstance(answer, Lease):
            return answer
        if self.shared is None:
            self.shared = answer
        for name in ("resource", "owner_token", "started_ns", "granted_ns", "valid_until_ns"):
            setattr(self.shared, name, getattr(answer, name))
        return self.shared


class InventsAttempts(_Fake):
    """A lock within its process, which asks its server once per lease and says that it has asked a
    hundred times."""

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        """Ask once, and invent the rest."""
        begun_ns = monotonic_ns()
        answer = super().acquire(resource, ttl_ms, wait_ms)
        if isinstance(answer, Lease):
            answer.attempts = 101
            answer.lost_ns = [begun_ns] * 100
            return answer
        return Denied(
            resource,
            answer.outcome,
            answer.tally,
            100,
            0,
            begun_ns,
            monotonic_ns(),
            [begun_ns] * 100,
        )


class Nonsense(Honest):
    """Says yes by True."""

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        """Lock, and say something else."""
        super().acquire(resource, ttl_ms, wait_ms)
        gevent.sleep(0.001)
        return True  # type: ignore[return-value]


class LeavesKeys(Honest):
    """Leaves a key of its own name behind with every lease."""

    def give_back(self, lease: Lease) -> Outcome:
        """Unlock, and leave something."""
        self.ask("SET", b"left:" + lease.owner_token[-1:], "1")
        return super().give_back(lease)


class RaisesOften(Honest):
    """Raises in three of five acquires, by what Locust takes for a wish to end, and in every second
    release."""

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        """Lock, or raise."""
        if next(self.refusals) % 5 < 3:
            raise gevent.Timeout(1)
        return super().acquire(resource, ttl_ms, wait_ms)

    def give_back(self, lease: Lease) -> Outcome:
        """Unlock, and raise."""
        outcome = super().give_back(lease)
        if next(self.refusals) % 2:
            raise RuntimeError("the reply was lost")
        return outcome

    def close(self) -> None:
        """Raise here, too."""
        super().close()
        raise RuntimeError("closed twice")


class SlowRedlock(RedlockRecipe):
    """lockcore's Redlock, with a `try_acquire` that takes 20 ms longer."""

    # Whoever looks whether this is a recipe finds them; each instance has its own.
    acquire: Any = None
    release: Any = None
    close: Any = None

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """Connect, and change the method where the library has it."""
        recipe = super().connect(targets, settings)
        library: Any = recipe.acquire
        owner = type(library.__self__)
        quick = owner.try_acquire

        def slow(*call: Any) -> Any:
            gevent.sleep(0.02)
            return quick(*call)

        owner.try_acquire = slow
        recipe.acquire = library.__self__.try_acquire
        return recipe
