"""Every way to release and extend answers alike: native or by script, known or forgotten."""

from collections.abc import Iterator
from typing import Any

import pytest

from bench.topology.doctor import examine_target
from bench.topology.fleet import Fleet, start_fleet
from lockcore import Outcome
from lockcore.errors import InstanceRefusedError
from lockcore.shells.common.handshake import dialect_of
from lockcore.shells.common.target import target_of
from tests.doubles.instance import Instance
from tests.integration.lockcore.conftest import server_of
from tests.integration.lockcore.keys import client
from tests.integration.lockcore.shell import TTL_MS, Connect, GeventShell, Shell, only

pytestmark = pytest.mark.integration
FOREIGN = b"somebody else"


class RealPlace:
    """A server whose keys the test can see and change."""

    def __init__(self, url: str) -> None:
        asked = dialect_of(target_of(url, 5.0, ""))
        assert asked is not None
        self.url = url
        self.command = asked.release_command
        self._client = client(url)
        self._client.flushall()
        self.get = self._client.get
        self.put = self._client.set
        self.drop = self._client.delete
        self.ttl_ms = self._client.pttl
        self.forget_scripts = self._client.script_flush


class ScriptedPlace:
    """A double, seen alike."""

    def __init__(self, instance: Instance) -> None:
        keyspace = instance.keyspace
        self.url = instance.url
        self.command = keyspace.dialect
        self.get = lambda key: keyspace.keys.get(key.encode())
        self.put = lambda key, value: keyspace.put(key.encode(), value)
        self.drop = lambda key: keyspace.drop(key.encode())
        self.ttl_ms = lambda key: keyspace.pttl(key.encode())
        self.forget_scripts = keyspace.scripts.clear


REAL = ("redis", "valkey")
PLACES = [*REAL, "scripted evalsha", "scripted delifeq", "scripted delex"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One empty instance of each kind."""
    if request.param in REAL:
        yield RealPlace(request.getfixturevalue(f"{request.param}_fleet").urls[0])
    else:
        with Instance(request.param.removeprefix("scripted ")) as instance:
            yield ScriptedPlace(instance)


@only(GeventShell)
@pytest.mark.parametrize("known", [True, False], ids=["known", "forgotten"])
@pytest.mark.parametrize("state", ["ours", "foreign", "missing"])
@pytest.mark.parametrize("what", ["release", "extend"])
def test_a_compare_and_delete_or_extend_changes_what_is_ours_and_nothing_else(
    connect: Connect, place: Any, what: str, state: str, known: bool
) -> None:
    lock = connect([place.url], max_ttl_ms=60_000)
    lease = lock.acquire("stock", TTL_MS)
    if state == "foreign":
        place.put("stock", FOREIGN)
    elif state == "missing":
        place.drop("stock")
    if not known:
        place.forget_scripts()
    assert lock.instances[0].release_command == place.command
    left = {"ours": lease.owner_token, "foreign": FOREIGN, "missing": None}
    if what == "release":
        assert lock.try_release(lease) is (Outcome.RELEASED if state == "ours" else Outcome.GONE)
        left["ours"] = None
    else:
        extended = lock.try_extend(lease, 60_000)
        assert extended.outcome is (Outcome.ACQUIRED if state == "ours" else Outcome.GONE)
        assert state != "ours" or TTL_MS < place.ttl_ms("stock") <= 60_000
    assert place.get("stock") == left[state]
    assert lock.instances[0].errors == {}


@only(GeventShell)
@pytest.mark.parametrize("releases", [1, 40])
def test_a_script_reads_no_more_than_an_owner_token_of_however_long_a_value(
    shell: Shell, connect: Connect, redis_fleet: Fleet, releases: int
) -> None:
    """A server copies what a script gets: 17 ms for 1 MB, for each refused attempt of whoever waits
    for that key."""
    user = client(redis_fleet.urls[0])
    user.flushall()
    lock = connect([redis_fleet.urls[0]])
    leases = [lock.acquire(f"r{number}", TTL_MS) for number in range(releases)]
    foreign = leases[0].owner_token + b"x" * 10_000
    user.set("r0", foreign)
    user.config_resetstat()
    assert lock.extend(leases[-1]) if releases > 1 else not lock.try_extend(leases[0])
    outcomes = shell.together(shell.raw(lock).try_release, [(lease,) for lease in leases])
    assert outcomes == [Outcome.GONE] + [Outcome.RELEASED] * (releases - 1)
    assert user.get("r0") == foreign
    calls = {name: int(counts["calls"]) for name, counts in user.info("commandstats").items()}
    assert calls["cmdstat_get"] == 1, "the test's own"
    assert calls["cmdstat_getrange"] == releases + 1
    user.flushall()


@pytest.mark.parametrize("known", [True, False], ids=["known", "forgotten"])
def test_many_releases_of_one_turn_each_get_their_own_answer(
    shell: Shell, connect: Connect, place: Any, known: bool
) -> None:
    lock = connect([place.url])
    leases = [lock.acquire(f"r{number}", TTL_MS) for number in range(40)]
    for number in range(0, 40, 4):
        place.drop(f"r{number}")
        place.put(f"r{number + 1}", FOREIGN)
    if not known:
        place.forget_scripts()
    outcomes = shell.together(shell.raw(lock).try_release, [(lease,) for lease in leases])
    assert outcomes == [Outcome.GONE, Outcome.GONE, Outcome.RELEASED, Outcome.RELEASED] * 10
    assert [place.get(f"r{number}") for number in range(40)] == [None, FOREIGN, None, None] * 10


def test_a_mixed_fleet_speaks_to_each_in_its_own_way(
    shell: Shell, connect: Connect, redis_fleet: Fleet, valkey_fleet: Fleet
) -> None:
    with Instance("delex") as delex, Instance("delifeq") as delifeq, Instance("evalsha") as evalsha:
        places: list[Any] = [RealPlace(redis_fleet.urls[0]), RealPlace(valkey_fleet.urls[0])]
        places += map(ScriptedPlace, (delex, delifeq, evalsha))
        lock = connect([place.url for place in places])
        assert [status.release_command for status in lock.instances] == [
            place.command for place in places
        ]
        lease = lock.acquire("stock", TTL_MS)
        lease = lock.extend(lease)
        assert lock.try_release(lease) is Outcome.RELEASED
        shell.until(lambda: not any(status.pending for status in lock.instances), "every reply")
        assert [place.get("stock") for place in places] == [None] * 5
        assert all(status.errors == {} for status in lock.instances)


@only(GeventShell)
@pytest.mark.parametrize(
    ("dialect", "command"),
    [("delex delifeq", "delex"), ("delifeq no eval", "delifeq"), ("delex no eval", "delex")],
    ids=["Valkey 9.2 with both", "DELIFEQ without EVAL", "DELEX without EVAL"],
)
def test_lock_and_bench_name_one_release_command(
    connect: Connect, dialect: str, command: str
) -> None:
    """The server is asked by one function: no version, and no second way of asking, can say
    otherwise."""
    with Instance(dialect) as instance:
        lock = connect([instance.url])
        lease = lock.acquire("stock", TTL_MS)
        assert lock.try_release(lock.extend(lease)) is Outcome.RELEASED
        asked = dialect_of(target_of(instance.url, 5.0, ""))
        assert asked is not None
        shown = {fact.name: fact.value for fact in examine_target(instance.url)}
        assert (
            lock.instances[0].release_command
            == asked.release_command
            == shown["release"]
            == command
        )
        used = {words[0].decode().lower() for words in instance.log if b"stock" in words}
        assert used == {"set", command}


@only(GeventShell)
def test_a_server_without_any_compare_and_delete_is_refused(connect: Connect) -> None:
    with Instance("no eval") as instance:
        with pytest.raises(InstanceRefusedError, match="neither a native compare-and-delete"):
            connect([instance.url])
        assert dialect_of(target_of(instance.url, 5.0, "")) is None


@only(GeventShell)
def test_a_full_instance_still_tells_what_it_can(connect: Connect) -> None:
    with start_fleet(1, "none", server=server_of("redis"), config=["--maxmemory", "1"]) as fleet:
        lock = connect(fleet.urls)
        denied = lock.try_acquire("stock", TTL_MS)
        assert (denied.outcome, denied.tally.errored) == (Outcome.UNREACHABLE, 1)
        assert dict(lock.instances[0].errors) == {"OOM": 1}
        client(fleet.urls[0]).config_set("maxmemory", 0)
        lock.release(lock.extend(lock.acquire("stock", TTL_MS)))
