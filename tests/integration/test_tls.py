"""TLS 1.3: session tickets, which come after the handshake, never make a connection unusable."""

from __future__ import annotations

import select
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from redis.exceptions import ConnectionError as BrokenConnectionError

from bench.recipes.one_instance import SetNxLuaRecipe
from bench.recipes.protocol import RecipeSettings
from bench.topology.fleet import KeptPort, start_fleet
from bench.topology.server import ServerBinary, found_servers
from bench.topology.target import TlsConnection, client_of, connection_pool, parse_targets
from lockcore import Lease, Outcome
from tests.integration.lockcore.certificates import make_certificates

WITH_TLS = [server for server in found_servers() if isinstance(server, ServerBinary) and server.tls]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not WITH_TLS, reason="no server with TLS is installed (Debian's redis-server has it)"),
]


@dataclass(frozen=True, slots=True)
class Urls:
    """One server, three ways."""

    tls: str
    plain: str
    unix: str


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Urls]:
    made = make_certificates(tmp_path_factory.mktemp("tls"))
    secure = KeptPort()
    config = ["--tls-port", str(secure.number), "--tls-protocols", "TLSv1.3", *made.server_arguments]
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


def test_a_connection_closed_by_the_server_is_still_noticed(fresh: TlsConnection, urls: Urls) -> None:
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
        lock = SetNxLuaRecipe.connect([getattr(urls, kind)], RecipeSettings(instance_timeout_ms=2000.0))
        lease = lock.acquire(f"r{number}", 5000, 0)
        assert isinstance(lease, Lease), lock.instances
        assert lock.release(lease) == Outcome.RELEASED
        lock.close()


def test_a_pool_has_no_limit(urls: Urls) -> None:
    (target,) = parse_targets([urls.plain])
    assert client_of(target, 2.0).connection_pool.max_connections == 1 << 31
