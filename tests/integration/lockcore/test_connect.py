"""Who may take part: what connect refuses, in one sentence and without secrets, and what it
accepts.

The handshake is one for all ways of waiting, so most of this is shown on one of them.
"""

import socket
import ssl
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bench.topology.fleet import HOST, Fleet, KeptPort, start_fleet
from lockcore import Outcome, RetryPolicy
from lockcore.errors import InstanceClosedError, InstanceError, InstanceRefusedError
from lockcore.facts.membership import Hello
from lockcore.shells.common.handshake import shake
from lockcore.shells.common.target import InstanceTarget, target_of
from tests.doubles.instance import Instances
from tests.doubles.keyspace import error
from tests.integration.lockcore.certificates import Certificates
from tests.integration.lockcore.conftest import server_of
from tests.integration.lockcore.keys import client, values_on
from tests.integration.lockcore.shell import TTL_MS, Connect, Scripted, Shell, ThreadShell, only
from tests.integration.servers import cluster_node

pytestmark = pytest.mark.integration
SECRET = "s3cret"
# as lockcore/README.md says
LEAST = "~stock:* -@all +info +set +client|id +client|kill"
NATIVE = f"{LEAST} +delifeq"
SCRIPTS = f"{LEAST} +eval +evalsha +script|load +get +del +pexpire"


def works(lock: Any, resource: str = "stock:42") -> None:
    """A whole life of a lock."""
    lease = lock.extend(lock.acquire(resource, TTL_MS))
    assert lock.try_acquire(resource, TTL_MS).outcome is Outcome.CONTENDED
    lock.release(lease)
    # by the test itself, if at all
    assert {kind for status in lock.instances for kind in status.errors} <= {"CLOSED"}


@contextmanager
def refused(kind: type[InstanceError], says: str) -> Iterator[None]:
    """Connecting fails with one line that says this, and no secret anywhere in what is printed."""
    with pytest.raises(kind, match=says) as raised:
        yield
    text = str(raised.value)
    assert "\n" not in text
    assert len(text) < 300
    assert SECRET not in text + repr(raised.value) + "".join(
        traceback.format_exception(raised.value)
    )


def with_user(fleet: Fleet, rules: str) -> list[str]:
    """URLs of a user with these rules on every instance."""
    for url in fleet.urls:
        client(url).execute_command(
            "ACL", "SETUSER", "keeper", "reset", "on", f">{SECRET}", *rules.split()
        )
    return [url.replace("//", f"//keeper:{SECRET}@") for url in fleet.urls]


@only(ThreadShell)
def test_a_cluster_node_is_refused(connect: Connect) -> None:
    with (
        cluster_node() as fleet,
        refused(
            InstanceRefusedError,
            "the server is a cluster node; Redlock needs independent instances",
        ),
    ):
        connect(fleet.urls)


@only(ThreadShell)
def test_a_replica_is_refused(connect: Connect) -> None:
    with start_fleet(2, "none", server=server_of("redis")) as fleet:
        client(fleet.urls[1]).replicaof(HOST, str(fleet.instances[0].port))
        with refused(
            InstanceRefusedError,
            f"{fleet.instances[1].port}: cannot take part: the server is a replica",
        ):
            connect(fleet.urls)


@only(ThreadShell)
@pytest.mark.parametrize("twice", ["{}", "{}/3"], ids=["the same URL", "another database"])
def test_the_same_server_twice_is_refused(connect: Connect, redis_fleet: Fleet, twice: str) -> None:
    first, second = redis_fleet.urls[:2]
    with refused(
        InstanceRefusedError, "this is the same server as .*; each server may vote only once"
    ):
        connect([first, second, twice.format(first)])


@only(ThreadShell)
def test_a_wrong_password_is_refused_and_never_shown(connect: Connect) -> None:
    with start_fleet(1, "none", server=server_of("redis")) as fleet:
        url = fleet.urls[0]
        client(url).config_set("requirepass", "another")
        with refused(InstanceRefusedError, "the user name or the password is wrong"):
            connect([url.replace("//", f"//:{SECRET}@")])
        with refused(InstanceRefusedError, "the user name or the password is wrong"):
            connect([url.replace("//", f"//nobody:{SECRET}@")])
        with refused(InstanceRefusedError, "the server asks for a password"):
            connect([url])


@only(ThreadShell)
@pytest.mark.parametrize(
    ("forbidden", "says"),
    [
        ("-@scripting", "neither a native compare-and-delete .* nor EVAL"),
        ("-eval", "neither a native compare-and-delete .* nor EVAL"),
        ("-evalsha", "neither a native compare-and-delete .* nor EVAL"),
        (
            "-set",
            "the ACL of this user does not allow .*'set'.*; the README lists the least rights",
        ),
    ],
)
def test_a_user_who_may_too_little_is_refused(connect: Connect, forbidden: str, says: str) -> None:
    with (
        start_fleet(1, "none", server=server_of("redis")) as fleet,
        refused(InstanceRefusedError, says),
    ):
        connect(with_user(fleet, f"~* +@all {forbidden}"))


@only(ThreadShell)
@pytest.mark.parametrize(
    ("name", "rules", "database"),
    [
        ("redis", SCRIPTS, ""),
        ("redis", SCRIPTS.replace("+script|load", ""), ""),
        ("redis", SCRIPTS.replace("+client|id +client|kill", ""), ""),
        ("redis", f"{SCRIPTS} +select", "/5"),
        ("valkey", NATIVE, ""),
        ("valkey", SCRIPTS, ""),
    ],
    ids=[
        "scripts",
        "no script load",
        "no client",
        "a database",
        "native",
        "scripts where native is forbidden",
    ],
)
def test_the_least_acl_is_enough(
    shell: Shell, connect: Connect, name: str, rules: str, database: str
) -> None:
    with start_fleet(3, "none", server=server_of(name)) as fleet:
        lock = connect([f"{url}{database}" for url in with_user(fleet, rules)])
        works(lock)
        assert SECRET not in repr(lock.instances) + repr(lock._driver.targets)
        client(fleet.urls[0]).client_kill_filter(_type="normal", skipme=True)
        shell.until(lambda: lock.instances[0].reconnects == 1, "the connection to be back")
        works(lock)


@only(ThreadShell)
def test_a_password_that_has_become_wrong_is_not_shown_in_the_state(
    shell: Shell, connect: Connect
) -> None:
    with start_fleet(3, "none", server=server_of("redis")) as fleet:
        lock = connect(with_user(fleet, "~* +@all"))
        client(fleet.urls[0]).execute_command("ACL", "SETUSER", "keeper", "resetpass", ">another")
        client(fleet.urls[0]).client_kill_filter(_type="normal", skipme=True)
        shell.until(lambda: lock.instances[0].state == "refused", "the new password to be noticed")
        assert lock.instances[0].reason.startswith("the user name or the password is wrong; ")
        works(lock)
        client(fleet.urls[0]).execute_command("ACL", "SETUSER", "keeper", f">{SECRET}")
        shell.until(
            lambda: lock.instances[0].state == "voting", "the old password to be good again"
        )


@only(ThreadShell)
def test_unreachable_instances_are_named_when_a_quorum_is_missing(
    connect: Connect, scripted: Scripted
) -> None:
    closed = [KeptPort() for _ in range(2)]
    urls = [f"redis://:{SECRET}@{HOST}:{port.number}" for port in closed]
    with refused(
        InstanceClosedError,
        rf"{closed[0].number}, .*{closed[1].number}: .*only 1 of 3 .* quorum needs 2",
    ):
        connect([*scripted(1).urls, *urls])
    lock = connect([*scripted(2).urls, urls[0]])
    works(lock)
    assert [status.state for status in lock.instances] == ["voting", "voting", "down"]


def test_an_instance_that_does_not_answer_is_given_up_after_the_connect_timeout(
    shell: Shell, connect: Connect, instances: Instances
) -> None:
    instances[0].pause()
    started = time.monotonic()
    lock = connect(instances.urls, connect_timeout_s=2.5)
    # the usual timeout of these tests
    assert 2.5 <= time.monotonic() - started < 5.0
    works(lock)
    instances[0].resume()
    shell.until(lambda: lock.instances[0].state == "voting", "the third one")


def test_a_peer_that_trickles_is_given_up_after_the_connect_timeout_too(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    """A byte every 50 ms, for ever: each read ends in time, the handshake would not."""
    instances = scripted(2)
    ended = threading.Event()

    def trickle(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with suppress(OSError), peer:
                    while not ended.wait(0.05):
                        peer.sendall(b"$")

    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=trickle, args=(listener,), daemon=True).start()
        started = time.monotonic()
        try:
            lock = connect(
                [*instances.urls, f"redis://{HOST}:{listener.getsockname()[1]}"],
                connect_timeout_s=0.8,
            )
            took_s = time.monotonic() - started
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
        assert took_s < 5.0
        assert "in time" in lock.instances[2].reason
        works(lock)


@only(ThreadShell)
def test_a_loading_instance_is_asked_again_later(
    shell: Shell, connect: Connect, scripted: Scripted
) -> None:
    instances = scripted(3, "delifeq")
    instances[0].says["other"] = error("LOADING Redis is loading the dataset in memory")
    lock = connect(instances.urls)
    assert lock.instances[0].state == "down"
    assert "loading" in lock.instances[0].reason.lower()
    instances[0].says.clear()
    shell.until(lambda: lock.instances[0].state == "voting", "the end of loading")
    assert lock.instances[0].release_command == "delifeq"


@only(ThreadShell)
@pytest.mark.parametrize(
    "header", [b"*1000000\r\n", b"%1000000000\r\n", b"~1000000000\r\n", b">1000000000\r\n"]
)
def test_a_header_that_announces_a_billion_replies_ends_the_handshake_at_once(
    shell: Shell, connect: Connect, scripted: Scripted, header: bytes
) -> None:
    """The parser would make a list of so many, and free it entry by entry while everybody waits."""
    instances = scripted(3)
    instances[0].says["other"] = header
    before_s = time.process_time()
    lock = connect(instances.urls)
    assert lock.instances[0].state == "down"
    assert "the server does not speak the Redis protocol, but sent" in lock.instances[0].reason
    works(lock)
    assert time.process_time() - before_s < 3


@only(ThreadShell)
def test_a_peer_that_is_no_redis_is_not_taken_for_one(connect: Connect, scripted: Scripted) -> None:
    instances = scripted(1)
    instances[0].says["other"] = b"HTTP/1.1 400 Bad Request\r\n"
    with refused(InstanceClosedError, "only 0 of 1 instances can be reached"):
        connect(instances.urls)


@only(ThreadShell)
def test_databases_are_kept_apart(connect: Connect) -> None:
    with start_fleet(3, "none", server=server_of("redis")) as fleet:
        third = [f"{url}/3" for url in fleet.urls]
        lock = connect(fleet.urls)
        other = connect(third)
        lease = other.acquire("stock", TTL_MS)
        assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.ACQUIRED
        assert values_on(third, "stock") == [lease.owner_token] * 3


@only(ThreadShell)
def test_unix_sockets(shell: Shell, connect: Connect, tmp_path: Path) -> None:
    with start_fleet(
        1, "none", server=server_of("redis"), config=["--unixsocket", str(tmp_path / "a b.sock")]
    ) as fleet:
        client(fleet.urls[0]).config_set("requirepass", SECRET)
        lock = connect([f"unix://:{SECRET}@{tmp_path}/a b.sock?db=2"])
        works(lock)
        assert lock.instances[0].address == f"{tmp_path}/a b.sock"
        assert lock.instances[0].state == "voting"
        client(fleet.urls[0]).execute_command("AUTH", SECRET)
        client(fleet.urls[0]).client_kill_filter(_type="normal", skipme=True)
        shell.until(lambda: lock.instances[0].reconnects == 1, "the connection to be back")
        works(lock)


# -- TLS -------------------------------------------------------------------------------------------


def test_tls(
    shell: Shell, connect: Connect, tls_fleet: list[str], certificates: Certificates
) -> None:
    lock = connect([f"{url}?ssl_ca_certs={certificates.authority}" for url in tls_fleet])
    assert isinstance(lock._driver.wires[0].sock, ssl.SSLSocket)
    works(lock)
    leases = shell.together(
        shell.raw(lock).try_acquire, [(f"r{number}" * 100, TTL_MS) for number in range(100)]
    )
    assert all(leases)
    released = shell.together(shell.raw(lock).try_release, [(lease,) for lease in leases])
    assert set(released) == {Outcome.RELEASED}
    shell.until(lambda: not any(status.pending for status in lock.instances), "every reply")
    assert all(status.errors == {} for status in lock.instances)


@only(ThreadShell)
def test_a_certificate_that_nobody_vouches_for_is_refused(
    connect: Connect, tls_fleet: list[str]
) -> None:
    with refused(InstanceRefusedError, "the TLS handshake failed"):
        connect([url.replace("//", f"//:{SECRET}@") for url in tls_fleet])


@only(ThreadShell)
def test_tls_to_a_server_without_it_is_refused(connect: Connect, redis_fleet: Fleet) -> None:
    with refused(InstanceClosedError, "the server speaks plain Redis without TLS; use redis://"):
        connect(
            [url.replace("redis://", "rediss://") for url in redis_fleet.urls],
            connect_timeout_s=0.3,
        )


@only(ThreadShell)
def test_no_tls_to_a_server_with_it_says_so(connect: Connect, tls_fleet: list[str]) -> None:
    with refused(InstanceClosedError, "the server speaks TLS; use rediss://"):
        connect([url.replace("rediss://", "redis://") for url in tls_fleet])


def test_nothing_is_left_of_a_refused_connect(
    connect: Connect, scripted: Scripted, shell: Shell
) -> None:
    instances = scripted(2)
    with pytest.raises(InstanceRefusedError):
        connect([*instances.urls, instances[0].url])
    shell.until(
        lambda: not any(instance.is_connected for instance in instances),
        "every connection to be closed",
    )


def test_nothing_is_left_where_a_warning_is_an_exception(
    connect: Connect, scripted: Scripted, shell: Shell
) -> None:
    """python -W error: the warning is raised when every instance has been connected."""
    instances = scripted(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="the retry policy push works like poll"):
            connect(instances.urls, retry=RetryPolicy("push"))
    shell.until(
        lambda: not any(instance.is_connected for instance in instances),
        "every connection to be closed",
    )


@only(ThreadShell)
def test_a_refused_connect_of_threads_leaves_no_descriptor(
    connect: Connect, scripted: Scripted
) -> None:
    """Its poll set and its bell belong to a driver that nobody has, which the collector may find
    late."""
    urls = scripted(1).urls

    def descriptors() -> list[str]:
        links = []
        for link in Path("/proc/self/fd").iterdir():
            # A thread that ends may close a descriptor between the listing and this look.
            with suppress(FileNotFoundError):
                links.append(str(link.readlink()))
        return [link for link in links if link.startswith("anon_inode")]

    before = len(descriptors())
    for _ in range(3):
        with pytest.raises(InstanceRefusedError):
            connect(urls * 2)
    assert len(descriptors()) <= before


@only(ThreadShell)
def test_nothing_is_left_where_no_thread_can_be_started(
    connect: Connect, scripted: Scripted, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = scripted(3)
    start = threading.Thread.start

    def start_but_io(thread: threading.Thread) -> None:
        if thread.name == "lockcore":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_but_io)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        connect(instances.urls)
    shell.until(
        lambda: not any(instance.is_connected for instance in instances),
        "every connection to be closed",
    )


@pytest.mark.parametrize("fault", [RuntimeError, DeprecationWarning, KeyboardInterrupt])
def test_a_handshake_that_raises_anything_closes_its_socket(
    fault: type[BaseException], instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def inspect(target: InstanceTarget, connection: Any) -> Hello:
        # else it would be closed with the last reference
        made.append((connection, connection._sock))
        raise fault("nobody foresaw it")

    monkeypatch.setattr("lockcore.shells.common.handshake._inspect", inspect)
    with pytest.raises(fault):
        shake(target_of(instances.urls[0], 5.0, ""))
    assert [sock.inner.fileno() for _, sock in made] == [-1]
