"""The address of one instance: *a URL → scheme, place, credentials, options; or one sentence that
says what is wrong*.

Rules: the table `OPTIONS` decides what happens to each option of a URL: it is understood, or
ignored because lockcore decides it (the caller is told), or refused. No other option is passed on,
so no library's own words reach the user. Schemes are read without regard to case. No sentence holds
a password.
"""

import difflib
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import unquote, unquote_plus

from lockcore.mask import SCHEMES, Transport, shown

# The limit is Linux's.
LONGEST_SOCKET_PATH = 107  # bytes
LONGEST_HOST = 253
LONGEST_LABEL = 63
_HOST = re.compile(r"[\w.-]+")
_ADDRESS_6 = re.compile(r"\[(?P<address>[0-9a-fA-F:.]+)(?P<zone>%[\w.%-]+)?\]")
_BARE_6 = re.compile(r"[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*(%[\w.%-]+)?(:\d+)?")
_IN_BRACKETS = "an IPv6 address stands between [ and ], as in redis://[::1]:6379"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ELSEWHERE = re.compile(r"sentinel|cluster", re.IGNORECASE)


class Use(Enum):
    """What becomes of an option."""

    TAKEN = "understood"
    TLS = "understood where the URL asks for TLS"
    IGNORED = "ignored, and the caller is told"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a URL. `read`: its text → redis-py's value, or ValueError with what it should
    be. `why`: of an option that is ignored or refused."""

    use: Use
    read: Callable[[str], Any] = str
    why: str = ""


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError("a whole number")
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() in ("1", "t", "true", "y", "yes", "on"):
        return True
    if text.lower() in ("0", "f", "false", "n", "no", "off"):
        return False
    raise ValueError("true or false")


def _certificate_check(text: str) -> str:
    name = text.lower().removeprefix("cert_")
    if name not in ("none", "optional", "required"):
        raise ValueError("none, optional or required")
    return name


def _tls_version(text: str) -> ssl.TLSVersion:
    versions = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
    number = text.lower().removeprefix("tls").removeprefix("v").replace("_", ".")
    named = versions.get(number) or {str(int(one)): one for one in versions.values()}.get(text)
    if named is None:
        raise ValueError("1.2 or 1.3")
    return named


def _ciphers(text: str) -> str:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(text)
    except ssl.SSLError:
        raise ValueError("a list of ciphers as OpenSSL writes it") from None
    return text


def _verify_flags(text: str) -> list[ssl.VerifyFlags]:
    try:
        return [ssl.VerifyFlags[name.strip()] for name in text.strip("[]").split(",")]
    except KeyError:
        raise ValueError("names of ssl.VerifyFlags with commas between them") from None


def _client_name(text: str) -> str:
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError("a name of printable ASCII without spaces")
    return text


_OURS = "lockcore decides it"
_TIMES = "lockcore has time-outs of its own"
_NO_POOL = "lockcore keeps one connection per instance"
_PROGRAM = "it is an object of a program, and a URL is text; write user and password in the URL"
_PLACE = "write it in front of the ?: redis://user:password@host:port/db"
OPTIONS: Mapping[str, Option] = {
    "db": Option(Use.TAKEN, _whole),
    "username": Option(Use.TAKEN),
    "password": Option(Use.TAKEN),
    "client_name": Option(Use.TAKEN, _client_name),
    "ssl_ca_certs": Option(Use.TLS),
    "ssl_ca_path": Option(Use.TLS),
    "ssl_ca_data": Option(Use.TLS),
    "ssl_certfile": Option(Use.TLS),
    "ssl_keyfile": Option(Use.TLS),
    "ssl_password": Option(Use.TLS),
    "ssl_cert_reqs": Option(Use.TLS, _certificate_check),
    "ssl_check_hostname": Option(Use.TLS, _flag),
    "ssl_min_version": Option(Use.TLS, _tls_version),
    "ssl_ciphers": Option(Use.TLS, _ciphers),
    "ssl_include_verify_flags": Option(Use.TLS, _verify_flags),
    "ssl_exclude_verify_flags": Option(Use.TLS, _verify_flags),
    **dict.fromkeys(
        ("timeout", "socket_timeout", "socket_connect_timeout"), Option(Use.IGNORED, why=_TIMES)
    ),
    **dict.fromkeys(
        ("retry_on_timeout", "retry_on_error"), Option(Use.IGNORED, why="lockcore never does")
    ),
    **dict.fromkeys(
        ("max_connections", "single_connection_client"), Option(Use.IGNORED, why=_NO_POOL)
    ),
    **dict.fromkeys(
        (
            "health_check_interval",
            "protocol",
            "legacy_responses",
            "decode_responses",
            "encoding",
            "encoding_errors",
            "socket_read_size",
            "socket_keepalive",
            "lib_name",
            "lib_version",
            "auto_close_connection_pool",
        ),
        Option(Use.IGNORED, why=_OURS),
    ),
    **dict.fromkeys(("host", "port", "path", "unix_socket_path"), Option(Use.REFUSED, why=_PLACE)),
    **dict.fromkeys(
        (
            "credential_provider",
            "redis_connect_func",
            "retry",
            "cache",
            "cache_config",
            "cache_factory",
            "connection_class",
            "connection_pool",
            "parser_class",
            "command_packer",
            "event_dispatcher",
            "driver_info",
            "maint_notifications_config",
            "socket_keepalive_options",
            "socket_type",
            "himport_registry",
            "ssl_ocsp_context",
        ),
        Option(Use.REFUSED, why=_PROGRAM),
    ),
    **dict.fromkeys(
        ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled", "ssl_ocsp_expected_cert"),
        Option(
            Use.REFUSED, why="lockcore does not check OCSP; leave it out, and know that nobody does"
        ),
    ),
    **dict.fromkeys(
        ("ssl", "tls"), Option(Use.REFUSED, why="write rediss:// for TLS, redis:// for none")
    ),
    **dict.fromkeys(
        ("master_name", "service_name", "sentinel_master_id", "sentinelMasterId", "sentinels"),
        Option(Use.REFUSED, why="Redlock needs the instances themselves, not a Sentinel"),
    ),
}


@dataclass(frozen=True, slots=True)
class Address:
    """What a URL says. `options`: keyword arguments of redis-py's connections. `ignored`: a
    sentence per option that has no effect."""

    transport: Transport
    host: str
    port: int
    path: str
    options: Mapping[str, Any] = field(repr=False)
    ignored: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """host:port or the socket's path: all that may be shown."""
        if self.transport is Transport.UNIX:
            return self.path
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def address_of(url: object) -> Address:
    """Read one URL. Raises ValueError with one sentence, without its password."""
    if not isinstance(url, str) or "://" not in url:
        raise ValueError(
            f"{shown(url)!r} is not an instance URL; use redis://host:port (TLS: rediss) or "
            "unix://path"
        )
    scheme = url.partition("://")[0]
    transport = SCHEMES.get(scheme.lower())
    if any(letter.isspace() for letter in scheme):
        raise ValueError(
            f"{shown(url.strip())!r} is not an instance URL: a space or a line break stands before "
            "its ://; take it out"
        )
    if transport is None:
        cure = "use redis://host:port (TLS: rediss) or unix://path"
        if _ELSEWHERE.search(scheme):
            cure = "Redlock needs independent instances; name each by redis://host:port"
        raise ValueError(
            f"{shown(url)!r} is not an instance URL: lockcore knows no {scheme[:30]}://; {cure}"
        )
    try:
        return _unix_address(url) if transport is Transport.UNIX else _tcp_address(url, transport)
    except ValueError as error:
        raise ValueError(f"{shown(url)!r} is not a usable instance URL: {error}") from None


def _tcp_address(url: str, transport: Transport) -> Address:
    after = url.partition("://")[2]
    if _CONTROL.search(after):
        raise ValueError("it has a control character in it; percent-encode it")
    netloc = re.split("[/?#]", after, maxsplit=1)[0]
    rest = after[len(netloc) :]
    if "@" in rest:
        raise ValueError("percent-encode the special characters of its user name and password")
    credentials, at, place = netloc.rpartition("@")
    if _BARE_6.fullmatch(place):
        raise ValueError(_IN_BRACKETS)
    if place.startswith(":") and not at:
        raise ValueError("it names no host; behind a password there is an @")
    host, port = _host_and_port(place)
    path, _, query = rest.partition("#")[0].partition("?")
    database = path.removeprefix("/").removesuffix("/")
    if database and not (database.isascii() and database.isdigit()):
        raise ValueError("the database after the slash must be a number")
    options, ignored = _read_options(query, transport)
    if database:
        if options.get("db", int(database)) != int(database):
            raise ValueError("it names two databases, after the slash and by ?db=; leave one out")
        options["db"] = int(database)
    return Address(transport, host, port, "", _credentials_of(credentials) | options, ignored)


def _host_and_port(place: str) -> tuple[str, int]:
    if "," in place:
        raise ValueError("it names several instances; give each a URL of its own")
    if place.startswith("["):
        text, bracket, port = place.partition("]")
        match = _ADDRESS_6.fullmatch(text + bracket)
        if match is None or (port and not port.startswith(":")):
            raise ValueError(_IN_BRACKETS)
        zone = match["zone"] or ""
        if zone.startswith("%25"):
            zone = unquote(zone)
        host = match["address"] + zone
        port = port[1:]
    else:
        host, _, port = place.partition(":")
        host = unquote(host) or "localhost"
        if ":" in port:
            raise ValueError(_IN_BRACKETS)
        if not _HOST.fullmatch(host) or len(host) > LONGEST_HOST:
            raise ValueError("its host is not a name or an address")
        if (
            any(len(label) > LONGEST_LABEL for label in host.split("."))
            or ".." in host
            or host.startswith(".")
        ):
            raise ValueError(
                f"a part of its host name is empty or longer than {LONGEST_LABEL} letters"
            )
    if not port:
        return host, 6379
    if not (port.isascii() and port.isdigit()) or not 0 < int(port[:9]) < 65_536:
        raise ValueError("an instance listens on a port from 1 to 65535")
    return host, int(port)


def _unix_address(url: str) -> Address:
    after = url.partition("://")[2]
    place = re.split("[/?#]", after, maxsplit=1)[0]
    rest = after[len(place) :]
    # A path may have an @ of its own.
    if "@" in rest and place and "@" not in place:
        raise ValueError("percent-encode the special characters of its user name and password")
    text, _, query = rest.partition("#")[0].partition("?")
    path = unquote(text)
    if not path:
        raise ValueError("it names no socket; write unix:///path/of/it.sock")
    if place and "@" not in place:
        raise ValueError(
            "the path of a socket begins with a slash: three of them in all, "
            "unix:///path/of/it.sock"
        )
    if "\0" in path:
        raise ValueError("the path of its socket has a NUL in it")
    if len(path.encode(errors="surrogateescape")) > LONGEST_SOCKET_PATH:
        raise ValueError(
            f"the path of its socket is longer than {LONGEST_SOCKET_PATH} bytes; use a shorter one"
        )
    options, ignored = _read_options(query, Transport.UNIX)
    return Address(
        Transport.UNIX, "", 0, path, _credentials_of(place.rpartition("@")[0]) | options, ignored
    )


def _credentials_of(text: str) -> dict[str, Any]:
    user, _, password = text.partition(":")
    named = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in named.items() if value}


def _read_options(query: str, transport: Transport) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What redis-py is told, and a sentence for each option that has no effect."""
    choices: dict[str, Any] = {}
    ignored: list[str] = []
    for name, text in _pairs_of(query):
        option = OPTIONS.get(name)
        if option is None:
            raise ValueError(f"it has an unknown option{_meant(name)}")
        if option.use is Use.REFUSED:
            raise ValueError(f"option {name} cannot be used: {option.why}")
        if name in choices:
            raise ValueError(f"option {name} is given twice; leave one out")
        if option.use is Use.IGNORED:
            ignored.append(f"option {name} of the URL is ignored: {option.why}")
            continue
        if option.use is Use.TLS and transport is not Transport.TLS:
            raise ValueError(
                f"option {name} is for TLS, and this URL does not ask for it; write rediss://"
            )
        if not text:
            raise ValueError(f"option {name} has no value")
        try:
            choices[name] = option.read(text)
        except ValueError as error:
            raise ValueError(f"option {name} must be {error}") from None
    if "ssl_keyfile" in choices and "ssl_certfile" not in choices:
        raise ValueError("option ssl_keyfile needs ssl_certfile, the certificate of that key")
    return choices, tuple(dict.fromkeys(ignored))


def _pairs_of(query: str) -> Iterator[tuple[str, str]]:
    for pair in query.split("&"):
        if pair:
            name, _, text = pair.partition("=")
            yield unquote_plus(name), unquote_plus(text)


def _meant(name: str) -> str:
    """The name of an unknown option, if it cannot be a part of a password, and the one that is
    meant."""
    if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name, re.IGNORECASE) or len(name) > 40:
        return "; the README lists those that are understood"
    best = difflib.get_close_matches(name.lower(), OPTIONS, n=1, cutoff=0.6)
    return f", {name}" + (
        f"; did you mean {best[0]}?" if best else "; the README lists those that are understood"
    )
