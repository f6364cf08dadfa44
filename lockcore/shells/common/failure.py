"""Explains why a connection failed.

Input: an exception, the first bytes and the protocol of the peer. Output: the cause and the cure.

Rules: this is the only place that explains a failure to connect, for the lock and for the bench. An
observation is a server's reply, an errno, a TLS alert, or received bytes. This file makes a list of
symptoms from the observations. The most specific symptom is the first of the list. The explanation
comes from the first symptom that has a row in `FAILURES`. An explanation never guesses. For
example, it recommends TLS only if the peer spoke TLS. A whole foreign text is quoted only if no row
matches it. The quotation is one short line, and never contains a secret. If a row of `FAILURES`
matches, the explanation quotes only the parts of the text that the row's pattern selects. These
parts cannot contain a password. The row `speech OTHER` quotes the first line that the peer sent,
and no other row quotes this line. The row `speech OTHER` does not quote this line if the peer's
first bytes contain a secret.
"""

import errno
import os
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from lockcore.errors import (
    InstanceClosedError,
    InstanceError,
    InstanceRefusedError,
    InstanceTimeoutError,
)
from lockcore.shells.common.peer import Peer, Speech, speech_of
from lockcore.shells.common.target import InstanceTarget

LONGEST_QUOTE = 120


@dataclass(frozen=True, slots=True)
class Failure:
    """The explanation of a failure to connect.

    `cause` is the fault, `cure` is the next step for the user, and `kind` is the exception that
    lockcore raises.
    """

    cause: str
    cure: str
    kind: type[InstanceError] = InstanceClosedError

    def __str__(self) -> str:
        return f"{self.cause}; {self.cure}"


SENTINEL = (
    "the server is a Sentinel; give the addresses of the instances themselves (port 26379 "
    "usually means a Sentinel)"
)
_INDEPENDENT = "connect to independent, writable instances"
REPLICA = f"the server is a replica; {_INDEPENDENT}"
CLUSTER = Failure(
    "the server is a cluster node", "Redlock needs independent instances", InstanceRefusedError
)
_PROXY = (
    "the address may belong to a proxy, or the server has renamed the command; give the address "
    "of the server itself"
)
_LOG = "read the log of the server"
_CREDENTIALS = "write redis://user:password@host:port"
_NAME = "correct the host name"
_ROUTE = "correct the address, or repair the network between this machine and the server"
_OTHER_NAME = (
    "connect to a name or address that the certificate contains, or set ?ssl_check_hostname=false"
)
_RIGHT = "allow this user to write to the socket and to search its folder"
_PORT = "correct the port in the URL"
_UNKNOWN = r"reply .*(?:unknown (?:sub)?|unsupported )command\W*"
_TLS = "the TLS handshake failed: "

# A pattern for the beginning of a symptom → the explanation. The first pattern that matches counts,
# so the order matters. `{0}` is the part in the pattern's parentheses. `{prefix}` and `{begin}` are
# the key prefix. `{line}` is the first line that the peer sent.
FAILURES: dict[str, Failure] = {
    r"reply (?:\w+ )?DENIED": Failure(
        "the server is in protected mode and accepts only connections from its own host",
        "set a password on the server (requirepass), or turn protected-mode off and bind the "
        "server to this network",
    ),
    "reply .*(?:NOAUTH|authentication required)": Failure(
        "the server asks for a password", _CREDENTIALS, InstanceRefusedError
    ),
    "reply .*(?:without any password configured|no password is set)": Failure(
        "the URL has a password, but the server has none",
        "remove the password from the URL",
        InstanceRefusedError,
    ),
    r"reply \w*NoPermissionError .*run the '([\w|]+)' command": Failure(
        "the ACL of this user does not allow the command '{0}'",
        "the README lists the least rights that lockcore needs",
        InstanceRefusedError,
    ),
    r"reply \w*NoPermissionError .*channel": Failure(
        "the ACL of this user does not allow channels{begin}",
        "add &{prefix}* to the ACL",
        InstanceRefusedError,
    ),
    r"reply \w*NoPermissionError": Failure(
        "the ACL of this user does not allow access to keys{begin}",
        "add ~{prefix}* to the ACL",
        InstanceRefusedError,
    ),
    "reply LoneAuthenticationError": Failure(
        "the URL has a user but no password, and the server refuses this login",
        _CREDENTIALS,
        InstanceRefusedError,
    ),
    "reply AuthenticationError": Failure(
        "the user name or the password is wrong",
        "correct the user name and the password in the URL of this instance",
        InstanceRefusedError,
    ),
    # A server quotes the arguments of an unknown command. The quoted arguments may be the arguments
    # of AUTH.
    rf"{_UNKNOWN}AUTH\b": Failure(
        "the server does not know the command AUTH",
        "remove the user name and the password from the URL, or give the address of the server "
        "itself",
    ),
    rf"{_UNKNOWN}INFO\b": Failure(
        "the server does not know the command INFO, so lockcore cannot tell servers apart",
        _PROXY,
        InstanceRefusedError,
    ),
    rf"{_UNKNOWN}(SELECT|HELLO|CLIENT|SET|EVAL|EVALSHA|SCRIPT|DELEX|DELIFEQ|PING)\b": Failure(
        "the server does not know the command {0}", _PROXY
    ),
    _UNKNOWN: Failure("the server does not know a command of the handshake", _PROXY),
    "reply .*(?:db index|invalid db)": Failure(
        "the server has no database with the number in the URL",
        "name a database that the server has",
        InstanceRefusedError,
    ),
    "reply .*not allowed in cluster mode": CLUSTER,
    r"reply (?:\w*BusyLoadingError|\w+ loading )": Failure(
        "the server is still loading its data", "wait until the server is ready"
    ),
    r"reply \w+ busy ": Failure(
        "a script keeps the server busy",
        "wait until the script ends, or stop the script with SCRIPT KILL",
    ),
    "reply .*max number of clients": Failure(
        "the server has reached its maximum number of clients",
        "raise maxclients on the server, or close some clients",
    ),
    r"reply \w*MasterDownError": Failure(
        "the server is a replica whose primary is down", _INDEPENDENT
    ),
    # The numbers after `certificate` are OpenSSL's numbers X509_V_ERR_….
    "certificate 9 ": Failure(
        f"{_TLS}the server's certificate is not valid yet",
        "correct the clock of this machine, or the certificate",
        InstanceRefusedError,
    ),
    "certificate 10 ": Failure(
        f"{_TLS}the server's certificate has expired",
        "renew the certificate on the server",
        InstanceRefusedError,
    ),
    "certificate 62 ": Failure(
        f"{_TLS}the server's certificate is for another host name",
        _OTHER_NAME,
        InstanceRefusedError,
    ),
    "certificate 64 ": Failure(
        f"{_TLS}the server's certificate is for another address", _OTHER_NAME, InstanceRefusedError
    ),
    "certificate (?:2|18|19|20|21) (.*)": Failure(
        f"{_TLS}the server's certificate comes from an unknown CA ({{0}})",
        "give the CA's certificate with ?ssl_ca_certs=FILE",
        InstanceRefusedError,
    ),
    # Errors of OpenSSL's strict mode, which Python uses from 3.13 on.
    "certificate (?:8[0-9]|9[0-4]) (.*)": Failure(
        f"{_TLS}the server's certificate, or the certificate of its CA, breaks RFC 5280 ({{0}})",
        "create a certificate that follows RFC 5280; Python 3.13 and later require this",
        InstanceRefusedError,
    ),
    "certificate": Failure(
        f"{_TLS}the server's certificate cannot be verified",
        "correct the certificate",
        InstanceRefusedError,
    ),
    "plain": Failure(
        "the server speaks plain Redis without TLS", "use redis:// instead of rediss://"
    ),
    "alert .*UNKNOWN_CA": Failure(
        "the server does not trust the client's certificate",
        "give a certificate from a CA that the server trusts with ?ssl_certfile=FILE and "
        "?ssl_keyfile=FILE",
        InstanceRefusedError,
    ),
    "alert .*(?:CERTIFICATE_REQUIRED|ALERT_BAD_CERTIFICATE|ALERT_HANDSHAKE_FAILURE"
    "|PEER_DID_NOT_RETURN)": Failure(
        "the server requires a client certificate",
        "give a client certificate with ?ssl_certfile=FILE and ?ssl_keyfile=FILE",
        InstanceRefusedError,
    ),
    "alert .*(?:PROTOCOL_VERSION|UNSUPPORTED_VERSION|UNSUPPORTED_PROTOCOL|NO_SHARED_CIPHER"
    "|NO_PROTOCOLS)": Failure(
        "the server and the client share no TLS version or no cipher",
        "change ?ssl_min_version and ?ssl_ciphers, or the settings of the server",
        InstanceRefusedError,
    ),
    "handshake (.*)": Failure(f"{_TLS}{{0}}", _LOG),
    "name UnicodeError": Failure("the host name in the URL is not valid", _NAME),
    f"name {socket.EAI_AGAIN} ": Failure(
        "DNS does not answer the query for the host name in the URL",
        "correct the host name, or repair DNS",
    ),
    "name .*%": Failure(
        "the zone in the address is not an interface of this machine, or this address cannot have "
        "a zone",
        "a zone is the name of an interface of this machine, and only fe80:: addresses have a "
        "zone, as in [fe80::1%eth0]",
    ),
    "name": Failure("DNS does not know the host name in the URL", _NAME),
    "network ECONNREFUSED": Failure(
        "connection refused", "start the server, or correct the port in the URL"
    ),
    "network EHOSTUNREACH": Failure("this machine has no route to the host of the server", _ROUTE),
    "network ENETUNREACH": Failure(
        "this machine has no route to the network of the server", _ROUTE
    ),
    "network EADDRNOTAVAIL": Failure(
        "this machine has no free local port, or no local address for this connection",
        "correct the address, or close sockets",
    ),
    "network EACCES": Failure(
        "this machine's firewall forbids the connection", "allow the connection"
    ),
    "network EINVAL": Failure(
        "the address cannot be used on this machine",
        "add the interface to an fe80:: address, as in [fe80::1%eth0]",
    ),
    "network ETIMEDOUT": Failure(
        "no server answers at this address",
        "start the server, correct the address, or open the firewall between this machine and "
        "the server",
    ),
    "path ENOENT": Failure(
        "no socket exists at this path", "start the server, or correct the path"
    ),
    "path ENOTDIR": Failure("no socket exists at this path", "correct the path"),
    "path ECONNREFUSED": Failure(
        "no server listens on this socket",
        "start the server; the file at this path is left over, or is not a socket",
    ),
    "path (?:EACCES|EPERM)": Failure("this user has no permission to use the socket", _RIGHT),
    "path EAGAIN": Failure(
        "the server's queue of new connections is full",
        "check whether the server is stopped or overloaded",
    ),
    "path (?:ENOTSOCK|EPROTOTYPE)": Failure(
        "the path does not lead to the socket of a server", "correct the path"
    ),
    "(?:path|network) E[MN]FILE": Failure(
        "this process has no free file descriptor", "raise the limit (ulimit -n)"
    ),
    "silence BEGUN": Failure(
        "the server began to answer but did not finish in time", "if the server is busy, try later"
    ),
    "silence REDIS": Failure(
        "the server answers PING, but not the next command", "if the server is busy, try later"
    ),
    "silence$": Failure(
        "the server sent nothing in time",
        "check that the server runs and that no firewall blocks the connection",
    ),
    "speech TLS": Failure("the server speaks TLS", "use rediss:// instead of redis://"),
    "speech (HTTP|SSH)": Failure("the server speaks {0} instead of the Redis protocol", _PORT),
    "speech OTHER": Failure("the server does not speak the Redis protocol, but sent {line}", _PORT),
    "speech HANGS_UP": Failure(
        "the server accepts connections and closes them without an answer",
        "if the port belongs to a proxy or a port forward, start the server behind it",
    ),
    "speech SILENT": Failure(
        "the server accepts connections but sends nothing",
        "check whether the server is stopped or overloaded, or whether a proxy has lost the server",
    ),
    "end REDIS": Failure(
        "the server answers PING, but closes the connection at the next command", _PROXY
    ),
    "end": Failure(
        "the server closed the connection during the handshake",
        "check that a Redis server runs behind this port",
    ),
    "nonsense": Failure("the server's answer to the handshake is not an answer of Redis", _PROXY),
}


def failure_of(
    target: InstanceTarget, error: BaseException, heard: bytes = b"", peer: Peer | None = None
) -> Failure:
    """Explain `error`.

    `heard` contains the first bytes of the failed connection. `peer` is the result of the
    examination in peer.py.
    """
    failure = _of_files(target) or _known(target, error, heard, peer)
    if failure is None:
        replies = [one for one in _chain(error) if _is_reply(one)]
        text = _quoted(target, replies[0], "the server answered") if replies else ""
        return Failure(text or _quoted(target, error, "the connection failed"), _LOG)
    is_late = any(isinstance(one, RedisTimeoutError | TimeoutError) for one in _chain(error))
    if is_late and failure.kind is InstanceClosedError:
        return replace(failure, kind=InstanceTimeoutError)
    return failure


def is_unexplained(target: InstanceTarget, error: BaseException, heard: bytes = b"") -> bool:
    """True if an examination of the peer (peer.py) may find the cause.

    The examination may help if the peer sent no bytes, or if its bytes are not of the Redis
    protocol.
    """
    first = next(_symptoms(target, error, heard, None), "")
    return not (
        heard.startswith(b"-") or first.startswith(("reply", "cert", "name", "net", "path"))
    )


def _known(
    target: InstanceTarget, error: BaseException, heard: bytes, peer: Peer | None
) -> Failure | None:
    """The row of `FAILURES` for the first symptom that has a row.

    The result is None if there is no such symptom.
    """
    prefix = target.key_prefix
    facts = {
        "prefix": prefix,
        "begin": f" that begin with {prefix}" if prefix else "",
        "line": _line(target, _first(heard, peer)),
    }
    for symptom in _symptoms(target, error, heard, peer):
        for pattern, failure in FAILURES.items():
            if match := re.match(pattern, symptom, re.IGNORECASE):
                cause = failure.cause.format(*match.groups(), **facts)
                return replace(failure, cause=cause, cure=failure.cure.format(**facts))
    return None


def _symptoms(
    target: InstanceTarget, error: BaseException, heard: bytes, peer: Peer | None
) -> Iterator[str]:
    """Yield the observed symptoms. The most specific symptom comes first."""
    chain = _chain(error)
    speech = speech_of(heard) or (peer.speech if peer is not None else None)
    spoken = "" if speech is None or (speech is Speech.TLS and target.is_tls) else speech.name
    if _first(heard, peer).startswith(b"-DENIED") and not target.is_tls:
        yield "reply DENIED"
    yield from _of_tls(chain, spoken, peer.alert if peer is not None else "")
    for one in chain:
        if _is_reply(one):
            is_lone = target.options.get("username") and not target.options.get("password")
            yield f"reply {'Lone' if is_lone else ''}{type(one).__name__} {one}"
            return
    yield from _of_system(target, chain)
    if any(isinstance(one, RedisTimeoutError | TimeoutError) for one in chain):
        if heard:
            yield "silence BEGUN"
        yield "plain" if spoken == "REDIS" and target.is_tls else f"silence {spoken}"
        yield f"speech {spoken}"
        yield "silence"
    yield f"speech {spoken}"
    if any(isinstance(one, InvalidResponse) for one in chain):
        yield "speech OTHER"
    has_ended = any(isinstance(one, OSError) and one.errno in _ENDS for one in chain)
    if has_ended or "closed by server" in str(chain[-1]).lower():
        yield f"end {spoken}"
    if isinstance(error, ValueError | TypeError | AttributeError | LookupError):
        yield "nonsense"


def _of_tls(chain: list[BaseException], spoken: str, alert: str) -> Iterator[str]:
    for one in chain:
        if isinstance(one, ssl.SSLCertVerificationError) and not alert:
            yield f"certificate {one.verify_code} {one.verify_message}"
        if isinstance(one, ssl.SSLError):
            alert = alert or one.reason or "the connection ended in it"
    if alert:
        if spoken == "REDIS":
            yield "plain"
        yield f"alert {alert}"
        yield f"speech {spoken}"
        yield f"handshake {alert.replace('_', ' ').lower()}"


def _of_system(target: InstanceTarget, chain: list[BaseException]) -> Iterator[str]:
    for one in chain:
        if isinstance(one, UnicodeError):
            yield "name UnicodeError"
        elif isinstance(one, socket.gaierror):
            yield f"name {one.errno} {target.options.get('host')}"
        elif isinstance(one, OSError) and one.errno not in (None, *_ENDS):
            place = "path" if "path" in target.options else "network"
            yield f"{place} {errno.errorcode.get(one.errno)}"


_ENDS = (errno.ECONNRESET, errno.EPIPE)


def _first(heard: bytes, peer: Peer | None) -> bytes:
    return heard or (peer.heard if peer is not None else b"")


def _chain(error: BaseException) -> list[BaseException]:
    """The error and its causes.

    The original cause comes first, because redis-py wraps errors of the operating system.
    """
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.insert(0, one)
        one = one.__cause__ or one.__context__
    return chain


def _is_reply(error: BaseException) -> bool:
    return isinstance(error, ResponseError | AuthenticationError | BusyLoadingError) or (
        isinstance(error, RedisError) and "max number of clients" in str(error)
    )


def _of_files(target: InstanceTarget) -> Failure | None:
    """The failure of the first TLS option that cannot be used.

    The result is None if every option can be used.
    """
    options = {name: text for name, text in target.options.items() if isinstance(text, str)}
    for option in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"):
        try:
            if path := options.get(option):
                os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            cause = (
                f"the file in the URL's option {option} cannot be read: {path} ({error.strerror})"
            )
            return Failure(cause, f"correct the path in {option}", InstanceRefusedError)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for option, argument in (("ssl_ca_certs", "cafile"), ("ssl_ca_data", "cadata")):
        try:
            if text := options.get(option):
                context.load_verify_locations(**{argument: text})
        except (OSError, ValueError):
            cause = f"the URL's option {option} contains no certificate"
            return Failure(cause, "give certificates in the format PEM", InstanceRefusedError)
    try:
        if certificate := options.get("ssl_certfile"):
            context.load_cert_chain(
                certificate, options.get("ssl_keyfile"), options["ssl_password"]
            )
    except (OSError, ValueError):
        return Failure(
            "the URL's options ssl_certfile, ssl_keyfile and ssl_password do not fit together",
            "give a certificate, its key and the key's password; certificate and key are in the "
            "format PEM",
            InstanceRefusedError,
        )
    return None


def _line(target: InstanceTarget, heard: bytes) -> str:
    """Return the first line of the peer's bytes as printable text. If the bytes contain a secret,
    return a sentence that does not show the line."""
    text = heard.decode("utf-8", "replace")
    if target.mask(text) != text:
        return "a text that contains a secret (lockcore does not show the text)"
    line = text.partition("\n")[0].strip()[:40]
    return repr(line.encode("ascii", "replace").decode()) if line else "an empty line"


def _quoted(target: InstanceTarget, error: BaseException, what: str) -> str:
    """Quote the text of an error in one line. `FAILURES` has no row for this error.

    If the text has a secret, only the error code is quoted. The error code is the first word of the
    text. If this word is no code, the name of the exception is quoted.
    """
    text = " ".join(str(error).split())
    code = getattr(error, "status_code", None) or text.partition(" ")[0]
    code = code if re.fullmatch("[A-Z]{2,20}", code) else type(error).__name__
    if not text or target.mask(text) != text:
        return f"{what} with the error {code}"
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"{what}: {shown[:LONGEST_QUOTE].rstrip('.')}"
