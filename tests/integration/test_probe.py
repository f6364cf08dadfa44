"""Asking real instances: facts, counters, leaks; over TLS 1.3, ACL and unix sockets; and those that
stay silent."""

import contextlib
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from redis.exceptions import ConnectionError as BrokenConnectionError

from bench.errors import EnvironmentNotReadyError
from bench.recipes.one_instance import SetNxLuaRecipe
from bench.recipes.protocol import RecipeSettings
from bench.run.servers import Servers
from bench.topology import probe
from bench.topology.doctor import Status, examine_target
from bench.topology.fleet import HOST, Fleet, KeptPort, start_fleet
from bench.topology.probe import delta, info_snapshot, inspect, leaked_keys, require_independent
from bench.topology.target import TlsConnection, client_of, connection_pool, parse_targets
from lockcore import Lease, Outcome, Redlock
from tests.integration.lockcore.certificates import make_certificates
from tests.integration.servers import SERVERS, cluster_node

pytestmark = pytest.mark.integration
WITH_TLS = [server for server in SERVERS if server.tls]
SECRET = "s3cret"
NO_TLS = "no server with TLS is installed (Debian's redis-server has it)"


@pytest.fixture(
    params=SERVERS, ids=lambda server: f"{server.name}-{server.version}", scope="module"
)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with start_fleet(3, "everysec", server=request.param) as fleet:
        yield fleet


def client(fleet: Fleet, index: int) -> redis.Redis:
    return redis.Redis(host=HOST, port=fleet.instances[index].port, protocol=2, retry=None)


def test_facts_of_independent_primaries(fleet: Fleet) -> None:
    facts = inspect(fleet.urls)
    require_independent(facts)
    assert [fact.index for fact in facts] == [0, 1, 2]
    assert {(fact.role, fact.cluster, fact.tls, fact.warnings) for fact in facts} == {
        ("primary", False, False, ())
    }
    assert {(fact.no_fsync_on_rewrite, fact.maxmemory_policy) for fact in facts} == {
        (False, "noeviction")
    }


def test_the_release_command_is_the_one_a_lock_uses_there(fleet: Fleet) -> None:
    """One place decides: the handshake of the lock, on the running server."""
    with Redlock.connect(fleet.urls, shell="threads", connect_timeout_s=10.0) as lock:
        used = {status.release_command for status in lock.instances}
    assert {fact.release_command for fact in inspect(fleet.urls)} == used
    assert used <= {"delex", "delifeq", "evalsha"}


def test_the_same_server_twice_is_noticed_behind_two_names(fleet: Fleet) -> None:
    port = fleet.instances[0].port
    with pytest.raises(
        EnvironmentNotReadyError, match=f"127.0.0.1:{port} and localhost:{port} are the same server"
    ):
        require_independent(inspect([fleet.urls[0], f"redis://localhost:{port}/1"]))


def test_a_replica_and_a_cluster_node_are_noticed() -> None:
    with start_fleet(2, "none") as fleet:
        client(fleet, 1).replicaof(HOST, fleet.instances[0].port)
        with pytest.raises(
            EnvironmentNotReadyError, match=f"{fleet.instances[1].port} is a replica"
        ):
            require_independent(inspect(fleet.urls))
    with cluster_node() as fleet:
        facts = inspect(fleet.urls)
    with pytest.raises(EnvironmentNotReadyError, match="cluster mode"):
        require_independent(facts)


def test_counters_are_what_was_done(fleet: Fleet) -> None:
    """Exact for commands; our own INFO is in the counts and says so."""
    before = info_snapshot(fleet.urls)
    with client(fleet, 0) as connection:
        for number in range(20):
            connection.set("a", number)
        connection.eval("return 1", 0)
    changes = [delta(old, new) for old, new in zip(before, info_snapshot(fleet.urls), strict=True)]
    assert (changes[0].calls["set"], changes[0].calls["eval"], changes[0].calls["info"]) == (
        20,
        1,
        1,
    )
    assert changes[1].calls == {"info": 1}
    assert changes[0].cpu_s is not None
    assert 0 < changes[0].cpu_s < 1
    assert changes[0].aof["aof_delayed_fsync"] == 0
    client(fleet, 0).delete("a")


def test_leaks_are_counted_and_unlinked_by_name_and_nothing_else_is(fleet: Fleet) -> None:
    # more than fit in one command
    names = [f"lockbench:run:r{number}" for number in range(1200)]
    with client(fleet, 1) as connection:
        connection.mset(
            {names[0]: 1, names[700]: 1, names[1199]: 1, "lockbench:run:r1200": 1, "foreign": 1}
        )
    assert leaked_keys(fleet.urls, iter(names)) == (0, 3, 0)
    assert leaked_keys(fleet.urls, names) == (0, 0, 0)
    with client(fleet, 1) as connection:
        assert connection.delete("lockbench:run:r1200", "foreign") == 2


def test_silent_instances_are_named_and_do_not_hold_up_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.3)
    with start_fleet(5, "none") as fleet:
        client(fleet, 0).set("a", 1)
        before = info_snapshot(fleet.urls)
        for index in (1, 2, 3):
            fleet.stop(index)
        fleet.kill(4)
        start = time.monotonic()
        counts = leaked_keys(fleet.urls, ["a"])
        after = info_snapshot(fleet.urls)
        with pytest.raises(EnvironmentNotReadyError) as failed:
            inspect(fleet.urls)
        # the stopped three wait at the same time; inspect looks closer
        assert time.monotonic() - start < 4 * 2 * 0.3
        assert counts == (1, None, None, None, None)
        assert delta(before[0], after[0]).warning is None
        assert "sent nothing in time" in str(delta(before[1], after[1]).warning)
        addresses = [f"{HOST}:{instance.port}" for instance in fleet.instances]
        assert addresses[0] not in str(failed.value)
        assert all(address in str(failed.value) for address in addresses[1:])
        assert "lockbench cannot use 4 of 5 targets" in str(failed.value)
        allowed = inspect(fleet.urls, allow_missing=True)
        assert [fact.unreachable is None for fact in allowed] == [True, False, False, False, False]


def test_an_acl_that_forbids_questions_leaves_warnings_not_errors() -> None:
    with start_fleet(1, "none") as fleet:
        rules = ["+@connection", "+@write", "+exists", "-info", "-command"]
        client(fleet, 0).acl_setuser(
            "few", enabled=True, passwords=[f"+{SECRET}"], keys=["lock*"], commands=rules
        )
        urls = [fleet.urls[0].replace("//", f"//few:{SECRET}@")]
        (fact,) = inspect(urls)
        assert (fact.unreachable, fact.server, fact.run_id, fact.fsync, fact.release_command) == (
            None,
        ) * 5
        assert [re.split(" is |, so ", warning)[0] for warning in fact.warnings] == [
            "this user may not call INFO",
            "CONFIG GET",
            "no compare-and-delete command, and this user may not call EVAL",
        ]
        (snapshot,) = info_snapshot(urls)
        assert snapshot.values is None
        assert "does not allow the command 'info'" in str(snapshot.missing)
        assert leaked_keys(urls, ["lock1"]) == (0,)
        assert leaked_keys(urls, ["other"]) == (None,)


@pytest.mark.parametrize(
    "rule, says",
    [
        ("~lock:* &*", r"keys that begin with lockbench:; add ~lockbench:\*"),
        ("%R~* &*", r"keys that begin with lockbench:; add ~lockbench:\*"),
        (
            "~lockbench:* resetchannels",
            r"channels that begin with lockbench:; add &lockbench:\*",
        ),
        ("~lockbench:* &lockbench:*handoff:* -publish", r"does not allow the command 'publish'"),
    ],
)
def test_names_that_a_user_may_not_touch_are_refused_before_any_load(
    fleet: Fleet, rule: str, says: str
) -> None:
    client(fleet, 0).execute_command(
        "ACL", "SETUSER", "few", "reset", "on", f">{SECRET}", "+@all", *rule.split()
    )
    url = fleet.urls[0].replace("//", f"//few:{SECRET}@")
    with pytest.raises(EnvironmentNotReadyError, match=says):
        inspect([url], channels=True)
    facts = {fact.name: fact for fact in examine_target(url)}
    is_of_keys = "keys" in says
    bad = facts[f"{HOST}:{fleet.instances[0].port}" if is_of_keys else "channels"]
    assert bad.status is (Status.MISSING if is_of_keys else Status.LIMITED)
    assert re.search(says, bad.advice)
    assert is_of_keys or inspect([url])[0].unreachable is None, (
        "who does not publish needs no channel"
    )


def test_a_user_without_a_password_is_told_apart_from_a_wrong_one(fleet: Fleet) -> None:
    with pytest.raises(EnvironmentNotReadyError, match="the URL has a user but no password"):
        inspect([fleet.urls[0].replace("//", "//bob@")])


@pytest.mark.parametrize("user", [f"few:{SECRET}", f":{SECRET}", ""])
def test_wrong_or_missing_passwords_are_said_without_showing_them(user: str) -> None:
    with start_fleet(1, "none", config=["--requirepass", "right"]) as fleet:
        url = fleet.urls[0].replace("//", f"//{user}@") if user else fleet.urls[0]
        with pytest.raises(
            EnvironmentNotReadyError,
            match="the user name or the password is wrong|the server asks for a password",
        ) as failed:
            inspect([url])
        assert SECRET not in str(failed.value)
        assert inspect([fleet.urls[0].replace("//", "//:right@")])[0].unreachable is None


def test_a_database_that_is_not_there_is_said(fleet: Fleet) -> None:
    with pytest.raises(
        EnvironmentNotReadyError,
        match=r"\(the server has no database with the number in the URL; name a database",
    ):
        inspect([fleet.urls[0] + "/99"])


@pytest.mark.skipif(not WITH_TLS, reason=NO_TLS)
def test_tls_works_and_its_failures_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.5)
    secure = KeptPort()
    made = make_certificates(tmp_path)
    config = ["--tls-port", str(secure.number), *made.server_arguments, "--requirepass", SECRET]
    with start_fleet(1, "none", server=WITH_TLS[0], config=config) as fleet:
        trusted = f"rediss://:{SECRET}@{HOST}:{secure.number}?ssl_ca_certs={made.authority}"
        (fact,) = inspect([trusted])
        assert (fact.tls, fact.role) == (True, "primary")
        for url, why in (
            (
                f"rediss://:{SECRET}@{HOST}:{secure.number}",
                "handshake failed: the server's certificate comes from an unknown CA "
                ".*ssl_ca_certs=FILE",
            ),
            (f"redis://:{SECRET}@{HOST}:{secure.number}", "the server speaks TLS; use rediss://"),
            (
                f"rediss://:{SECRET}@{HOST}:{fleet.instances[0].port}",
                "the server speaks plain Redis without TLS; use redis://",
            ),
        ):
            with pytest.raises(EnvironmentNotReadyError, match=why) as failed:
                inspect([url])
            assert SECRET not in str(failed.value)
    secure.release()


def test_what_is_no_server_at_all_is_unreachable_not_a_crash() -> None:
    kept = KeptPort()
    with (
        start_fleet(1, "none"),
        pytest.raises(EnvironmentNotReadyError, match="no.such.host.invalid:1 "),
    ):
        inspect(["redis://no.such.host.invalid:1"])
    with pytest.raises(EnvironmentNotReadyError, match="lockbench cannot use 1 of 1 targets"):
        inspect([f"unix:///nowhere/{kept.number}.sock"])
    kept.release()


def test_a_server_of_another_kind_is_said_to_be_one() -> None:
    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(
            EnvironmentNotReadyError,
            match="the server speaks HTTP instead of the Redis protocol; correct the port in the "
            "URL",
        ):
            inspect([f"redis://127.0.0.1:{listener.getsockname()[1]}"])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


# -- TLS 1.3: session tickets never make a connection unusable -------------------------------------


@dataclass(frozen=True, slots=True)
class Urls:
    """One server, three ways."""

    tls: str
    plain: str
    unix: str


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Urls]:
    if not WITH_TLS:
        pytest.skip(NO_TLS)
    made = make_certificates(tmp_path_factory.mktemp("tls"))
    secure = KeptPort()
    config = [
        "--tls-port",
        str(secure.number),
        "--tls-protocols",
        "TLSv1.3",
        *made.server_arguments,
    ]
    with start_fleet(1, "none", server=WITH_TLS[0], config=[*config, "--unixsocket", "s"]) as fleet:
        tls = f"rediss://localhost:{secure.number}?ssl_ca_certs={made.authority}"
        yield Urls(tls, fleet.urls[0], f"unix://{fleet.instances[0].folder / 's'}")
    secure.release()


@pytest.fixture
def fresh(urls: Urls) -> Iterator[TlsConnection]:
    """A connection nothing was read from, whose session tickets have arrived."""
    (target,) = parse_targets([urls.tls])
    pool = connection_pool(target.options, timeout_s=2.0, connect_timeout_s=2.0)
    connection = pool.make_connection()
    assert isinstance(connection, TlsConnection)
    connection.connect()
    assert select.select([connection._sock], [], [], 2.0)[0], "a TLS 1.3 server sends tickets"
    yield connection
    connection.disconnect()


def test_tickets_are_no_reply(fresh: TlsConnection) -> None:
    assert not fresh.can_read()
    fresh.send_command("PING")
    assert fresh.read_response() == b"PONG"


def test_an_unread_reply_is_still_noticed(fresh: TlsConnection) -> None:
    assert not fresh.can_read()
    fresh.send_command("PING")
    assert fresh.can_read(2.0)
    assert fresh.can_read(), "the question has not taken it away"
    assert fresh.read_response() == b"PONG"


def test_a_ticket_that_comes_first_does_not_end_the_wait(
    fresh: TlsConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bool] = []
    holds = fresh._holds_a_reply

    def first_a_ticket() -> bool:
        looks.append(holds() if looks else False)
        return looks[-1]

    monkeypatch.setattr(fresh, "_holds_a_reply", first_a_ticket)
    fresh.send_command("PING")
    assert fresh.can_read(2.0)
    assert looks[0] is False, "one look found nothing"
    assert looks[-1] is True, "and the wait went on"


def test_a_connection_closed_by_the_server_is_still_noticed(
    fresh: TlsConnection, urls: Urls
) -> None:
    fresh.send_command("CLIENT", "ID")
    number = fresh.read_response()
    (target,) = parse_targets([urls.plain])
    with client_of(target, 2.0) as other:
        assert other.client_kill_filter(_id=number) == 1
    assert select.select([fresh._sock], [], [], 2.0)[0]
    with pytest.raises(BrokenConnectionError):
        fresh.can_read()


@pytest.mark.parametrize("kind", ["tls", "plain", "unix"])
def test_every_first_connection_can_be_used(urls: Urls, kind: str) -> None:
    (target,) = parse_targets([getattr(urls, kind)])
    for _ in range(30):
        with client_of(target, 2.0) as client:
            assert client.ping()


@pytest.mark.parametrize("kind", ["tls", "plain", "unix"])
def test_the_plain_lock_runs(urls: Urls, kind: str) -> None:
    for number in range(5):
        lock = SetNxLuaRecipe.connect(
            [getattr(urls, kind)], RecipeSettings(instance_timeout_ms=2000.0)
        )
        lease = lock.acquire(f"r{number}", 5000, 0)
        assert isinstance(lease, Lease), lock.instances
        assert lock.release(lease) == Outcome.RELEASED
        lock.close()


def test_a_pool_has_no_limit(urls: Urls) -> None:
    (target,) = parse_targets([urls.plain])
    assert client_of(target, 2.0).connection_pool.max_connections == 1 << 31


def test_keys_under_other_names_are_counted_on_servers_of_ours(fleet: Fleet) -> None:
    """Planted: keys in two databases, under names that no run has."""
    ours = Servers(fleet.urls, (), fleet, None)
    theirs = Servers(fleet.urls, (), None, None)
    before = ours.key_counts()
    assert theirs.key_counts() == (None,) * len(fleet.urls), (
        "where others have keys too nothing is counted"
    )
    (target, *_) = parse_targets(fleet.urls)
    with client_of(target, 2.0) as client:
        client.execute_command("SET", "somebody-elses", "1")
        client.execute_command("SELECT", "3")
        client.execute_command("MSET", "a", "1", "b", "1")
    assert ours.other_keys(before) == (3, *([0] * (len(fleet.urls) - 1)))
    with client_of(target, 2.0) as client:
        client.execute_command("FLUSHALL")
    assert ours.other_keys(before) == (0,) * len(fleet.urls)
