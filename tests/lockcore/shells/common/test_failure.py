"""Why an instance cannot be used: every cause is one that was seen, with its cure; TLS is advised
on evidence only."""

import os
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from bench.topology.fleet import HOST, KeptPort
from lockcore.errors import InstanceError, InstanceRefusedError
from lockcore.shells.common import peer as look_closer
from lockcore.shells.common.failure import failure_of
from lockcore.shells.common.handshake import shake
from lockcore.shells.common.peer import Peer, Speech
from lockcore.shells.common.target import target_of
from tests.doubles.peer import (
    PONG,
    UNKNOWN,
    Serve,
    banner,
    bulk,
    denied,
    denied_and_reset,
    denied_unless_asked,
    http,
    listening,
    replying,
    reset,
    silent,
)
from tests.integration.lockcore.certificates import Certificates, make_certificates


def refusal(url: str, timeout_s: float = 2.0) -> InstanceError:
    """What lockcore says of it at the first contact."""
    with pytest.raises(InstanceError) as raised:
        shake(target_of(url, timeout_s, ""))
    text = str(raised.value)
    assert "\n" not in text
    assert len(text) < 300, text
    return raised.value


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        (
            reset,
            "the server accepts connections and closes them without an answer; if the port "
            "belongs to a proxy",
        ),
        (
            lambda _peer: None,
            "the server accepts connections and closes them without an answer; if the port "
            "belongs to a proxy",
        ),
        (
            replying({**PONG, "INFO": None}),
            "the server answers PING, but closes the connection .*; the address may belong to a "
            "proxy",
        ),
        (
            replying({"INFO": UNKNOWN.format("info", "").encode()}),
            "does not know the command INFO.*; the address may belong to a",
        ),
        (
            replying({"INFO": b"-ERR unsupported command\r\n"}),
            "does not know .*; the address may belong to a proxy",
        ),
        (
            replying({"INFO": bulk("redis_mode:sentinel\r\n")}),
            "the server is a Sentinel; give the addresses of the instances",
        ),
        (
            replying({"INFO": bulk("redis_mode:cluster\r\n")}),
            "the server is a cluster node; Redlock needs independent inst",
        ),
        (
            replying({"INFO": bulk("role:slave\r\n")}),
            "the server is a replica; connect to independent, writable instances",
        ),
        (
            replying({"INFO": b"-NOAUTH Authentication required.\r\n"}),
            "the server asks for a password; write redis://user:pass",
        ),
        (
            replying({"INFO": b"-LOADING Redis is loading\r\n"}),
            "the server is still loading its data; wait until the server is ready",
        ),
        (
            replying({"INFO": b"-ERR max number of clients reached\r\n"}),
            "its maximum number of clients; raise maxcl",
        ),
        (
            replying({"INFO": b"-NOPERM User x has no permissions to run the 'info' command\r\n"}),
            "does not allow the command 'info'",
        ),
        (
            replying({"INFO": b"-STRANGE \x1b[31mred\x07 text.\r\n"}),
            r"the server answered: STRANGE \?\[31mred\? text; read",
        ),
        (
            replying({"INFO": b":1\r\n"}),
            "the server's answer to the handshake is not an answer of Redis; the address may "
            "belong to a proxy",
        ),
        (http, "the server speaks HTTP instead of the Redis protocol; correct the port in the URL"),
        (
            banner(b"SSH-2.0-OpenSSH_9.2\r\n"),
            "the server speaks SSH instead of the Redis protocol; correct the port in the URL",
        ),
        (
            banner(b"220 mail\x1b[2J ready\r\n"),
            r"but sent '220 mail\\x1b\[2J ready'; correct the port in the URL",
        ),
    ],
)
def test_a_cause_is_what_was_seen_and_has_its_cure(serve: Serve, says: str) -> None:
    with listening(serve) as port:
        error = refusal(f"redis://{HOST}:{port}")
    assert re.search(says, error.detail), error.detail
    assert "TLS" not in error.detail
    assert "rediss" not in error.detail


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that says something first has the time for it on a busy machine, too."""
    monkeypatch.setattr(look_closer, "FIRST_WORD_S", 5.0)
    monkeypatch.setattr(look_closer, "PATIENCE_S", 10.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("serve", [denied, denied_and_reset, denied_unless_asked])
def test_protected_mode_is_named_in_every_race(serve: Serve) -> None:
    says = (
        "the server is in protected mode and accepts only connections from its own host; set a "
        "password"
    )
    with listening(serve) as port:
        for _ in range(15):
            assert refusal(f"redis://{HOST}:{port}").detail.startswith(says)


def test_silence_is_no_evidence_of_anything() -> None:
    with listening(silent) as port:
        plain = refusal(f"redis://{HOST}:{port}", 0.1)
        secure = refusal(f"rediss://{HOST}:{port}", 0.1)
    for error in (plain, secure):
        assert error.detail.startswith("the server accepts connections but sends nothing; ")
        assert "TLS" not in error.detail


def test_an_address_where_nobody_accepts_is_not_said_to_accept() -> None:
    """A full queue of a listener drops what is sent to it, as a firewall does."""
    with closing(socket.create_server((HOST, 0), backlog=0)) as server, ExitStack() as stack:
        port = server.getsockname()[1]
        for _ in range(3):
            waiting = stack.enter_context(closing(socket.socket()))
            waiting.setblocking(False)
            waiting.connect_ex((HOST, port))
        error = refusal(f"redis://{HOST}:{port}", 0.2)
    assert error.detail == (
        "the server sent nothing in time; check that the server runs and that no firewall "
        "blocks the connection"
    )


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (
            "-WRONGPASS invalid username-password pair or user is disabled.",
            "the user name or the password is wrong; correct",
        ),
        ("-ERR invalid password", "the user name or the password is wrong; correct"),
        (
            "-ERR AUTH <password> called without any password configured for the default user",
            "the server has none; remove",
        ),
        (
            "-ERR Client sent AUTH, but no password is set",
            "the URL has a password, but the server has none; remove the password",
        ),
        (
            "-ERR unknown command 'AUTH', with args beginning with: 'ann' 'PASSWORD' ",
            "does not know the command AUTH;",
        ),
        (
            "-BUSY Redis is busy running a script. You can only call SCRIPT KILL",
            "a script keeps the server busy;",
        ),
        (
            "-ERR something about PASSWORD here",
            "the server answered with the error ERR; read the log",
        ),
    ],
)
@pytest.mark.parametrize(
    "password", ["or", "user", "password", "name", "6379", "127.0.0.1", "s3cret!", "a", "it"]
)
def test_a_password_is_neither_shown_nor_cut_out_of_a_sentence(
    reply: str, says: str, password: str
) -> None:
    line = f"{reply.replace('PASSWORD', password)}\r\n".encode()
    with listening(replying({"AUTH": line})) as port:
        error = refusal(f"redis://ann:{password}@{HOST}:{port}")
    assert says in error.detail
    assert "***" not in str(error)
    assert error.instance == f"{HOST}:{port}"
    if password == "s3cret!":
        assert password not in str(error)


@pytest.mark.parametrize("password", ["hunter2", "mail", "or", "hünter2", "h" * 60])
def test_a_peer_s_first_line_is_not_quoted_if_it_has_the_password(password: str) -> None:
    with listening(banner(f"220 mail or what? AUTH ann {password}\r\n".encode())) as port:
        error = refusal(f"redis://ann:{password}@{HOST}:{port}")
    assert error.detail == (
        "the server does not speak the Redis protocol, but sent a text that contains a secret "
        "(lockcore does not show the text); correct the port in the URL"
    )


def test_a_database_is_selected_after_a_sentinel_is_recognised() -> None:
    replies = {
        "INFO": bulk("redis_mode:sentinel\r\n"),
        "SELECT": UNKNOWN.format("SELECT", "'1'").encode(),
    }
    with listening(replying(replies)) as port:
        assert "the server is a Sentinel" in refusal(f"redis://{HOST}:{port}/1").detail


# -- the system ------------------------------------------------------------------------------------


def test_a_port_and_a_name_that_are_not_there() -> None:
    port = KeptPort()
    assert (
        "connection refused; start the server, or correct the port"
        in refusal(f"redis://{HOST}:{port.number}").detail
    )
    port.release()
    assert "host" in refusal("redis://no.such.host.invalid").detail
    assert "host" in refusal("redis://xn--\u00e9\u00e9.invalid").detail
    for zone in ("[fe80::1%nosuch]", "[::1%25nosuch]"):
        assert (
            "the zone in the address is not an interface of this machine"
            in refusal(f"redis://{zone}").detail
        )


def test_a_unix_socket_that_cannot_be_used(tmp_path: Path) -> None:
    missing = tmp_path / "no.sock"
    plain = tmp_path / "plain"
    left = tmp_path / "left.sock"
    plain.write_text("")
    with closing(socket.socket(socket.AF_UNIX)) as bound:
        bound.bind(str(left))
    assert (
        "no socket exists at this path; start the server, or correct the path"
        in refusal(f"unix://{missing}").detail
    )
    assert "no server listens on this socket; start the server" in refusal(f"unix://{plain}").detail
    assert "no server listens on this socket; start the server" in refusal(f"unix://{left}").detail


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every socket")
def test_a_unix_socket_that_is_another_s(tmp_path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as bound:
        bound.bind(str(tmp_path / "s"))
        bound.listen()
        (tmp_path / "s").chmod(0)
        assert (
            "this user has no permission to use the socket; allow"
            in refusal(f"unix://{tmp_path / 's'}").detail
        )


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@contextmanager
def secured(made: Certificates, *, ask_client: bool = False) -> Iterator[int]:
    """A port that speaks TLS, and does not know INFO."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    if ask_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(made.authority)

    def serve(peer: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(peer, server_side=True) as secure:
            replying({"INFO": b"-ERR unknown command 'INFO'\r\n"})(secure)

    with listening(serve) as port:
        yield port


def test_tls_is_advised_where_the_peer_speaks_it(made: Certificates) -> None:
    with secured(made) as port:
        assert (
            refusal(f"redis://{HOST}:{port}").detail
            == "the server speaks TLS; use rediss:// instead of redis://"
        )


def test_plain_is_advised_where_the_peer_answers_ping_in_the_clear() -> None:
    for serve in (replying(PONG), replying({"PING": b"-NOAUTH Authentication required.\r\n"})):
        with listening(serve) as port:
            detail = refusal(f"rediss://{HOST}:{port}", 0.5).detail
            assert detail == (
                "the server speaks plain Redis without TLS; use redis:// instead of rediss://"
            )


@pytest.mark.usefixtures("patient")
def test_plain_is_advised_where_the_peer_refuses_in_the_clear() -> None:
    with listening(denied) as port:
        detail = refusal(f"rediss://{HOST}:{port}").detail
        assert detail == (
            "the server speaks plain Redis without TLS; use redis:// instead of rediss://"
        )


def test_what_is_wrong_with_a_certificate(made: Certificates) -> None:
    with secured(made) as port:
        unknown = refusal(f"rediss://{HOST}:{port}")
        assert isinstance(unknown, InstanceRefusedError)
        assert "the server's certificate comes from an unknown CA" in unknown.detail
        assert "?ssl_ca_certs=FILE" in unknown.detail
        other = refusal(f"rediss://127.0.0.2:{port}?ssl_ca_certs={made.authority}")
        assert "connection refused" in other.detail or "for another" in other.detail
    with secured(made, ask_client=True) as port:
        asked = refusal(f"rediss://{HOST}:{port}?ssl_ca_certs={made.authority}")
        assert (
            "requires a client certificate; give a client certificate with ?ssl_certfile=FILE"
        ) in asked.detail


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        (http, "the server speaks HTTP instead of the Redis protocol; correct the port in the URL"),
        (
            banner(b"SSH-2.0-OpenSSH_9.2\r\n"),
            "the server speaks SSH instead of the Redis protocol; correct the port in the URL",
        ),
        (
            banner(b"220 mail ready\r\n"),
            "the server does not speak the Redis protocol, but sent '220 mail ready'; correct "
            "the port in the URL",
        ),
    ],
)
def test_tls_to_a_peer_of_another_protocol_names_this_protocol(serve: Serve, says: str) -> None:
    with listening(serve) as port:
        assert refusal(f"rediss://{HOST}:{port}").detail == says


@pytest.mark.parametrize(
    ("alert", "says"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "the server requires a client certificate; "),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "the server requires a client certificate; "),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "the server and the client share no TLS version "),
        ("UNSUPPORTED_PROTOCOL", "the server and the client share no TLS version "),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "the TLS handshake failed: sslv3 alert certificate ex"),
        ("SSLV3_ALERT_CERTIFICATE_REVOKED", "the TLS handshake failed: sslv3 alert certificate re"),
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", "the TLS handshake failed: sslv3 alert certificate un"),
        ("WRONG_VERSION_NUMBER", "the TLS handshake failed: wrong version number; "),
    ],
)
def test_an_alert_advises_only_the_cure_of_its_own_cause(alert: str, says: str) -> None:
    target = target_of(f"rediss://{HOST}:1", 1.0, "")
    failure = failure_of(target, OSError("ended"), peer=Peer(Speech.TLS, alert=alert))
    assert str(failure).startswith(says)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="Python checks RFC 5280 from 3.13 on")
def test_an_authority_without_key_usage_is_called_that(tmp_path: Path) -> None:
    lax = make_certificates(tmp_path, authority_options=())
    with secured(lax) as port:
        detail = refusal(f"rediss://{HOST}:{port}?ssl_ca_certs={lax.authority}").detail
    assert "breaks RFC 5280 (CA cert does not include key usage extension)" in detail
    assert "create a certificate that follows RFC 5280" in detail


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_ca_path"])
def test_a_file_that_is_missing_is_named_with_its_option(made: Certificates, option: str) -> None:
    with secured(made) as port:
        detail = refusal(f"rediss://{HOST}:{port}?{option}=/nonexistent.pem").detail
    assert detail.startswith(
        f"the file in the URL's option {option} cannot be read: /nonexistent.pem (No such file"
    )
    assert detail.endswith(f"; correct the path in {option}")


def test_a_file_without_a_certificate_is_named_with_its_option(
    made: Certificates, tmp_path: Path
) -> None:
    (tmp_path / "empty.pem").write_text("nothing\n")
    with secured(made) as port:
        detail = refusal(f"rediss://{HOST}:{port}?ssl_ca_certs={tmp_path}/empty.pem").detail
        assert "the URL's option ssl_ca_certs contains no certificate" in detail
        detail = refusal(f"rediss://{HOST}:{port}?ssl_certfile={tmp_path}/empty.pem").detail
        assert "ssl_certfile, ssl_keyfile and ssl_password do not fit together" in detail


def test_a_later_contact_does_not_look_closer() -> None:
    """A dead port that is tried again and again is not asked three times as often."""
    from dataclasses import replace

    seen: list[int] = []

    def serve(peer: socket.socket) -> None:
        seen.append(peer.fileno())
        reset(peer)

    with listening(serve) as port:
        target = replace(target_of(f"redis://{HOST}:{port}", 2.0, ""), look_closer=False)
        with pytest.raises(
            InstanceError, match="closed the connection during the handshake; check that"
        ):
            shake(target)
        with pytest.raises(InstanceError, match="without an answer"):
            shake(replace(target, look_closer=True))
    assert len(seen) <= 1 + 3
