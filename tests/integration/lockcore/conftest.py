"""Every claim on every way of waiting, against scripted instances and real servers."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from bench.measure.server_facts import ServerBinary
from bench.topology.fleet import HOST, Fleet, KeptPort, start_fleet
from bench.topology.server import found_servers
from tests.doubles.instance import Instances
from tests.integration.lockcore.certificates import Certificates, make_certificates
from tests.integration.lockcore.keys import client
from tests.integration.lockcore.shell import SHELLS, Shell

SERVERS = {server.name: server for server in found_servers()}


@pytest.fixture(params=SHELLS, ids=lambda shell: shell.name)
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    """One way of waiting."""
    waiting = request.param()
    yield waiting
    waiting.close()


@pytest.fixture
def connect(shell: Shell) -> Iterator[Callable[..., Any]]:
    """`connect(urls, **settings)`: a lock that is closed when the test ends."""
    with ExitStack() as stack:
        yield lambda urls, **settings: stack.enter_context(shell.connect(urls, **settings))


@pytest.fixture
def scripted() -> Iterator[Callable[..., Instances]]:
    """`scripted(3)`: so many scripted instances, closed when the test ends."""
    with ExitStack() as stack:
        yield lambda number=3, dialect="evalsha", **options: stack.enter_context(
            Instances.of(number, dialect, **options)
        )


@pytest.fixture
def instances(scripted: Callable[..., Instances]) -> Instances:
    """Three of them."""
    return scripted(3)


@pytest.fixture
def lock(connect: Callable[..., Any], instances: Instances) -> Any:
    """A lock on those three."""
    return connect(instances.urls)


def server_of(name: str) -> ServerBinary:
    """The server of that name on this machine, else a skipped test."""
    if name not in SERVERS:
        pytest.skip(f"no {name} server on this machine")
    return SERVERS[name]


@pytest.fixture(scope="session")
def redis_fleet() -> Iterator[Fleet]:
    """Five Redis servers that no test harms."""
    with start_fleet(5, "none", server=server_of("redis")) as fleet:
        yield fleet


@pytest.fixture(scope="session")
def valkey_fleet() -> Iterator[Fleet]:
    """Five Valkey servers that no test harms."""
    with start_fleet(5, "none", server=server_of("valkey")) as fleet:
        yield fleet


@pytest.fixture(params=["redis", "valkey"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    """Five real servers that no test harms."""
    found: Fleet = request.getfixturevalue(f"{request.param}_fleet")
    return found


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Made once."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def tls_fleet(certificates: Certificates) -> Iterator[list[str]]:
    """Three servers with a TLS port each: URLs without options."""
    server = server_of("redis")
    if not server.tls:
        pytest.skip(f"{server} was built without TLS")
    with start_fleet(3, "none", server=server, config=certificates.server_arguments) as fleet:
        ports = [KeptPort() for _ in fleet.urls]
        for url, port in zip(fleet.urls, ports, strict=True):
            client(url).config_set("tls-port", port.number)
        yield [f"rediss://{HOST}:{port.number}" for port in ports]
