"""Instances that die, restart, stand still, lose their connection or talk nonsense: who votes, what
is owed, and that others are spared. On any way of waiting."""

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from bench.topology.fleet import HOST, Fleet, start_fleet
from lockcore import AsyncRedlock, LagCap, Outcome, Redlock
from lockcore import settings as lockcore_settings
from lockcore.engine.amnesia import SWAPS_EVERY_NS
from lockcore.errors import InstanceRefusedError
from lockcore.shells.common.fast import READ_BYTES
from tests.doubles.instance import CLOSE, LOSE, Instances
from tests.integration.lockcore.certificates import Certificates
from tests.integration.lockcore.conftest import server_of
from tests.integration.lockcore.keys import client, keys_on, ttls_on
from tests.integration.lockcore.shell import (
    DEADLINE_S,
    PATIENT,
    TTL_MS,
    Connect,
    GeventShell,
    Scripted,
    Shell,
    only,
)

pytestmark = pytest.mark.integration
# well below the 2.5 s an instance may be silent here
SOON_S = 1.5
# max_ttl of a fleet whose restarts are waited for
FLEET_TTL_MS = 400


def states(lock: Any) -> list[str]:
    return [status.state for status in lock.instances]


def cycle(lock: Any, resource: str = "stock", ttl_ms: int = TTL_MS) -> float:
    """One acquire and release; how long they took, in s."""
    started = time.monotonic()
    lock.release(lock.acquire(resource, ttl_ms))
    return time.monotonic() - started


def test_a_dead_instance_costs_nothing_and_comes_back(
    shell: Shell, connect: Connect, instances: Instances
) -> None:
    lock = connect(instances.urls, rejoin="trust")
    instances[0].kill()
    shell.until(lambda: states(lock)[0] == "down", "the loss to be noticed")
    commands = lock.instances[0].commands
    for _ in range(3):
        lease = shell.won(lock)
        assert (lease.tally.granted, lease.tally.absent) == (2, 1)
        lock.release(lease)
    assert cycle(lock) < SOON_S
    assert lock.instances[0].commands == commands
    instances[0].start()
    shell.until(lambda: states(lock) == ["voting"] * 3, "the instance to be back")
    assert lock.instances[0].reconnects == 1
    lease = lock.acquire("stock", TTL_MS)
    shell.until(lambda: lease.tally.granted == 3, "its vote")


def test_a_reset_that_comes_with_the_last_reply_is_noticed_without_asking(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    instances[0].pause()
    assert lock.try_acquire("stock", TTL_MS)
    replied = instances[0].replied
    instances[0].resume()
    deadline = time.monotonic() + DEADLINE_S
    # the loop stands still: reply and reset wait in the socket together
    while instances[0].replied == replied:
        assert time.monotonic() < deadline
    instances[0].kill()
    shell.until(lambda: states(lock)[0] == "down", "the reset to be noticed")


def test_an_instance_that_was_down_for_long_comes_back(
    shell: Shell, lock: Any, instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_BACKOFF_NS", "LONGEST_BACKOFF_NS"):
        monkeypatch.setattr(f"lockcore.facts.membership.{name}", 1_000_000)
    instances[0].says["other"] = CLOSE
    before = instances[0].connections
    instances[0].drop_connections()
    shell.until(lambda: instances[0].connections > before + 120, "many tries")
    instances[0].says.clear()
    shell.until(lambda: states(lock) == ["voting"] * 3, "the instance to be back")


@only(GeventShell)
def test_a_real_restart_is_noticed_and_waited_for(shell: Shell, connect: Connect) -> None:
    with start_fleet(3, "none", server=server_of("redis")) as fleet:
        lock = connect(fleet.urls, max_ttl_ms=FLEET_TTL_MS, instance_timeout_ms=100)
        run_id = lock.instances[0].run_id
        fleet.restart(0)
        shell.until(lambda: states(lock)[0] == "abstaining", "the instance to be back")
        assert lock.instances[0].run_id != run_id
        lease = lock.acquire("stock", FLEET_TTL_MS)
        assert lease.tally.absent == 1
        lock.release(lease)
        shell.until(lambda: states(lock) == ["voting"] * 3, "the end of its abstention")
        lease = lock.acquire("stock", FLEET_TTL_MS)
        shell.until(lambda: lease.tally.granted == 3, "its vote")


@only(GeventShell)
def test_a_stopped_instance_is_left_alone_and_joins_again_clean(
    shell: Shell, connect: Connect
) -> None:
    with start_fleet(3, "none", server=server_of("redis")) as fleet:
        lock = connect(fleet.urls, instance_timeout_ms=None, lag_cap=LagCap(age_ms=200))
        fleet.stop(0)
        lease = lock.acquire("held", TTL_MS)
        assert cycle(lock, "before") < SOON_S
        shell.until(lambda: states(lock)[0] == "lagging", "the lag to be noticed")
        assert "unanswered" in lock.instances[0].reason
        commands = lock.instances[0].commands
        other = lock.acquire("after", TTL_MS)
        assert (other.tally.absent, other.tally.silent) == (1, 0)
        other = lock.extend(other)
        # neither SET nor extension
        assert lock.instances[0].commands == commands
        lock.release(lease)
        # a release pairs with a sent SET
        assert lock.instances[0].commands == commands + 1
        lock.release(other)
        fleet.cont(0)
        shell.until(lambda: states(lock)[0] == "voting", "the instance to catch up")
        shell.until(lambda: all(not status.pending for status in lock.instances), "every reply")
        assert keys_on(fleet.urls, "") == []
        lease = lock.acquire("stock", TTL_MS)
        shell.until(lambda: lease.tally.granted == 3, "its vote")


def test_a_release_lost_with_its_connection_is_sent_on_the_next(
    shell: Shell, lock: Any, instances: Instances
) -> None:
    lease = lock.acquire("stock", TTL_MS)
    shell.until(lambda: len(instances.keys) == 3, "every SET")
    old = instances[0].connections
    instances[0].says["release"] = CLOSE
    assert lock.try_release(lease) is Outcome.RELEASED
    shell.until(
        lambda: lock.instances[0].owed_releases == 1 or lock.instances[0].reconnects,
        "the loss to be noticed",
    )
    instances[0].says.clear()
    shell.until(lambda: instances.keys == [], "the release on the next connection")
    assert instances[0].kinds() == ["set", "release", "release"]
    assert [b"CLIENT", b"KILL", b"ID", b"%d" % old] in instances[0].log
    assert lock.instances[0].owed_releases == 0


def test_a_real_connection_killed_in_mid_flight_leaves_no_key(
    shell: Shell, connect: Connect, fleet: Fleet
) -> None:
    prefix = f"{uuid4().hex}:"
    lock = connect(fleet.urls, key_prefix=prefix)
    leases = shell.together(
        shell.raw(lock).try_acquire, [(f"r{number}", TTL_MS) for number in range(50)]
    )
    assert all(leases)
    jobs = [shell.start(shell.raw(lock).try_release, lease) for lease in leases]
    client(fleet.urls[0]).client_kill_filter(_type="normal", skipme=True)
    assert [job.result() for job in jobs] == [Outcome.RELEASED] * 50
    shell.until(lambda: lock.instances[0].reconnects == 1, "the connection to be back")
    shell.until(lambda: keys_on(fleet.urls, prefix) == [], "every release")
    assert states(lock) == ["voting"] * 5


@only(GeventShell)
def test_an_instance_that_became_a_replica_is_refused_until_it_is_a_master_again(
    shell: Shell, connect: Connect
) -> None:
    with start_fleet(3, "none", server=server_of("redis")) as fleet:
        lock = connect(fleet.urls, max_ttl_ms=FLEET_TTL_MS, instance_timeout_ms=FLEET_TTL_MS / 4)
        server = client(fleet.urls[0])
        server.replicaof("127.0.0.1", str(fleet.instances[1].port))
        server.client_kill_filter(_type="normal", skipme=True)
        shell.until(lambda: states(lock)[0] == "refused", "the replica to be noticed")
        assert "replica" in lock.instances[0].reason
        assert cycle(lock, ttl_ms=FLEET_TTL_MS) < SOON_S
        server.replicaof("NO", "ONE")
        shell.until(lambda: states(lock)[0] == "abstaining", "its other replication id")
        shell.until(lambda: states(lock)[0] == "voting", "the master to be back")


@only(GeventShell)
def test_an_append_only_file_keeps_a_lock_over_a_restart(shell: Shell, connect: Connect) -> None:
    with start_fleet(3, "always", server=server_of("redis")) as fleet:
        lock = connect(fleet.urls)
        lease = shell.won(lock)
        fleet.restart(0)
        shell.until(lambda: states(lock)[0] == "abstaining", "the instance to be back")
        lease = lock.extend(lease)
        shell.until(
            lambda: min(ttls_on(fleet.urls, "stock")) > TTL_MS - 2000, "the extension everywhere"
        )
        lock.release(lease)
        shell.until(lambda: keys_on(fleet.urls, "") == [], "the release everywhere")


@pytest.mark.parametrize("name", ["redis", "valkey"])
def test_a_moment_as_a_replica_that_empties_a_quorum_gives_no_second_lease(name: str) -> None:
    """Connections, run ids and uptimes stay, and nothing is sent meanwhile: the server tells
    (CLIENT TRACKING)."""
    with start_fleet(
        4, "none", server=server_of(name), config=["--repl-diskless-sync-delay", "0"]
    ) as fleet:
        urls = fleet.urls[:3]
        settings: dict[str, Any] = PATIENT | {"max_ttl_ms": 10_000, "shell": "threads"}
        with (
            Redlock.connect(urls, **settings) as holder,
            Redlock.connect(urls, **settings) as other,
        ):
            holder.acquire("stock", TTL_MS)
            for server in map(client, urls[:2]):
                server.replicaof(HOST, str(fleet.instances[3].port))
                deadline = time.monotonic() + DEADLINE_S
                while server.info("replication").get("master_link_status") != "up":
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                server.replicaof("NO", "ONE")
                assert server.dbsize() == 0
            assert not other.try_acquire("stock", TTL_MS)
            assert states(other) == ["abstaining", "abstaining", "voting"]
        with Redlock.connect(urls, **(settings | {"rejoin": "delay"})) as late:
            assert "was a replica" in late.instances[0].reason


SWAPS: dict[str, list[tuple[str, ...]]] = {
    "by a command": [("SWAPDB", "0", "1")],
    "by a script": [("EVAL", "return redis.call('SWAPDB', '1', '0')", "0")],
    "in a transaction": [("MULTI",), ("SWAPDB", "0", "1"), ("EXEC",)],
    "to and fro": [("SWAPDB", "0", "1"), ("SWAPDB", "0", "1")],
    "with the statistics reset before": [
        ("SWAPDB", "0", "1"),
        ("CONFIG", "RESETSTAT"),
        ("SWAPDB", "0", "2"),
    ],
}


@pytest.mark.parametrize("name", ["redis", "valkey"])
@pytest.mark.parametrize("swap", SWAPS)
def test_databases_that_were_swapped_on_a_quorum_give_no_second_lease(
    swap: str, name: str, request: pytest.FixtureRequest
) -> None:
    """Connections, run ids, uptimes and replication ids stay, and the server tells nobody."""
    urls = request.getfixturevalue(f"{name}_fleet").urls[:3]
    settings: dict[str, Any] = PATIENT | {"shell": "threads", "key_prefix": f"{uuid4().hex}:"}
    with Redlock.connect(urls, **settings) as holder, Redlock.connect(urls, **settings) as other:
        # it has read the count
        cycle(other)
        lease = holder.acquire("stock", TTL_MS)
        read_ns = time.monotonic_ns()
        for server in map(client, urls[:2]):
            with server.pipeline(transaction=False) as pipeline:
                for command in SWAPS[swap]:
                    pipeline.execute_command(*command)
                pipeline.execute()
        while time.monotonic_ns() < read_ns + SWAPS_EVERY_NS:
            time.sleep(0.005)
        assert not other.try_acquire("stock", TTL_MS)
        assert states(other) == ["abstaining", "abstaining", "voting"]
        assert "databases were swapped" in other.instances[0].reason
        holder.try_release(lease)


@only(GeventShell)
@pytest.mark.parametrize("name", ["redis", "valkey"])
def test_a_swap_during_a_lost_connection_is_noticed_by_the_next(
    name: str, connect: Connect, shell: Shell, request: pytest.FixtureRequest
) -> None:
    urls = request.getfixturevalue(f"{name}_fleet").urls[:3]
    lock = connect(urls, key_prefix=f"{uuid4().hex}:")
    cycle(lock)
    server = client(urls[0])
    server.swapdb(0, 1)
    server.client_kill_filter(_type="normal", skipme=True)
    shell.until(lambda: states(lock)[0] == "abstaining", "the swap to be noticed")
    assert "databases were swapped" in lock.instances[0].reason


@only(GeventShell)
def test_a_server_without_a_run_id_is_told_apart_by_what_it_has(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    """Doubles of Kvrocks' documented INFO: a process number and an uptime."""
    instances = scripted(3, uptime_s=100, info="process_id:1\r\n")
    for instance in instances:
        instance.run_id = ""
    lock = connect(instances.urls)
    assert lock.instances[0].run_id == "process 1"
    instances[0].drop_connections()
    shell.until(lambda: lock.instances[0].reconnects == 1, "the connection to be back")
    assert states(lock) == ["voting"] * 3
    instances[0].uptime_s = 3
    instances[0].drop_connections()
    shell.until(lambda: lock.instances[0].reconnects == 2, "the restarted one to be back")
    assert states(lock) == ["abstaining", "voting", "voting"]


@only(GeventShell)
def test_a_server_that_cannot_be_told_apart_is_refused(
    connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(1)
    instances[0].run_id = ""
    with pytest.raises(
        InstanceRefusedError, match="neither run_id nor master_replid nor process_id"
    ):
        connect(instances.urls)


# -- one that talks nonsense or falls silent, and one bad key --------------------------------------


MANY = 20


@pytest.mark.parametrize(
    "nonsense",
    [b"%1\r\n*1\r\n:1\r\n:2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"],
    ids=["a map", "HTTP"],
)
def test_nonsense_of_one_instance_ends_its_connection_and_the_others_go_on(
    nonsense: bytes, shell: Shell, lock: Any, instances: Instances
) -> None:
    instances[0].says["set"] = nonsense
    lease = lock.try_acquire("stock", TTL_MS)
    assert lease.outcome is Outcome.ACQUIRED
    shell.until(
        lambda: lock.instances[0].reconnects or lock.instances[0].state == "down", "broken off"
    )
    assert lock.try_release(lease) is Outcome.RELEASED
    instances[0].says.clear()
    shell.until(
        lambda: lock.instances[0].state == "voting" and lock.instances[0].reconnects, "back"
    )
    lease = lock.try_acquire("stock", TTL_MS)
    shell.until(lambda: lease.tally.granted == 3, "every vote")
    assert lock.try_release(lease) is Outcome.RELEASED


def test_a_connection_that_falls_silent_is_given_up_and_made_anew(
    shell: Shell, connect: Connect, instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockcore_settings, "SILENCE_NS", 100_000_000)
    lock = connect(
        instances.urls, instance_timeout_ms=50, lag_cap=lockcore_settings.LagCap(age_ms=50)
    )
    instances[0].says["set"] = LOSE
    lease = lock.try_acquire("stock", TTL_MS)
    assert lease.outcome is Outcome.ACQUIRED
    shell.until(
        lambda: lock.instances[0].reconnects and lock.instances[0].state == "voting",
        "connected anew",
    )
    # not before: two votes suffice, and it may not have read its SET yet
    instances[0].says.clear()
    lock.try_release(lease)
    shell.until(lambda: instances.keys == [], "nothing left")


FLOOD_MEGABYTES = 30
LAG_S = 1.0
MOST_MEGABYTES = 20


@contextmanager
def flooding(certificates: Certificates, reply: str) -> Iterator[str]:
    """The URL of a TLS instance that answers a SET with a flood."""
    files = [str(certificates.certificate), str(certificates.key)]
    command = [sys.executable, "-m", "tests.doubles.flood", *files, reply, str(FLOOD_MEGABYTES)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield f"{process.stdout.readline().strip()}?ssl_ca_certs={certificates.authority}"
        finally:
            process.kill()


def memory_megabytes() -> float:
    """What this process holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


def test_a_tls_instance_that_floods_holds_the_loop_of_nobody(
    shell: Shell, connect: Connect, instances: Instances, certificates: Certificates
) -> None:
    """Read until it would block, it held the loop for seconds, and all that had come was kept until
    then."""
    with flooding(certificates, "pushes") as url:
        lock = connect([url, *instances.urls[:2]])
        before = memory_megabytes()
        longest_s = 0.0
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            longest_s = max(longest_s, cycle(lock))
            shell.sleep(0.001)
        taken = memory_megabytes() - before
        assert lock.instances[0].bytes_received > READ_BYTES
        assert longest_s < LAG_S
        assert taken < MOST_MEGABYTES
        lock.close(0)


async def released_together(
    urls: list[str], prefix: str, spoil: Callable[[], None]
) -> list[Outcome]:
    """Many leases, something happens to one key, all given back in one turn: one script call per
    instance."""
    settings: dict[str, Any] = PATIENT | {"key_prefix": prefix}
    async with await AsyncRedlock.connect(urls, **settings) as lock:
        leases = await asyncio.gather(
            *[lock.acquire(f"r{number}", TTL_MS) for number in range(MANY)]
        )
        await asyncio.to_thread(spoil)
        before = lock.instances[0].commands
        outcomes = await asyncio.gather(*[lock.try_release(lease) for lease in leases])
        assert lock.instances[0].commands < before + 2 * MANY + 2
        return list(outcomes)


def check_only_one_is_spoiled(
    fleet: Fleet, urls: list[str], prefix: str, spoil: Callable[[], None]
) -> None:
    """All but r7 are released, and nothing but its key is left."""
    try:
        outcomes = asyncio.run(released_together(urls, prefix, spoil))
        assert [
            number for number, outcome in enumerate(outcomes) if outcome is not Outcome.RELEASED
        ] == [7]
        assert set(keys_on(fleet.urls, prefix)) == {f"{prefix}r7".encode()}
    finally:
        for url in fleet.urls:
            client(url).delete(f"{prefix}r7")


def test_a_key_of_the_wrong_type_spoils_no_other_release_of_its_turn(redis_fleet: Fleet) -> None:
    prefix = f"{uuid4().hex}:"

    def spoil() -> None:
        for url in redis_fleet.urls:
            client(url).delete(f"{prefix}r7")
            client(url).lpush(f"{prefix}r7", "x")

    check_only_one_is_spoiled(redis_fleet, redis_fleet.urls, prefix, spoil)


def test_a_key_outside_the_acl_pattern_spoils_no_other_release_of_its_turn(
    redis_fleet: Fleet,
) -> None:
    prefix = f"{uuid4().hex}:"
    user = uuid4().hex

    def allow(pattern: str) -> None:
        for url in redis_fleet.urls:
            client(url).execute_command(
                "ACL", "SETUSER", user, "on", ">secret", "+@all", "resetkeys", *pattern.split()
            )

    allow("~*")
    urls = [url.replace("redis://", f"redis://{user}:secret@") for url in redis_fleet.urls]
    narrow = " ".join(f"~{prefix}r{number}" for number in range(MANY) if number != 7)
    check_only_one_is_spoiled(redis_fleet, urls, prefix, lambda: allow(narrow))
    for url in redis_fleet.urls:
        client(url).execute_command("ACL", "DELUSER", user)
