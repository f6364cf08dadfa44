"""Reads the URL of one instance.

Input: a URL. Output: the scheme, the place and the options of the URL. For a wrong URL, the output
is an exception with one sentence.

Rules: lockcore reads the options of a URL that `READ` lists. lockcore ignores the options in
`IGNORED`, because it decides these values itself, and it warns the caller. lockcore refuses every
other option. redis-py gets only options that lockcore has read, so the user never sees another
library's error texts. Schemes may have upper-case letters. No sentence contains a password.
"""

import difflib
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict, cast
from urllib.parse import parse_qsl, unquote

from lockcore.mask import SCHEMES, Transport, shown

# Linux limits the length of a socket's path.
LONGEST_SOCKET_PATH = 107  # bytes
_PARTS = re.compile(r"(?s)([^/?#]*)([^?#]*)\??([^#]*)(?:#.*)?")
_PLACE = re.compile(
    r"(?:\[(?P<address>[0-9a-fA-F:.]+)(?P<zone>%[\w.%-]+)?\]|(?P<name>(?!\[)[^:]*))"
    r"(?::(?P<port>[^:]*))?"
)
_BARE_6 = re.compile(r"[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*(%[\w.%-]+)?(:\d+)?")
_IN_BRACKETS = "an IPv6 address needs brackets, as in redis://[::1]:6379"
_ENCODE = "percent-encode the special characters of the user name and the password"
_CURE = "use redis://host:port (TLS: rediss) or unix://path"


OptionValue = str | int | list[ssl.VerifyFlags]


class TlsOptions(TypedDict, total=False):
    """The TLS options of a URL, in the form of keyword arguments for redis-py's connections."""

    ssl_ca_certs: str
    ssl_ca_path: str
    ssl_ca_data: str
    ssl_certfile: str
    ssl_keyfile: str
    ssl_password: str
    ssl_cert_reqs: str
    ssl_check_hostname: bool
    ssl_min_version: ssl.TLSVersion
    ssl_ciphers: str
    ssl_include_verify_flags: list[ssl.VerifyFlags]
    ssl_exclude_verify_flags: list[ssl.VerifyFlags]


class UrlOptions(TlsOptions, total=False):
    """The parts of a URL, in the form of keyword arguments for redis-py's connections.

    A server on TCP has `host` and `port`, and a server on a unix socket has `path`.
    """

    host: str
    port: int
    path: str
    db: int
    username: str
    password: str
    client_name: str


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a URL.

    `read` converts the option's text to a value for redis-py. `read` raises an exception if the
    text does not fit `meaning`.
    """

    meaning: str = "text"
    read: Callable[[str], OptionValue] = str


def _ciphers(text: str) -> str:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(text)
    return text


def _verify_flags(text: str) -> list[ssl.VerifyFlags]:
    return [ssl.VerifyFlags[name.strip()] for name in text.strip("[]").split(",")]


def _matching(pattern: str) -> Callable[[str], str]:
    """A function that checks a text against `pattern` and returns the text unchanged."""

    def read(text: str) -> str:
        _require(pattern, text, pattern)
        return text

    return read


def _chosen(values: Mapping[str, OptionValue]) -> Callable[[str], OptionValue]:
    """A function that takes one of the words in `values` and returns the word's value."""
    return lambda text: values[text.lower()]


_TEXT = Option()
_FLAGS = Option("names of ssl.VerifyFlags, separated by commas", _verify_flags)
_CHECKS = ("none", "optional", "required")
READ: Mapping[str, Option] = {
    "db": Option("a whole number", lambda text: int(_matching("[0-9]{1,9}")(text))),
    "username": _TEXT,
    "password": _TEXT,
    "client_name": Option("a name of printable ASCII without spaces", _matching("[!-~]+")),
    "ssl_ca_certs": _TEXT,
    "ssl_ca_path": _TEXT,
    "ssl_ca_data": _TEXT,
    "ssl_certfile": _TEXT,
    "ssl_keyfile": _TEXT,
    "ssl_password": _TEXT,
    "ssl_cert_reqs": Option(
        "none, optional or required",
        _chosen({f"{before}{name}": name for name in _CHECKS for before in ("", "cert_")}),
    ),
    "ssl_check_hostname": Option(
        "true or false",
        _chosen(
            dict.fromkeys(("true", "yes", "on", "1"), True)
            | dict.fromkeys(("false", "no", "off", "0"), False)
        ),
    ),
    "ssl_min_version": Option(
        "1.2 or 1.3", _chosen({"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3})
    ),
    "ssl_ciphers": Option("a list of ciphers in the format of OpenSSL", _ciphers),
    "ssl_include_verify_flags": _FLAGS,
    "ssl_exclude_verify_flags": _FLAGS,
}
IGNORED = (
    "timeout",
    "socket_timeout",
    "socket_connect_timeout",
    "retry_on_timeout",
    "retry_on_error",
    "max_connections",
    "single_connection_client",
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
)

# Options that other clients know. The text says what to do instead.
REFUSED: Mapping[str, str] = {
    "ssl|tls": "write rediss:// for TLS, or redis:// for no TLS",
    "ssl_.*ocsp.*": "lockcore cannot check OCSP; leave the option out",
    "host|port|path|unix_socket_path": "write this value before the question mark, as in "
    "redis://host:port",
    ".*sentinel.*|(master|service)_name": "Redlock needs the instances themselves, not a Sentinel",
}


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a URL.

    `place` is host:port or the path of the socket. No other part of the URL may appear in a text.
    `options` are keyword arguments of redis-py's connections. `ignored` contains a sentence for
    each option of the URL that has no effect.
    """

    transport: Transport
    place: str
    options: UrlOptions = field(repr=False)
    ignored: tuple[str, ...]


def address_of(url: object) -> Address:
    """Read one URL. Raises ValueError with one sentence, without the URL's password."""
    scheme, mark, after = str(url).partition("://")
    transport = SCHEMES.get(scheme.lower())
    try:
        if not isinstance(url, str) or not mark:
            raise ValueError(_CURE)
        _require(r"\S*", scheme, "remove the space or line break before the ://")
        _require(
            "(?i)(?!.*(sentinel|cluster)).*",
            scheme,
            "Redlock needs independent instances; name each one as redis://host:port",
        )
        if transport is None:
            raise ValueError(f"lockcore knows no {scheme[:30]}://; {_CURE}")
    except ValueError as error:
        text = shown(str(url).strip())
        raise ValueError(f"{text!r} is not an instance URL: {error}") from None
    parts = _PARTS.fullmatch(after)
    try:
        assert parts is not None
        netloc, path, query = parts.groups()
        read = _unix if transport is Transport.UNIX else _tcp
        place, where = read(after, netloc, path)
        options, ignored = _read_options(query, transport)
        if "db" in where and options.get("db", where["db"]) != where["db"]:
            raise ValueError(
                "the URL names two databases, one after the slash and one in ?db=; remove one "
                "of them"
            )
        user, _, password = netloc.rpartition("@")[0].partition(":")
        named = {"username": unquote(user), "password": unquote(password)}
        credentials = {name: value for name, value in named.items() if value}
        # Each name comes from `READ` or from this file, so it is a key of `UrlOptions`.
        every = cast("UrlOptions", {**where, **credentials, **options})
        return Address(transport, place, every, ignored)
    except ValueError as error:
        raise ValueError(f"{shown(url)!r} is not a usable instance URL: {error}") from None


def _require(pattern: str, text: str, sentence: str) -> None:
    """Raises ValueError with `sentence` if `pattern` does not match the whole text."""
    if not re.fullmatch(pattern, text, re.DOTALL):
        raise ValueError(sentence)


def _tcp(after: str, netloc: str, path: str) -> tuple[str, UrlOptions]:
    _require(
        r"[^\x00-\x1f\x7f]*",
        after,
        "the URL contains a control character; percent-encode the character",
    )
    _require("[^@]*", after[len(netloc) :], _ENCODE)
    place = netloc.rpartition("@")[2]
    if _BARE_6.fullmatch(place):
        raise ValueError(_IN_BRACKETS)
    _require("(?!:[^@]*$).*", netloc, "the URL names no host; write the host after the @")
    _require("[^,]*", place, "the URL names several instances; give each instance a URL of its own")
    match = _PLACE.fullmatch(place)
    if match is None:
        raise ValueError(_IN_BRACKETS)
    if match["address"]:
        # A % may be written as %25.
        host = match["address"] + re.sub("^%25", "%", match["zone"] or "")
    else:
        host = unquote(match["name"]) or "localhost"
        _require(r"[\w.-]{1,253}", host, "the host is neither a name nor an address")
        _require(
            r"([^.]{1,63}\.)*[^.]{0,63}",
            host,
            "a part of the host name is empty or longer than 63 letters",
        )
    port = match["port"] or "6379"
    if not re.fullmatch("[0-9]{1,9}", port) or not 0 < int(port) < 65_536:
        raise ValueError("the port must be a number from 1 to 65535")
    _require("/?[0-9]*/?", path, "the database after the slash must be a number")
    where: UrlOptions = {"host": host, "port": int(port)}
    if database := path.strip("/"):
        where["db"] = int(database)
    return (f"[{host}]" if ":" in host else host) + f":{int(port)}", where


def _unix(after: str, netloc: str, path: str) -> tuple[str, UrlOptions]:
    # A path may also contain an @.
    if netloc and "@" not in netloc:
        _require("[^@]*", after, _ENCODE)
    path = unquote(path)
    _require(".+", path, "the URL names no socket; write unix:///path/to/server.sock")
    _require(
        "|.*@.*",
        netloc,
        "the path of a socket begins with a slash; write three slashes, as in "
        "unix:///path/to/server.sock",
    )
    _require(r"[^\0]*", path, "the path of the socket contains a NUL character")
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise ValueError(
            f"the path of the socket is longer than {LONGEST_SOCKET_PATH} bytes; use a shorter path"
        )
    return path, {"path": path}


def _read_options(
    query: str, transport: Transport
) -> tuple[dict[str, OptionValue], tuple[str, ...]]:
    """Read the options of a URL.

    Returns the values of the options, and a sentence for each ignored option.
    """
    values: dict[str, OptionValue] = {}
    ignored: dict[str, None] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        for pattern, cure in REFUSED.items():
            if re.fullmatch(pattern, name, re.IGNORECASE):
                raise ValueError(f"option {name} cannot be used: {cure}")
        if name in values:
            raise ValueError(f"option {name} appears twice; remove one of the two")
        if name in IGNORED:
            ignored[f"option {name} of the URL is ignored, because lockcore sets it itself"] = None
            continue
        if name not in READ:
            raise ValueError(f"the URL has an unknown option{_meant(name)}")
        if name.startswith("ssl") and transport is not Transport.TLS:
            raise ValueError(
                f"option {name} is for TLS, but this URL does not use TLS; write rediss://"
            )
        if not text:
            raise ValueError(f"option {name} has no value")
        option = READ[name]
        try:
            values[name] = option.read(text)
        except (ValueError, LookupError, ssl.SSLError):
            raise ValueError(f"option {name} must be {option.meaning}") from None
    if "ssl_keyfile" in values and "ssl_certfile" not in values:
        raise ValueError(
            "option ssl_keyfile needs option ssl_certfile with the certificate of that key"
        )
    return values, tuple(ignored)


def _meant(name: str) -> str:
    """Return the end of a sentence about an unknown option. It contains the option's name. If a
    known option has a similar name, it contains this name, too.

    If the name may be a part of a password, the result does not contain the name.
    """
    readme = "; the README lists the supported options"
    if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name, re.IGNORECASE) or len(name) > 40:
        return readme
    best = difflib.get_close_matches(name.lower(), [*READ, *IGNORED], n=1, cutoff=0.6)
    return f", {name}" + (f"; did you mean {best[0]}?" if best else readme)
