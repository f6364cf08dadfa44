"""The I/O thread by hand: how it looks for messages that callers leave without a ring."""

from collections.abc import Callable, Iterator

import pytest

from lockcore.settings import Settings
from lockcore.shells.common.target import target_of
from lockcore.shells.threads.io_thread import IoDriver


@pytest.fixture
def driver() -> Iterator[IoDriver]:
    """A driver whose thread has not started, and which has no connection."""
    driver = IoDriver([target_of("redis://127.0.0.1:1", 1.0, "")], Settings())
    yield driver
    driver.discard()


def test_one_timer_at_most_looks_for_messages(
    driver: IoDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[Callable[[], None]] = []
    heard: list[int] = []
    monkeypatch.setattr(driver._loop, "call_later", lambda _, job: timers.append(job))
    for number in range(3):
        driver._expect()
        driver._leave(lambda number=number: heard.append(number))
        driver.wake()
    assert heard == [0, 1, 2]
    assert len(timers) == 1, "each message found the timer of the first message"
    driver._expect()
    timers.pop()()
    assert len(timers) == 1, "a message is still to come, so the thread looks again"
    driver._leave(lambda: heard.append(3))
    timers.pop()()
    assert heard[-1] == 3
    assert timers == [], "no message is to come, so the thread looks no more"
    driver._expect()
    assert len(timers) == 1
