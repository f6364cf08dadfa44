"""Why an instance cannot be used: *an exception, the first bytes heard, what listens there → cause
and cure*.

Rules: this is the only place that explains a failure to connect, for the lock and for the bench. A
cause is what was seen: a server's reply, an errno, an alert, bytes. Nothing is guessed; TLS is
advised only where the peer spoke it. A text of others is quoted only where it is not known, in one
short line, and never if it holds a secret. All else is written here, so no password can be in it,
and nothing in it needs a mask.
"""

import errno
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
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
SENTINEL = (
    "it is a Sentinel; give the addresses of the instances themselves, Sentinels usually listen on "
    "26379"
)
CLUSTER = "it is a cluster node; Redlock needs independent instances"
REPLICA = "it is a replica; connect to independent, writable instances"
PROXY = (
    "this looks like a proxy, or the command is renamed there; give the address of the server "
    "itself"
)
_COMMANDS = (
    "AUTH",
    "INFO",
    "SELECT",
    "HELLO",
    "CLIENT",
    "SET",
    "EVAL",
    "EVALSHA",
    "SCRIPT",
    "DELEX",
    "DELIFEQ",
    "PING",
)
_UNKNOWN_COMMAND = re.compile(
    r"unknown (?:sub)?command\W*(\w+)|unsupported command\W*(\w+)?", re.IGNORECASE
)
_FORBIDDEN_COMMAND = re.compile(r"run the '([\w|]+)' command", re.IGNORECASE)
_CODE = re.compile(r"[A-Z]{2,20}")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an instance cannot be used.

    `cause` is what is wrong, `cure` what to do next, `kind` the exception that lockcore raises.
    """

    cause: str
    cure: str
    kind: type[InstanceError] = InstanceClosedError

    def __str__(self) -> str:
        return f"{self.cause}; {self.cure}"


def failure_of(
    target: InstanceTarget, error: BaseException, heard: bytes = b"", peer: Peer | None = None
) -> Failure:
    """Explain `error`. `heard`: the first bytes of the failed connection; `peer`: the result of a
    closer look."""
    chain = list(_chain(error))
    first = heard or (peer.heard if peer is not None else b"")
    if first.startswith(b"-DENIED") and not target.is_tls:
        return _of_reply(target, ResponseError(first[1:].decode("utf-8", "replace")))
    if files := _of_files(target):
        return files
    if peer is not None and peer.alert:
        return _of_tls(target, ssl.SSLError(), peer)
    for one in chain:
        if isinstance(one, ssl.SSLError):
            return _of_tls(target, one, peer)
    for one in chain:
        if isinstance(one, RedisError) and _is_reply(one):
            return _of_reply(target, one)
    return (
        _of_system(target, chain, heard, peer)
        or _of_peer(target, heard, peer)
        or _of_end(chain, heard, peer)
        or _of_the_rest(target, error)
    )


def _of_the_rest(target: InstanceTarget, error: BaseException) -> Failure:
    if isinstance(error, ValueError | TypeError | AttributeError | LookupError):
        return Failure("it answers the handshake, and not as Redis does", PROXY)
    return Failure(
        _quoted(target, error, "the connection failed"), "look into the log of the server"
    )


def is_unexplained(error: BaseException, heard: bytes = b"") -> bool:
    """Whether a closer look at the peer may find the cause: nothing was heard, or nothing that is
    Redis's."""
    chain = list(_chain(error))
    if any(isinstance(one, RedisError) and _is_reply(one) for one in chain) or heard.startswith(
        b"-"
    ):
        return False
    if any(
        isinstance(one, ssl.SSLCertVerificationError | socket.gaierror | UnicodeError)
        for one in chain
    ):
        return False
    numbers = {
        one.errno for one in chain if isinstance(one, OSError) and not isinstance(one, ssl.SSLError)
    }
    return numbers <= {None, errno.ECONNRESET, errno.EPIPE}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, the last one first. redis-py wraps what the system says."""
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    return reversed(chain)


def _is_reply(error: RedisError) -> bool:
    kinds = (
        ResponseError,
        AuthenticationError,
        NoPermissionError,
        BusyLoadingError,
        MasterDownError,
        ClusterError,
    )
    return isinstance(error, kinds) or "max number of clients" in str(error)


# -- what the server says --------------------------------------------------------------------------


def _of_reply(target: InstanceTarget, error: RedisError) -> Failure:
    text = str(error)
    lower = text.lower()
    if text.startswith("DENIED"):
        cure = (
            "set a password there (requirepass), or turn protected-mode off, and bind it to this "
            "network"
        )
        return Failure("it is in protected mode and takes connections of its own host only", cure)
    recognised = _of_credentials(target, error, lower) or _of_unknown_command(text)
    if recognised is not None:
        return recognised
    if "db index" in lower or "invalid db" in lower:
        return Failure(
            "it has no database of that number", "name a database it has", InstanceRefusedError
        )
    if "not allowed in cluster mode" in lower:
        cause, cure = CLUSTER.split("; ")
        return Failure(cause, cure, InstanceRefusedError)
    if isinstance(error, BusyLoadingError) or lower.startswith("loading"):
        return Failure("it is still loading its data", "wait until it is ready")
    if lower.startswith("busy "):
        return Failure(
            "a script runs there and keeps it busy",
            "wait until it ends, or stop it with SCRIPT KILL",
        )
    if "max number of clients" in lower:
        return Failure(
            "it has as many clients as it allows", "raise its maxclients, or close some of them"
        )
    if isinstance(error, MasterDownError):
        return Failure("it is a replica whose primary is down", REPLICA.split("; ")[1])
    return Failure(_quoted(target, error), "look into the log of the server")


def _of_credentials(target: InstanceTarget, error: RedisError, lower: str) -> Failure | None:
    if "noauth" in lower or "authentication required" in lower:
        cure = "write redis://user:password@host:port"
        return Failure("it asks for a password", cure, InstanceRefusedError)
    if "without any password configured" in lower or "no password is set" in lower:
        return Failure(
            "its URL has a password, and the server has none",
            "take it out of the URL",
            InstanceRefusedError,
        )
    if isinstance(error, NoPermissionError):
        command = _FORBIDDEN_COMMAND.search(str(error))
        what = f"it may not run '{command[1].lower()}'" if command else ""
        cure = "the README lists the minimum"
        if not what:
            kind, sign = ("channels", "&") if "channel" in lower else ("keys", "~")
            beginning = f" that begin with {target.key_prefix}" if target.key_prefix else ""
            what = f"it may not touch {kind}{beginning}"
            cure = f"allow them, {sign}{target.key_prefix}*"
        return Failure(f"this user's ACL is too narrow ({what})", cure, InstanceRefusedError)
    if isinstance(error, AuthenticationError):
        if target.options.get("username") and not target.options.get("password"):
            cause = "its URL has a user and no password, and the server refuses that"
            return Failure(cause, "write redis://user:password@host:port", InstanceRefusedError)
        return Failure(
            "wrong user name or password",
            "mend them in the URL of this instance",
            InstanceRefusedError,
        )
    return None


def _of_unknown_command(text: str) -> Failure | None:
    """A server quotes the arguments of a command that it does not know, those of AUTH, too: only
    its name is shown."""
    match = _UNKNOWN_COMMAND.search(text)
    if match is None:
        return None
    name = (match[1] or match[2] or "").upper()
    if name == "AUTH":
        cure = (
            "take user name and password out of its URL, or give the address of the server itself"
        )
        return Failure("it does not know the command AUTH", cure)
    if name == "INFO":
        cause = "it does not know the command INFO, so nobody can tell one server from another"
        return Failure(cause, PROXY, InstanceRefusedError)
    what = f"the command {name}" if name in _COMMANDS else "a command of the handshake"
    return Failure(f"it does not know {what}", PROXY)


# -- TLS -------------------------------------------------------------------------------------------

# By the numbers that OpenSSL gives to X509_V_ERR_….
_CERTIFICATES = {
    9: ("its certificate is not valid yet", "mend the clock of this machine, or the certificate"),
    10: ("its certificate has expired", "renew it on the server"),
    62: (
        "its certificate is for another host name",
        "use a name that it is for, or ?ssl_check_hostname=false",
    ),
    64: (
        "its certificate is for another address",
        "use a name that it is for, or ?ssl_check_hostname=false",
    ),
}
_PLAIN = ("it speaks plain Redis and no TLS", "use redis:// instead of rediss://")
# X509_V_ERR_… of OpenSSL's strict mode (RFC 5280), which Python asks for from 3.13 on.
_STRICT = range(80, 95)
_UNKNOWN_CA = (2, 18, 19, 20, 21)
_CLIENT_CERTIFICATE = (
    "CERTIFICATE_REQUIRED",
    "ALERT_HANDSHAKE_FAILURE",
    "ALERT_BAD_CERTIFICATE",
    "PEER_DID_NOT_RETURN",
)
_VERSIONS = (
    "PROTOCOL_VERSION",
    "UNSUPPORTED_PROTOCOL",
    "NO_SHARED_CIPHER",
    "NO_PROTOCOLS",
    "UNSUPPORTED_VERSION",
)


def _of_tls(target: InstanceTarget, error: ssl.SSLError, peer: Peer | None) -> Failure:
    reason = (peer.alert if peer is not None else "") or str(error.reason or "")
    if isinstance(error, ssl.SSLCertVerificationError):
        cause, cure = _CERTIFICATES.get(
            error.verify_code, ("its certificate cannot be verified", "mend it")
        )
        if error.verify_code in _UNKNOWN_CA:
            cause = f"its certificate is of an unknown CA ({error.verify_message})"
            cure = "name the file of that CA with ?ssl_ca_certs=FILE"
        if error.verify_code in _STRICT:
            cause = f"its certificate or that of its CA breaks RFC 5280 ({error.verify_message})"
            cure = "make that certificate anew; Python demands this from 3.13 on"
        return Failure(f"the TLS handshake failed: {cause}", cure, InstanceRefusedError)
    if peer is not None and peer.speech is Speech.REDIS:
        return Failure(*_PLAIN)
    if "UNKNOWN_CA" in reason:
        cure = "give one of a CA that it trusts with ?ssl_certfile=FILE and ?ssl_keyfile=FILE"
        return Failure("the server does not trust our certificate", cure, InstanceRefusedError)
    if any(word in reason for word in _CLIENT_CERTIFICATE):
        cure = "give one with ?ssl_certfile=FILE and ?ssl_keyfile=FILE"
        return Failure("the server asks for a certificate of ours", cure, InstanceRefusedError)
    if any(word in reason for word in _VERSIONS):
        cure = "mend ?ssl_min_version and ?ssl_ciphers, or the server's"
        return Failure(
            "server and client have no version of TLS or no cipher in common",
            cure,
            InstanceRefusedError,
        )
    if peer is not None and (closer_look := _of_peer(target, b"", peer)) is not None:
        return closer_look
    name = reason.replace("_", " ").lower() or "the connection ended in it"
    return Failure(f"the TLS handshake failed: {name}", "look into the log of the server")


def _of_files(target: InstanceTarget) -> Failure | None:
    """The first file of the URL's TLS options that cannot be used."""
    for option in ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"):
        path = target.options.get(option)
        if path is None:
            continue
        try:
            if option == "ssl_ca_path":
                _listed(path)
            else:
                with open(path, "rb"):  # noqa: PTH123 - a URL's text
                    pass
        except OSError as error:
            cause = f"the file of its option {option} cannot be read: {path} ({error.strerror})"
            return Failure(cause, f"mend the path in {option}", InstanceRefusedError)
    return _of_contents(target)


def _listed(path: str) -> None:
    import os

    os.scandir(path).close()


def _of_contents(target: InstanceTarget) -> Failure | None:
    options = target.options
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority = {"cafile": options.get("ssl_ca_certs"), "cadata": options.get("ssl_ca_data")}
    try:
        if any(authority.values()):
            context.load_verify_locations(**authority)
    except (OSError, ValueError):
        name = "ssl_ca_certs" if authority["cafile"] else "ssl_ca_data"
        return Failure(
            f"its option {name} holds no certificate",
            "give it certificates in PEM",
            InstanceRefusedError,
        )
    if options.get("ssl_certfile") is None:
        return None
    try:
        context.load_cert_chain(
            options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password") or ""
        )
    except (OSError, ValueError):
        cause = "its options ssl_certfile, ssl_keyfile and ssl_password do not fit together"
        return Failure(
            cause,
            "give a certificate, its key, and the key's password, in PEM",
            InstanceRefusedError,
        )
    return None


# -- what the system says --------------------------------------------------------------------------


def _of_system(
    target: InstanceTarget, chain: list[BaseException], heard: bytes, peer: Peer | None
) -> Failure | None:
    for error in chain:
        if isinstance(error, socket.gaierror):
            if error.errno == socket.EAI_AGAIN:
                return Failure(
                    "the resolver does not answer for the name of its host",
                    "mend the host's name, or DNS",
                )
            if "%" in str(target.options.get("host")):
                cause = "this machine has no interface of that zone, or the address takes none"
                return Failure(
                    cause,
                    "a zone is for fe80:: addresses and names an interface here, [fe80::1%eth0]",
                )
            return Failure("the name of its host is not known", "mend the host's name")
        if isinstance(error, UnicodeError):
            return Failure("the name of its host cannot be a host's name", "mend the host's name")
    numbers = [
        error.errno for error in chain if isinstance(error, OSError) and error.errno is not None
    ]
    for number in numbers:
        recognised = _SOCKET_FILES.get(number) if "path" in target.options else _NETWORK.get(number)
        if recognised is not None:
            return Failure(*recognised)
        if number in (errno.EMFILE, errno.ENFILE):
            return Failure(
                "this process has no file descriptor left", "raise the limit (ulimit -n)"
            )
    if any(isinstance(error, RedisTimeoutError | TimeoutError) for error in chain):
        return _of_silence(target, heard, peer)
    return None


_NETWORK = {
    errno.ECONNREFUSED: ("connection refused", "start it, or mend its port"),
    errno.EHOSTUNREACH: (
        "there is no route to its host",
        "mend the address, or the network between",
    ),
    errno.ENETUNREACH: (
        "there is no route to its network",
        "mend the address, or the network between",
    ),
    errno.EADDRNOTAVAIL: (
        "this machine has no address or no port left for it",
        "mend the address, or close sockets",
    ),
    errno.EACCES: ("this machine's firewall forbids the connection", "allow it"),
    errno.EINVAL: (
        "the address cannot be used on this machine",
        "an fe80:: address needs its interface, [fe80::1%eth0]",
    ),
    errno.ETIMEDOUT: (
        "nobody answers at its address",
        "start it, mend the address, or open the firewall between",
    ),
}
_SOCKET_FILES = {
    errno.ENOENT: ("there is no such socket", "start the server, or mend the path"),
    errno.ENOTDIR: ("there is no such socket", "mend the path"),
    errno.ECONNREFUSED: (
        "nobody listens on this socket",
        "start the server; what is there is a file it left, or none",
    ),
    errno.EACCES: (
        "this user may not use the socket",
        "give the user the right to write to it, or its folder",
    ),
    errno.EPERM: (
        "this user may not use the socket",
        "give the user the right to write to it, or its folder",
    ),
    errno.EAGAIN: ("its queue of connections is full", "is the server stopped or overloaded?"),
    errno.ENOTSOCK: ("this path is no socket", "mend the path"),
    errno.EPROTOTYPE: ("this path is a socket of another type", "mend the path"),
}


def _of_silence(target: InstanceTarget, heard: bytes, peer: Peer | None) -> Failure:
    """Nothing came in time, or not all of it."""
    kind = InstanceTimeoutError
    if heard:
        return Failure(
            "it began to answer and did not end in time", "is it busy? Then try later", kind
        )
    if peer is not None and peer.speech is Speech.REDIS:
        if target.is_tls:
            return Failure(*_PLAIN, kind)
        return Failure(
            "it answers PING, but not what it was asked", "is it busy? Then try later", kind
        )
    if peer is not None and (closer_look := _of_peer(target, b"", peer)) is not None:
        return Failure(closer_look.cause, closer_look.cure, kind)
    return Failure("nothing was heard in time", "is it up, and no firewall between?", kind)


# -- what was heard, or seen by a closer look ------------------------------------------------------


def _of_peer(target: InstanceTarget, heard: bytes, peer: Peer | None) -> Failure | None:
    speech = speech_of(heard) or (peer.speech if peer is not None else None)
    if speech is Speech.TLS and not target.is_tls:
        return Failure("it speaks TLS", "use rediss:// instead of redis://")
    if speech in (Speech.HTTP, Speech.SSH):
        return Failure(f"it speaks {speech.value} and not the Redis protocol", "mend its port")
    if speech is Speech.OTHER:
        first = _line(heard or (peer.heard if peer is not None else b""))
        return Failure(
            f"it does not speak the Redis protocol: it begins with {first}", "mend its port"
        )
    if speech is Speech.HANGS_UP:
        cause = "it accepts connections and closes them without a word"
        return Failure(
            cause,
            "nothing may run behind this port (a proxy, a port forward): start what is behind it",
        )
    if speech is Speech.SILENT:
        cause = "it accepts connections and says nothing"
        return Failure(
            cause, "is the server stopped, overloaded, or behind a proxy that has lost it?"
        )
    return None


def _of_end(chain: list[BaseException], heard: bytes, peer: Peer | None) -> Failure | None:
    """The connection ended after the peer was understood, or nobody had a closer look."""
    text = str(chain[-1]).lower()
    numbers = {error.errno for error in chain if isinstance(error, OSError)}
    if any(isinstance(error, InvalidResponse) for error in chain):
        return Failure(
            f"it does not speak the Redis protocol: it begins with {_line(heard)}", "mend its port"
        )
    if "closed by server" not in text and not numbers & {errno.ECONNRESET, errno.EPIPE}:
        return None
    if peer is not None and peer.speech is Speech.REDIS:
        return Failure(
            "it answers PING, and closes the connection when it is asked for more", PROXY
        )
    return Failure(
        "it closed the connection in the handshake", "is it up, and is something behind this port?"
    )


def _line(heard: bytes) -> str:
    """The first line of what a stranger said, as text that can be shown."""
    line = heard.split(b"\n", 1)[0].strip()[:40]
    return repr(line.decode("ascii", "replace").replace("\ufffd", "?")) if line else "an empty line"


def _quoted(target: InstanceTarget, error: Any, what: str = "it answered") -> str:
    """A text that is not known, in one line; of one that holds a secret only its first word, which
    is the code."""
    text = " ".join(str(error).split())
    code = getattr(error, "status_code", None) or text.partition(" ")[0]
    code = code if _CODE.fullmatch(code) else type(error).__name__
    if not text or target.mask(text) != text:
        return f"{what} with the error {code}"
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"{what}: {shown[:LONGEST_QUOTE].rstrip('.')}"
