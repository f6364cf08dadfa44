"""A turn passed between processes, on real servers and every way of waiting; and where it cannot
be."""

import warnings
from typing import Any
from uuid import uuid4

import pytest

from bench.topology.fleet import Fleet, start_fleet
from lockcore import Lease, RetryPolicy
from lockcore.engine.handoff import Handoff
from tests.integration.lockcore.certificates import Certificates
from tests.integration.lockcore.conftest import server_of
from tests.integration.lockcore.keys import client
from tests.integration.lockcore.shell import TTL_MS, Connect, Shell, ThreadShell, only
from tests.integration.lockcore.test_connect import SCRIPTS, with_user

pytestmark = pytest.mark.integration
PUSH = RetryPolicy("push")
# what lockcore/README.md adds for it
WORDS = "+getrange +subscribe +publish &*handoff:*"


def handoff_of(lock: Any) -> Handoff:
    found = lock._driver.engine.handoff
    assert isinstance(found, Handoff)
    return found


@pytest.mark.parametrize("instances", [1, 3])
def test_who_waits_in_another_process_is_woken_by_the_release(
    shell: Shell, connect: Connect, fleet: Fleet, instances: int
) -> None:
    told: dict[str, Any] = {"key_prefix": f"{uuid4().hex}:", "retry": PUSH}
    here, there = (connect(fleet.urls[:instances], **told) for _ in range(2))
    held = here.acquire("stock", TTL_MS)
    waiting = shell.start(shell.raw(there).acquire, "stock", TTL_MS, 60_000)
    shell.until(lambda: handoff_of(here).crowds, "word that somebody waits")
    here.release(held)
    lease = waiting.result()
    assert isinstance(lease, Lease)
    # two, unless this machine took so long that it was looked for meanwhile
    assert lease.attempts >= 2
    shell.until(lambda: handoff_of(there).wakeups, "the turn")
    there.release(lease)


def test_it_is_woken_over_tls_too(
    shell: Shell, connect: Connect, tls_fleet: list[str], certificates: Certificates
) -> None:
    told: dict[str, Any] = {"key_prefix": f"{uuid4().hex}:", "retry": PUSH}
    here, there = (
        connect([f"{url}?ssl_ca_certs={certificates.authority}" for url in tls_fleet], **told)
        for _ in "12"
    )
    held = here.acquire("stock", TTL_MS)
    waiting = shell.start(shell.raw(there).acquire, "stock", TTL_MS, 60_000)
    shell.until(lambda: handoff_of(here).crowds, "word that somebody waits")
    here.release(held)
    there.release(waiting.result())
    shell.until(lambda: handoff_of(there).wakeups, "the turn")


@pytest.mark.parametrize(("heard", "writes"), [(True, 1), (False, 2)])
def test_a_release_leaves_with_the_next_set_once_waiters_elsewhere_are_heard(
    shell: Shell, connect: Connect, fleet: Fleet, heard: bool, writes: int
) -> None:
    """Else who is not heard, and polls, would never find it free."""
    told: dict[str, Any] = {"key_prefix": f"{uuid4().hex}:", "retry": PUSH}
    lock, there = (connect(fleet.urls[:3], **told) for _ in range(2))
    held = shell.won(lock)
    waiting = []
    for place in (1, 2):
        waiting.append(shell.start(shell.raw(lock).acquire, "stock", TTL_MS, 60_000))
        line = lock._driver.engine.turns.lines.get
        shell.until(
            lambda line=line, place=place: len(line("stock", ())) == place, "a place in line"
        )
    if heard:
        elsewhere = shell.start(shell.raw(there).acquire, "stock", TTL_MS, 60_000)
        shell.until(lambda: handoff_of(lock).crowds, "word that somebody waits")
    shell.until(lambda: not any(one.pending for one in lock.instances), "every reply")
    before = [one.writes - handoff_of(lock).polls for one in lock.instances]
    lock.release(held)
    lease = waiting[0].result()
    shell.until(lambda: not lease.tally.undecided, "every vote")
    # a look now and then is a write, too, on a slow machine
    polls = handoff_of(lock).polls
    after = [one.writes - polls for one in lock.instances]
    assert [late - early for early, late in zip(before, after, strict=True)] == [writes] * 3
    lock.release(lease)
    lock.release(waiting[1].result())
    if heard:
        there.release(elsewhere.result())


def test_nothing_is_left_when_both_have_gone(shell: Shell, fleet: Fleet) -> None:
    told: dict[str, Any] = {"key_prefix": f"{uuid4().hex}:", "retry": PUSH}
    with (
        shell.connect(fleet.urls[:3], **told) as here,
        shell.connect(fleet.urls[:3], **told) as there,
    ):
        for lock in (here, there, here):
            lock.release(lock.acquire("stock", TTL_MS, 1000))
        channels = client(fleet.urls[0]).pubsub_channels(f"{told['key_prefix']}*")
        assert {bytes(one) for one in channels} == {
            handoff_of(here).mail.inbox,
            handoff_of(there).mail.inbox,
        }
    shell.until(
        lambda: not client(fleet.urls[0]).pubsub_channels(f"{told['key_prefix']}*"),
        "no subscription",
    )
    assert not client(fleet.urls[0]).keys(f"{told['key_prefix']}*")


def test_a_subscription_is_renewed_with_the_connection(shell: Shell, connect: Connect) -> None:
    with start_fleet(3, "none", server=server_of("redis")) as fleet:
        lock = connect(fleet.urls, retry=PUSH)
        for url in fleet.urls:
            client(url).client_kill_filter(_type="pubsub", skipme=True)
        shell.until(
            lambda: all(one.reconnects == 1 for one in lock.instances), "the connections to be back"
        )
        assert handoff_of(lock).mail.arrives
        assert all(
            client(url).pubsub_numsub(handoff_of(lock).mail.inbox)[0][1] == 1 for url in fleet.urls
        )


@only(ThreadShell)
@pytest.mark.parametrize(
    "rules",
    [
        "",
        "+subscribe",
        "+subscribe &other:*",
        "+subscribe &*",
        "+publish &*",
        f"{WORDS} -client|tracking",
    ],
)
def test_a_user_who_may_not_hear_polls_and_that_is_said_once(
    shell: Shell, connect: Connect, rules: str
) -> None:
    with start_fleet(3, "none", server=server_of("redis")) as fleet:
        urls = with_user(fleet, f"{SCRIPTS} +hello +client|tracking resetchannels {rules}")
        with pytest.warns(RuntimeWarning, match="the retry policy push works like poll") as said:
            here = connect(urls, retry=PUSH)
        there = connect(urls, retry=RetryPolicy("poll"))
        assert len(said) == 1
        held = there.acquire("stock:1", TTL_MS)
        waiting = shell.start(here.acquire, "stock:1", TTL_MS, 60_000)
        shell.until(lambda: here.instances[0].commands > 5, "attempts")
        there.release(held)
        here.release(waiting.result())
        assert here.handoffs == {
            "wakeups": 0,
            "polls": 0,
            "processes_that_hear_nothing_and_poll": 1,
        }


@only(ThreadShell)
def test_the_least_acl_for_it_is_enough(shell: Shell, connect: Connect) -> None:
    with start_fleet(3, "none", server=server_of("redis")) as fleet, warnings.catch_warnings():
        warnings.simplefilter("error")
        urls = with_user(fleet, f"{SCRIPTS} +hello +client|tracking resetchannels {WORDS}")
        here = connect(urls, retry=PUSH)
        there = connect(urls, retry=PUSH)
        held = here.acquire("stock:1", TTL_MS)
        waiting = shell.start(there.acquire, "stock:1", TTL_MS, 60_000)
        shell.until(lambda: handoff_of(here).crowds, "word that somebody waits")
        here.release(held)
        there.release(waiting.result())
        shell.until(lambda: handoff_of(there).wakeups, "the turn")
