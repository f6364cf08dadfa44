"""The URL of an instance: which schemes and options are understood, ignored with a sentence, or
refused with one."""

import random
import string

import pytest

from lockcore.mask import SCHEMES, Transport
from lockcore.shells.common.target import target_of
from lockcore.shells.common.url import IGNORED, READ, address_of


@pytest.mark.parametrize(
    ("url", "transport", "place"),
    [
        ("valkey://host:7000", Transport.TCP, "host:7000"),
        ("valkeys://host", Transport.TLS, "host:6379"),
        ("REDIS://host", Transport.TCP, "host:6379"),
        ("RedisS://host:1", Transport.TLS, "host:1"),
        ("redis+tls://host", Transport.TLS, "host:6379"),
        ("redis+unix:///tmp/a.sock", Transport.UNIX, "/tmp/a.sock"),
        ("valkey+unix:///tmp/a.sock?db=1", Transport.UNIX, "/tmp/a.sock"),
        ("UNIX:///tmp/a%20b.sock", Transport.UNIX, "/tmp/a b.sock"),
        ("unix:///tmp/[/x].sock", Transport.UNIX, "/tmp/[/x].sock"),
        ("redis://[fe80::1%eth0]:7000", Transport.TCP, "[fe80::1%eth0]:7000"),
        ("redis://[fe80::1%25eth0]", Transport.TCP, "[fe80::1%eth0]:6379"),
        ("redis://[fe80::1%ad0]", Transport.TCP, "[fe80::1%ad0]:6379"),
        ("redis://host/3/", Transport.TCP, "host:6379"),
    ],
)
def test_the_usual_schemes_are_read_without_regard_to_case(
    url: str, transport: Transport, place: str
) -> None:
    address = address_of(url)
    assert (address.transport, address.place) == (transport, place)
    assert target_of(url, 1.0, "").is_tls == (transport is Transport.TLS)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "redis-sentinel://host",
            "Redlock needs independent instances; name each one as redis://host:port",
        ),
        ("redis+cluster://host", "Redlock needs independent instances"),
        ("memcached://host", "lockcore knows no memcached://; use redis://host:port"),
        ("redis://a:1,b:2", "the URL names several instances; give each instance a URL of its own"),
        ("redis://::1:7000", "an IPv6 address needs brackets"),
        ("redis://ann:pw@fe80::1%eth0", "an IPv6 address needs brackets"),
        (" redis://host", "remove the space or line break before the ://"),
        ("redis://1::2", "an IPv6 address needs brackets"),
        ("redis://[::1", "an IPv6 address needs brackets"),
        ("redis://" + "a" * 64, "longer than 63 letters"),
        ("redis://a..b", "a part of the host name is empty"),
        ("redis://a b", "the host is neither a name nor an address"),
        ("redis://host\n", "control character"),
        ("redis://host:0", "a number from 1 to 65535"),
        ("redis://host:6379x", "a number from 1 to 65535"),
        ("redis://host/1?db=2", "the URL names two databases"),
        ("redis://host?db=1&db=2", "option db appears twice"),
        ("redis://host?db=", "option db has no value"),
        ("redis://host?db=-1", "option db must be a whole number"),
        (
            "redis://host?credential_provider=5",
            "the URL has an unknown option, credential_provider; the README lists the supported",
        ),
        ("redis://host?retry=3", "the URL has an unknown option, retry; the README"),
        ("redis://host?ssl=true", "write rediss:// for TLS"),
        (
            "redis://host?ssl_cert_reqs=none",
            "option ssl_cert_reqs is for TLS, but this URL does not use TLS",
        ),
        (
            "rediss://host?ssl_cert_reqs=never",
            "option ssl_cert_reqs must be none, optional or required",
        ),
        (
            "rediss://host?ssl_check_hostname=perhaps",
            "option ssl_check_hostname must be true or false",
        ),
        ("rediss://host?ssl_min_version=0.9", "option ssl_min_version must be 1.2 or 1.3"),
        ("rediss://host?ssl_ciphers=nonsense", "option ssl_ciphers must be a list of ciphers"),
        ("rediss://host?ssl_include_verify_flags=X", "names of ssl.VerifyFlags"),
        ("rediss://host?ssl_keyfile=/k", "option ssl_keyfile needs option ssl_certfile"),
        ("rediss://host?ssl_validate_ocsp=true", "lockcore cannot check OCSP"),
        (
            "redis://host?socket_timeuot=1",
            "unknown option, socket_timeuot; did you mean socket_timeout?",
        ),
        ("redis://host?client_name=a%20b", "option client_name must be a name of printable ASCII"),
        ("unix://", "the URL names no socket"),
        ("unix://tmp/a.sock", "begins with a slash"),
        ("unix:///" + "x" * 120, "longer than 107 bytes"),
        ("unix:///a%00b", "NUL"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence_of_ours(url: str, says: str) -> None:
    with pytest.raises(ValueError, match="is not an? (usable )?instance URL: ") as raised:
        target_of(url, 1.0, "")
    assert any(part in str(raised.value) for part in says.split("|"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", IGNORED)
def test_an_option_without_effect_is_told_of(name: str) -> None:
    target = target_of(f"redis://host?{name}=50", 1.0, "")
    (sentence,) = target.ignored
    assert sentence.startswith(f"option {name} of the URL is ignored, because ")
    assert name not in target.options or target.options[name] != "50"


def test_lockcore_warns_of_an_option_without_effect() -> None:
    from lockcore import Redlock
    from lockcore.errors import InstanceError

    with (
        pytest.warns(
            RuntimeWarning, match="127.0.0.1:1: option max_connections of the URL is ignored"
        ),
        pytest.raises(InstanceError),
    ):
        Redlock.connect(["redis://127.0.0.1:1?max_connections=50"], shell="threads")


def test_whatever_stands_in_a_url_the_answer_is_a_target_or_a_value_error() -> None:
    dice = random.Random(42)
    letters = string.ascii_letters + string.digits + "/?#@:[]%&=+-._ \\é\x00\n"
    names = [*READ, *IGNORED, "nonsense", ""]
    for _ in range(3_000):
        text = "".join(dice.choices(letters, k=dice.randrange(20)))
        scheme = dice.choice([*SCHEMES, "http", ""])
        option = f"?{dice.choice(names)}={''.join(dice.choices(letters, k=dice.randrange(6)))}"
        try:
            target_of(
                f"{scheme}://{text}{option if dice.random() < 0.5 else ''}", 1.0, ""
            ).connection()
        except ValueError as error:
            assert "instance URL" in str(error)  # noqa: PT017 - many of them raise nothing
