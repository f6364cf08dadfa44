"""A Redlock that nobody has any more, and that nobody closed: it is closed, freed and warned of.

In every shell.
"""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lockcore import redlock
from lockcore.errors import InstanceClosedError
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import TASKS, TTL_MS, AsyncioShell, Shell, only

pytestmark = pytest.mark.integration
DROPPED = r"dropped without close\(\).* Call close\(\) when you no longer need the client"


@pytest.fixture(autouse=True)
def nothing_is_left_of_other_tests() -> None:
    """Whose locks are closed, and warn of nothing."""
    gc.collect()


def raw_of(shell: Shell, instances: Instances) -> Any:
    """A lock that only the caller has."""
    return shell.raw(shell.connect(instances.urls))


def run(shell: Shell, function: Callable[..., Any], *arguments: Any) -> Any:
    """The value of an operation."""
    return shell.start(function, *arguments).result()


@contextmanager
def expecting() -> Iterator[None]:
    """The warning, of the right text."""
    with pytest.warns(ResourceWarning, match=DROPPED):
        yield


def are_gone(instances: Instances) -> Callable[[], bool]:
    return lambda: not any(instance.is_connected for instance in instances)


def test_it_is_freed_with_its_connections_and_threads_and_warned_of(
    shell: Shell, instances: Instances
) -> None:
    lock = raw_of(shell, instances)
    # whoever has a lease only can do nothing with it
    lease = run(shell, lock.acquire, "stock", TTL_MS)
    own = weakref.ref(lock)
    driver = weakref.ref(lock._driver)
    threads = [thread for thread in threading.enumerate() if thread.name == "lockcore"]
    with expecting():
        del lock
    assert own() is None
    shell.until(are_gone(instances), "the connections to end")
    shell.until(lambda: not any(thread.is_alive() for thread in threads), "its thread to end")
    del lease

    def is_freed() -> bool:
        gc.collect()
        return driver() is None

    shell.until(is_freed, "the driver to be freed")
    assert instances.keys == [b"stock"] * 3, "its lease lasts"


def test_its_keepers_stop(shell: Shell, instances: Instances) -> None:
    lock = raw_of(shell, instances)
    lease = run(shell, lock.acquire, "stock", TTL_MS)
    if shell.name in ("asyncio", "uvloop"):

        async def keep(own: Any) -> Any:
            return own.keep_alive(lease, every_ms=10)

        kept = run(shell, keep, lock)
    else:
        kept = lock.keep_alive(lease, every_ms=10)
    shell.until(lambda: kept.renewals, "an extension")
    with expecting():
        del lock
    shell.until(lambda: kept.stopped, "its keeper to stop")
    shell.until(are_gone(instances), "the connections to end")


def test_one_that_was_closed_is_not_warned_of(
    shell: Shell, instances: Instances, recwarn: pytest.WarningsRecorder
) -> None:
    lock = raw_of(shell, instances)
    run(shell, lock.close)
    del lock
    gc.collect()
    assert [str(one.message) for one in recwarn if issubclass(one.category, ResourceWarning)] == []


@pytest.mark.parametrize("name", ["try_acquire", "try_release", "acquire", "close"])
def test_whoever_has_one_of_its_methods_still_has_it(
    shell: Shell, instances: Instances, recwarn: pytest.WarningsRecorder, name: str
) -> None:
    lock = raw_of(shell, instances)
    method = getattr(lock, name)
    driver = lock._driver
    del lock
    gc.collect()
    assert [str(one.message) for one in recwarn if issubclass(one.category, ResourceWarning)] == []
    assert not driver.engine.retired
    if "acquire" in name:
        assert run(shell, method, "stock", TTL_MS)
    if name == "close":
        run(shell, method)
    else:
        with expecting():
            del method
    shell.until(are_gone(instances), "the connections to end")
    with pytest.raises(InstanceClosedError):
        driver.check_open()


def test_one_that_is_dropped_in_another_thread_is_closed_by_its_own_loop(
    shell: Shell, instances: Instances
) -> None:
    held = [raw_of(shell, instances)]
    dropping = threading.Thread(target=held.clear)
    with expecting():
        dropping.start()
        dropping.join()
    shell.until(are_gone(instances), "the connections to end")


def test_where_warnings_are_errors_it_is_closed_all_the_same(
    shell: Shell, instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a finalizer cannot raise
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    lock = raw_of(shell, instances)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redlock.warnings, "warn", lambda *_: 1 / 0)
        del lock
        gc.collect()
    shell.until(are_gone(instances), "the connections to end")


def test_a_forked_childs_copy_says_nothing(shell: Shell, instances: Instances) -> None:
    lock = raw_of(shell, instances)
    held = [lock]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.WarningsRecorder(_ispytest=True) as seen:
                del lock
                held.clear()
                gc.collect()
            code = 0 if not seen.list else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(shell, lock.try_acquire, "stock", TTL_MS), "its parent's goes on"
    run(shell, lock.close)


@only(*TASKS)
def test_a_loop_that_is_closed_leaves_no_connection(
    shell: AsyncioShell, instances: Instances
) -> None:
    lock = raw_of(shell, instances)
    shell.close()
    shell.loop = shell.new_loop()
    with expecting():
        del lock
    shell.until(are_gone(instances), "the connections to end")
