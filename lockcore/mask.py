"""Hides secrets in texts.

Pure. Input: URLs and any text. Output: the text with `***` in place of each secret.

Rules: this is the only mask of the project. lockbench masks every text that contains words of a
library, a server or a user before it shows the text. The password of a URL is secret. A single word
before the @ is also secret. If another text replaces the port or the database number, this text is
secret. Every option that is not on the list of harmless options is secret. The mask hides a secret
in every form in which a text may quote it. The mask also finds a percent-decoded secret, and a
secret that Python, JSON or HTML has escaped. The mask even finds a secret whose end is cut off. If
there are two ways to read a URL, the mask uses the way that hides more.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from urllib.parse import quote, unquote


class Transport(Enum):
    """The kind of connection to an instance."""

    TCP = "TCP"
    TLS = "TLS"
    UNIX = "unix socket"


# The schemes of instances, in lower case.
SCHEMES: Mapping[str, Transport] = {
    **dict.fromkeys(("redis", "valkey", "redis+tcp", "valkey+tcp"), Transport.TCP),
    **dict.fromkeys(
        ("rediss", "valkeys", "redis+tls", "valkey+tls", "redis+ssl", "valkey+ssl"), Transport.TLS
    ),
    **dict.fromkeys(
        ("unix", "redis+unix", "valkey+unix", "redis-socket", "redis+socket", "valkey-socket"),
        Transport.UNIX,
    ),
}
HIDDEN = "***"

# A secret with fewer characters is hidden only if it stands alone, not inside a word.
SHORT = 4

# A secret that is cut off is hidden if at least this number of its first characters is left.
CUT_OFF = 16
_HARMLESS = re.compile(
    r"(db|protocol|client_name|health_check_interval|max_connections|.*timeout"
    r"|ssl_(ca|cert|check|min)\w*)"
)
_SECRETIVE = re.compile(r"pass|pwd|secret|token|auth|cred", re.IGNORECASE)
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>`]*")

# Our own sentences show the form of a URL like this.
_EXAMPLE = "user:password@"
_USER = re.compile(r"[^\s/@'\"(]*:[^\s/@'\"]*@")

# The pattern of what `shown` returns. A second masking must not change such a text.
_MASKED = re.compile(r"[\w.%-]*:\*\*\*@")
_PLACE = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.]*(?:%[\w.%-]*)?\]|[\w.%-]*)(?P<port>:(?:\d{1,5}|port))?"
)
_HOST = re.compile(r"[\w.%-]*")

# The pattern of a secret that looks like a word or a number of a sentence.
_ORDINARY = re.compile(r"[a-zA-Z_.:-]+|[\d.:]+")
# `-a` is the password option of redis-cli and valkey-cli.
_SECRET_OPTION = re.compile(r"^(--?[a-z-]*(?:pass|secret|token)[a-z-]*|-a)(=.*)?$", re.IGNORECASE)
# The pattern of such an option within an argument that is a command line itself.
_SECRET_OPTION_WITHIN = re.compile(
    r"((?<=\s)(?:--?[a-z-]*(?:pass|secret|token)[a-z-]*|-a)(?:=|\s+))('[^']*'|\"[^\"]*\"|\S+)",
    re.IGNORECASE,
)


def shown(url: object) -> str:
    """A URL without secrets: scheme, user, host, port, database or path, and harmless options.

    >>> shown("redis://ann:hunter2@db:7000/3?ssl_password=x&db=1")
    'redis://ann:***@db:7000/3?ssl_password=***&db=1'
    """
    text = str(url)
    scheme, mark, rest = text.partition("://")
    credentials, at, after = rest.rpartition("@") if mark else text.rpartition("@")
    if not mark:
        return f"{HIDDEN}@{after}" if at else text
    if re.search(r"[?&]\w+=", credentials):
        # An option has an @, so the parts of the URL cannot be distinguished.
        return f"{scheme}://{HIDDEN}"
    user, colon, _ = credentials.partition(":")
    who = f"{user}:{HIDDEN}" if colon and _HOST.fullmatch(user) else HIDDEN
    place, path, query = _split(after)
    prefix = f"{who}@" if at else ""
    return f"{scheme}://{prefix}{_place_of(place)}{_path_of(scheme, path)}{_options_of(query)}"


def _split(rest: str) -> tuple[str, str, str]:
    """Split the part of a URL behind the @ into place, path and options, without the #fragment."""
    rest, _, query = rest.partition("#")[0].partition("?")
    place, slash, path = rest.partition("/")
    return place, slash + path, query


def _place_of(place: str) -> str:
    match = _PLACE.fullmatch(place)
    if not place or (match and (match["host"] or not match["port"])):
        return place
    host = place.partition(":")[0]
    return f"{host if _HOST.fullmatch(host) else HIDDEN}:{HIDDEN}"


def _path_of(scheme: str, path: str) -> str:
    has_database = SCHEMES.get(scheme.lower()) in (Transport.TCP, Transport.TLS)
    if has_database and path.strip("/") and not path.strip("/").isdigit():
        return f"/{HIDDEN}"
    return path


def _options_of(query: str) -> str:
    options = [option.partition("=") for option in query.split("&") if query]
    parts = [
        f"{name}{equals}{value if _HARMLESS.fullmatch(name) else HIDDEN}"
        for name, equals, value in options
    ]
    return "?" + "&".join(parts) if parts else ""


def is_secretive(url: str) -> bool:
    """True if `shown` hides a part of the URL."""
    return shown(url) != url


def secrets_of(url: str) -> set[str]:
    """Every part of a URL that may be a secret, as it is written in the URL.

    The URL may be malformed.
    """
    _, mark, rest = url.partition("://")
    credentials, at, after = rest.rpartition("@") if mark else url.rpartition("@")
    secrets: set[str] = set()
    if at:
        user, colon, password = credentials.partition(":")
        secret = password if colon else user
        secrets |= {secret, *(piece for piece in re.split(r"[/?#@:]", secret) if len(piece) > 1)}
    for part in (rest, after):
        place, path, query = _split(part)
        host, colon, port = ("", "", "") if at and part is rest else place.rpartition(":")
        if colon and "]" not in port and (not host or not port.isdigit() or len(port) > 5):
            secrets |= {port, place.partition(":")[2]}
        for name, _, value in (option.partition("=") for option in query.split("&")):
            if _SECRETIVE.search(name) or not (_HARMLESS.fullmatch(name) or len(value) < SHORT):
                secrets |= {value, *value.split("@")}
        if not path.strip("/").isdigit() and "@" in path:
            secrets.add(path.strip("/"))
    return {secret for secret in secrets if secret}


def _forms(secret: str) -> set[str]:
    """The forms in which a secret may be quoted."""
    plain = unquote(secret)
    escaped = {
        repr(plain)[1:-1],
        ascii(plain)[1:-1],
        repr(plain.encode())[2:-1],
        json.dumps(plain)[1:-1],
    }
    return {secret, plain, quote(plain, safe=""), quote(plain), html.escape(plain), *escaped}


class Mask:
    """Hides the secrets of the learned URLs in a text.

    It also hides the secrets of every other URL in the text.
    """

    def __init__(self, *urls: str) -> None:
        # The longest secret comes first.
        self._secrets: list[str] = []
        # The parts of the same URLs that are shown: users, hosts, ports, paths.
        self._public: set[str] = set()
        for url in urls:
            self.learn(url)

    def learn(self, urls: object) -> None:
        """Hide the secrets of these URLs from now on.

        `urls` is one URL, or several URLs with spaces or commas between them.
        """
        if not isinstance(urls, str):
            return
        secrets = [secrets_of(url) for url in re.split(r"[\s,]+(?=[\w+.-]+://)", urls)]
        forms = {form for secret in set().union(*secrets) for form in _forms(secret)}
        self._secrets = sorted(forms.union(self._secrets), key=len, reverse=True)
        for url in re.split(r"[\s,]+(?=[\w+.-]+://)", urls):
            self._public |= set(re.split(r"[/@:?&=]+", shown(url)))

    def __call__(self, text: object) -> str:
        """The text without the secrets."""
        masked = str(text)
        for secret in self._secrets:
            masked = _without(masked, secret)
        return _urls_shown(masked)

    # A password may be a word "or", a number, or a host. If the mask hid such a secret in one of
    # our own sentences, it would destroy the sentence, and the gap would reveal the password. So in
    # our own sentences the mask hides only secrets that do not look like words. Texts of others
    # pass through the whole mask before we quote them, so our sentences normally contain no secret.
    def sentence(self, text: str) -> str:
        """Hide the secrets in a sentence of lockcore or lockbench, which may contain a URL."""
        masked = _urls_shown(text)
        for secret in self._secrets:
            if len(secret) < SHORT or _ORDINARY.fullmatch(secret):
                continue
            if any(secret in part for part in self._public):
                continue
            masked = _without(masked, secret)
        return masked


def _urls_shown(text: str) -> str:
    """The text without the secrets of its URLs.

    The secrets of a URL are hidden even if no mask has learned the URL.
    """
    if "@" in text or "://" in text:
        return _USER.sub(_user_hidden, _URL.sub(_url_shown, text))
    return text


def _without(text: str, secret: str) -> str:
    """The text with `***` in place of one secret.

    If the text has only the beginning of the secret, `***` replaces this beginning.
    """
    if len(secret) < SHORT:
        return re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
    text = text.replace(secret, HIDDEN)
    start = secret[:CUT_OFF]
    at = -1
    while len(secret) > CUT_OFF and (at := text.find(start, at + 1)) >= 0:
        pairs = enumerate(zip(text[at:], secret, strict=False))
        end = at + next((number for number, (a, b) in pairs if a != b), len(secret))
        end = min(end, len(text))
        if not text[end : end + 1].isalnum():
            text = text[:at] + HIDDEN + text[end:]
    return text


def _url_shown(match: re.Match[str]) -> str:
    text = match[0]
    if _EXAMPLE in text:
        return text
    end = len(text.rstrip(".,;:)]}!"))
    return shown(text[:end]) + text[end:]


def _user_hidden(match: re.Match[str]) -> str:
    text = match[0]
    return text if text.endswith(_EXAMPLE) or _MASKED.fullmatch(text) else f"{HIDDEN}@"


def masked_command(arguments: Sequence[str]) -> list[str]:
    """The command line without secrets.

    The secrets of URLs and the values of password options become `***`.
    """
    masked: list[str] = []
    hide_next = False
    for argument in arguments:
        option = _SECRET_OPTION.match(argument)
        name, equals, value = (
            argument.partition("=") if argument.startswith("-") else ("", "", argument)
        )
        if hide_next:
            masked.append(HIDDEN)
        elif option and option[2]:
            masked.append(f"{option[1]}={HIDDEN}")
        else:
            value = _SECRET_OPTION_WITHIN.sub(rf"\1{HIDDEN}", value)
            before, mark, _ = value.partition("://")
            if mark:
                # If other words stand in front of a URL, the URL ends at a space, and more words
                # may follow.
                value = _urls_shown(value) if " " in before else shown(value)
            masked.append(name + equals + value)
        hide_next = bool(option and not option[2]) and not hide_next
    return masked
