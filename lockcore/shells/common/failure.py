"""Explains a failure to connect: *exception, peer's first bytes, its protocol → cause and cure*.

Rules: this is the only place that explains a failure to connect, for the lock and for the bench. It
starts from observations: a server's reply, an errno, an alert, or bytes. Observations become
symptoms, and the most specific symptom comes first. The first symptom with a row in `FAILURES` gets
the explanation of this row. Nothing is guessed. For example, the cure is TLS only if the peer spoke
TLS. A foreign text is quoted only if no row matches it. The quotation is one short line, and never
contains a secret. A row copies only the parts of a text that its pattern names, so these parts
cannot contain a password. One row quotes the first line of the peer. This line is left out if the
peer's first bytes contain a secret.
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
    "it is a Sentinel; give the addresses of the instances themselves, Sentinels usually listen on "
    "26379"
)
_INDEPENDENT = "connect to independent, writable instances"
REPLICA = f"it is a replica; {_INDEPENDENT}"
CLUSTER = Failure(
    "it is a cluster node", "Redlock needs independent instances", InstanceRefusedError
)
_PROXY = (
    "this looks like a proxy, or the command is renamed there; give the address of the server "
    "itself"
)
_LOG = "read the log of the server"
_CREDENTIALS = "write redis://user:password@host:port"
_NAME = "mend the host's name"
_ROUTE = "correct the address, or repair the network in between"
_OTHER_NAME = "use a name or address from the certificate, or ?ssl_check_hostname=false"
_RIGHT = "allow the user to write to it, or to its folder"
_PORT = "mend its port"
_UNKNOWN = r"reply .*(?:unknown (?:sub)?|unsupported )command\W*"
_TLS = "the TLS handshake failed: "

# A pattern for the beginning of a symptom → the explanation. The first pattern that matches counts,
# so the order matters. `{0}` is the part in the pattern's parentheses. `{prefix}` and `{begin}` are
# the key prefix. `{line}` is the first line that the peer sent.
FAILURES: dict[str, Failure] = {
    r"reply (?:\w+ )?DENIED": Failure(
        "it is in protected mode and accepts only connections from its own host",
        "set a password there (requirepass), or turn protected-mode off, and bind it to this "
        "network",
    ),
    "reply .*(?:NOAUTH|authentication required)": Failure(
        "it asks for a password", _CREDENTIALS, InstanceRefusedError
    ),
    "reply .*(?:without any password configured|no password is set)": Failure(
        "its URL has a password, and the server has none",
        "remove the password from the URL",
        InstanceRefusedError,
    ),
    r"reply \w*NoPermissionError .*run the '([\w|]+)' command": Failure(
        "this user's ACL is too narrow (it may not run '{0}')",
        "the README lists the minimum",
        InstanceRefusedError,
    ),
    r"reply \w*NoPermissionError .*channel": Failure(
        "this user's ACL is too narrow (it may not touch channels{begin})",
        "allow them, &{prefix}*",
        InstanceRefusedError,
    ),
    r"reply \w*NoPermissionError": Failure(
        "this user's ACL is too narrow (it may not touch keys{begin})",
        "allow them, ~{prefix}*",
        InstanceRefusedError,
    ),
    "reply LoneAuthenticationError": Failure(
        "its URL has a user but no password, and the server refuses that",
        _CREDENTIALS,
        InstanceRefusedError,
    ),
    "reply AuthenticationError": Failure(
        "wrong user name or password",
        "correct them in the URL of this instance",
        InstanceRefusedError,
    ),
    # A server quotes the arguments of an unknown command, and these may be the arguments of AUTH.
    rf"{_UNKNOWN}AUTH\b": Failure(
        "it does not know the command AUTH",
        "remove user name and password from its URL, or give the address of the server itself",
    ),
    rf"{_UNKNOWN}INFO\b": Failure(
        "it does not know the command INFO, so servers cannot be told apart",
        _PROXY,
        InstanceRefusedError,
    ),
    rf"{_UNKNOWN}(SELECT|HELLO|CLIENT|SET|EVAL|EVALSHA|SCRIPT|DELEX|DELIFEQ|PING)\b": Failure(
        "it does not know the command {0}", _PROXY
    ),
    _UNKNOWN: Failure("it does not know a command of the handshake", _PROXY),
    "reply .*(?:db index|invalid db)": Failure(
        "it has no database with that number", "name a database it has", InstanceRefusedError
    ),
    "reply .*not allowed in cluster mode": CLUSTER,
    r"reply (?:\w*BusyLoadingError|\w+ loading )": Failure(
        "it is still loading its data", "wait until it is ready"
    ),
    r"reply \w+ busy ": Failure(
        "a script is running there and keeps it busy",
        "wait until it ends, or stop it with SCRIPT KILL",
    ),
    "reply .*max number of clients": Failure(
        "it has reached its maximum number of clients",
        "raise its maxclients, or close some clients",
    ),
    r"reply \w*MasterDownError": Failure("it is a replica whose primary is down", _INDEPENDENT),
    # The numbers behind `certificate` are those of OpenSSL's X509_V_ERR_….
    "certificate 9 ": Failure(
        f"{_TLS}its certificate is not valid yet",
        "correct the clock of this machine, or the certificate",
        InstanceRefusedError,
    ),
    "certificate 10 ": Failure(
        f"{_TLS}its certificate has expired", "renew it on the server", InstanceRefusedError
    ),
    "certificate 62 ": Failure(
        f"{_TLS}its certificate is for another host name", _OTHER_NAME, InstanceRefusedError
    ),
    "certificate 64 ": Failure(
        f"{_TLS}its certificate is for another address", _OTHER_NAME, InstanceRefusedError
    ),
    "certificate (?:2|18|19|20|21) (.*)": Failure(
        f"{_TLS}its certificate comes from an unknown CA ({{0}})",
        "give the file of that CA with ?ssl_ca_certs=FILE",
        InstanceRefusedError,
    ),
    # Errors of OpenSSL's strict mode, which Python uses from 3.13 on.
    "certificate (?:8[0-9]|9[0-4]) (.*)": Failure(
        f"{_TLS}its certificate, or that of its CA, breaks RFC 5280 ({{0}})",
        "create a new certificate; Python requires this from 3.13 on",
        InstanceRefusedError,
    ),
    "certificate": Failure(
        f"{_TLS}its certificate cannot be verified", "mend it", InstanceRefusedError
    ),
    "plain": Failure("it speaks plain Redis without TLS", "use redis:// instead of rediss://"),
    "alert .*UNKNOWN_CA": Failure(
        "the server does not trust our certificate",
        "give one from a CA that it trusts with ?ssl_certfile=FILE and ?ssl_keyfile=FILE",
        InstanceRefusedError,
    ),
    "alert .*(?:CERTIFICATE_REQUIRED|ALERT_BAD_CERTIFICATE|ALERT_HANDSHAKE_FAILURE"
    "|PEER_DID_NOT_RETURN)": Failure(
        "the server requires a client certificate",
        "give one with ?ssl_certfile=FILE and ?ssl_keyfile=FILE",
        InstanceRefusedError,
    ),
    "alert .*(?:PROTOCOL_VERSION|UNSUPPORTED_VERSION|UNSUPPORTED_PROTOCOL|NO_SHARED_CIPHER"
    "|NO_PROTOCOLS)": Failure(
        "server and client have no version of TLS or no cipher in common",
        "change ?ssl_min_version and ?ssl_ciphers, or the settings of the server",
        InstanceRefusedError,
    ),
    "handshake (.*)": Failure(f"{_TLS}{{0}}", _LOG),
    "name UnicodeError": Failure("the name of its host is not a valid host name", _NAME),
    f"name {socket.EAI_AGAIN} ": Failure(
        "the resolver does not answer a query for the name of its host",
        "correct the host's name, or repair DNS",
    ),
    "name .*%": Failure(
        "this machine has no interface of that zone, or the address takes no zone",
        "only fe80:: addresses have a zone, which names an interface here: [fe80::1%eth0]",
    ),
    "name": Failure("the name of its host is not known", _NAME),
    "network ECONNREFUSED": Failure("connection refused", "start it, or correct its port"),
    "network EHOSTUNREACH": Failure("there is no route to its host", _ROUTE),
    "network ENETUNREACH": Failure("there is no route to its network", _ROUTE),
    "network EADDRNOTAVAIL": Failure(
        "this machine has no address or no port left for it",
        "correct the address, or close sockets",
    ),
    "network EACCES": Failure("this machine's firewall forbids the connection", "allow it"),
    "network EINVAL": Failure(
        "the address cannot be used on this machine",
        "an fe80:: address needs its interface, [fe80::1%eth0]",
    ),
    "network ETIMEDOUT": Failure(
        "nobody answers at its address",
        "start it, correct the address, or open the firewall in between",
    ),
    "path ENOENT": Failure("there is no such socket", "start the server, or correct the path"),
    "path ENOTDIR": Failure("there is no such socket", "mend the path"),
    "path ECONNREFUSED": Failure(
        "nobody listens on this socket",
        "start the server; the path is a left-over file, or not a socket",
    ),
    "path (?:EACCES|EPERM)": Failure("this user may not use the socket", _RIGHT),
    "path EAGAIN": Failure("its queue of connections is full", "is it stopped or overloaded?"),
    "path (?:ENOTSOCK|EPROTOTYPE)": Failure("this path is not a server's socket", "mend the path"),
    "(?:path|network) E[MN]FILE": Failure(
        "this process has no free file descriptor", "raise the limit (ulimit -n)"
    ),
    "silence BEGUN": Failure(
        "it began to answer but did not finish in time", "is it busy? Then try later"
    ),
    "silence REDIS": Failure(
        "it answers PING, but not the next command", "is it busy? Then try later"
    ),
    "silence$": Failure("nothing was heard in time", "is it up, and is no firewall between?"),
    "speech TLS": Failure("it speaks TLS", "use rediss:// instead of redis://"),
    "speech (HTTP|SSH)": Failure("it speaks {0} instead of the Redis protocol", _PORT),
    "speech OTHER": Failure("it does not speak the Redis protocol: it sent {line}", _PORT),
    "speech HANGS_UP": Failure(
        "it accepts connections and closes them without an answer",
        "perhaps nothing runs behind this port (a proxy, a port forward): start what is behind it",
    ),
    "speech SILENT": Failure(
        "it accepts connections but sends nothing",
        "is the server stopped or overloaded, or has a proxy in front lost it?",
    ),
    "end REDIS": Failure("it answers PING, but closes the connection at the next command", _PROXY),
    "end": Failure(
        "it closed the connection during the handshake",
        "is it running, and is there a server behind this port?",
    ),
    "nonsense": Failure("it answers the handshake, but not like Redis", _PROXY),
}


def failure_of(
    target: InstanceTarget, error: BaseException, heard: bytes = b"", peer: Peer | None = None
) -> Failure:
    """Explain `error`.

    `heard` has the first bytes of the failed connection. `peer` is the result of a closer look.
    """
    failure = _of_files(target) or _known(target, error, heard, peer)
    if failure is None:
        replies = [one for one in _chain(error) if _is_reply(one)]
        text = _quoted(target, replies[0], "it answered") if replies else ""
        return Failure(text or _quoted(target, error, "the connection failed"), _LOG)
    is_late = any(isinstance(one, RedisTimeoutError | TimeoutError) for one in _chain(error))
    if is_late and failure.kind is InstanceClosedError:
        return replace(failure, kind=InstanceTimeoutError)
    return failure


def is_unexplained(target: InstanceTarget, error: BaseException, heard: bytes = b"") -> bool:
    """True if new connections to the peer (peer.py) may find the cause.

    This is so if the peer sent no bytes, or bytes of another protocol than Redis.
    """
    first = next(_symptoms(target, error, heard, None), "")
    return not (
        heard.startswith(b"-") or first.startswith(("reply", "cert", "name", "net", "path"))
    )


def _known(
    target: InstanceTarget, error: BaseException, heard: bytes, peer: Peer | None
) -> Failure | None:
    """The row of the first symptom with a row, or None."""
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
    """The observed symptoms, the most specific symptom first."""
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
    """The error and its causes, the original cause first. redis-py wraps the system's errors."""
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
    """The failure of the first TLS option in the URL that cannot be used, or None."""
    options = {name: text for name, text in target.options.items() if isinstance(text, str)}
    for option in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"):
        try:
            if path := options.get(option):
                os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            cause = f"the file of its option {option} cannot be read: {path} ({error.strerror})"
            return Failure(cause, f"mend the path in {option}", InstanceRefusedError)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for option, argument in (("ssl_ca_certs", "cafile"), ("ssl_ca_data", "cadata")):
        try:
            if text := options.get(option):
                context.load_verify_locations(**{argument: text})
        except (OSError, ValueError):
            cause = f"its option {option} contains no certificate"
            return Failure(cause, "give it certificates in PEM", InstanceRefusedError)
    try:
        if certificate := options.get("ssl_certfile"):
            context.load_cert_chain(
                certificate, options.get("ssl_keyfile"), options["ssl_password"]
            )
    except (OSError, ValueError):
        return Failure(
            "its options ssl_certfile, ssl_keyfile and ssl_password do not fit together",
            "give a certificate, its key, and the key's password, in PEM",
            InstanceRefusedError,
        )
    return None


def _line(target: InstanceTarget, heard: bytes) -> str:
    """The first line of the peer's bytes, as printable text, unless they contain a secret."""
    text = heard.decode("utf-8", "replace")
    if target.mask(text) != text:
        return "a text that is not shown, because it contains a secret"
    line = text.partition("\n")[0].strip()[:40]
    return repr(line.encode("ascii", "replace").decode()) if line else "an empty line"


def _quoted(target: InstanceTarget, error: BaseException, what: str) -> str:
    """A text without a row, in one line.

    If the text has a secret, only its first word is quoted, which is the error code.
    """
    text = " ".join(str(error).split())
    code = getattr(error, "status_code", None) or text.partition(" ")[0]
    code = code if re.fullmatch("[A-Z]{2,20}", code) else type(error).__name__
    if not text or target.mask(text) != text:
        return f"{what} with the error {code}"
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"{what}: {shown[:LONGEST_QUOTE].rstrip('.')}"
