"""Private parts of other libraries that lockcore leans on: what happens where they are gone
(lockcore/THREATS.md)."""

import asyncio
from typing import Any

import pytest
import uvloop
from redis.connection import Connection, SSLConnection

from lockcore import Outcome
from lockcore.errors import InstanceError
from lockcore.shells.common import handshake, looped, target
from lockcore.shells.tasks import fast
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import (
    TTL_MS,
    AsyncioShell,
    Connect,
    Scripted,
    Shell,
    ThreadShell,
    UvloopShell,
    only,
)

pytestmark = pytest.mark.integration
CALLERS = 20


def works(shell: Shell, lock: Any) -> None:
    """Callers alone, side by side and one behind the other."""
    lease = lock.acquire("stock", TTL_MS)
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.CONTENDED
    waiting = [shell.start(shell.raw(lock).acquire, "stock", TTL_MS, 20_000) for _ in range(3)]
    lock.release(lease)
    for job in waiting:
        lock.release(job.result())
    leases = shell.together(
        shell.raw(lock).acquire, [(f"r{number}", TTL_MS) for number in range(CALLERS)]
    )
    for lease in leases:
        lock.release(lease)


def test_futures_have_what_seats_rely_on_today() -> None:
    """Else lockcore is right and slower, and nobody knows why."""

    async def knows() -> bool:
        return fast.knows(asyncio.get_running_loop().create_future())

    assert asyncio.run(knows())
    assert uvloop.run(knows())


@only(AsyncioShell, UvloopShell)
def test_without_the_private_parts_of_futures_the_loop_steps_every_task(
    shell: Shell, connect: Connect, instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast, "PRIVATE", (*fast.PRIVATE, "renamed"))
    lock = connect(instances.urls)
    assert not lock._driver._shortcut.seats.steps
    works(shell, lock)


class Renamed(asyncio.Future[Any]):
    """A future of a Python that calls its list of callbacks by another name."""

    @property
    def _callbacks(self) -> Any:
        raise AttributeError("'Future' object has no attribute '_callbacks'")


@only(AsyncioShell)
def test_without_the_callbacks_of_futures_nobody_is_stepped_by_them(
    shell: Shell, connect: Connect, instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_future", lambda loop: Renamed(loop=loop))
    works(shell, connect(instances.urls))


@only(ThreadShell)
def test_without_the_socket_of_redis_py_a_connect_fails_in_one_sentence_and_leaves_nothing(
    shell: Shell, connect: Connect, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = scripted(3)
    take_over = handshake._take_over

    class Moved:
        """A connection of a redis-py that keeps its socket under another name."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            if name == "_sock":
                raise AttributeError("'Connection' object has no attribute '_sock'")
            return getattr(self._connection, name)

    monkeypatch.setattr(handshake, "_take_over", lambda connection: take_over(Moved(connection)))
    with pytest.raises(
        InstanceError, match="this version of redis-py has no Connection._sock"
    ) as raised:
        connect(instances.urls)
    assert "\n" not in str(raised.value)
    shell.until(
        lambda: not any(instance.is_connected for instance in instances),
        "every connection to be closed",
    )


def test_redis_py_still_connects_by_the_method_that_is_overridden() -> None:
    """Else one handshake has no deadline, and its socket is not the one that is taken over."""
    kind = target._timed(Connection)
    assert "_connect" in vars(kind)
    for base in (Connection, SSLConnection):
        assert callable(vars(base)["_connect"])
        assert isinstance(vars(kind)["socket_timeout"], property)


def test_a_loop_of_uvloop_is_still_known_by_its_module() -> None:
    """Else a reset that comes with the last bytes is not noticed there."""
    loop = uvloop.new_event_loop()
    assert looped.is_uvloop(loop)
    loop.close()
    plain = asyncio.new_event_loop()
    assert not looped.is_uvloop(plain)
    plain.close()
