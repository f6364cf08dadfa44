"""URLs: which are taken, what is shown of them, and that a password never is."""

import traceback

import pytest

from lockcore import Redlock
from lockcore.shells.common.target import InstanceTarget, target_of

SECRET = "s3cret"


def target(url: str) -> InstanceTarget:
    return target_of(url, timeout_s=1.0, key_prefix="")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", "localhost:6379"),
        ("redis://host", "host:6379"),
        ("redis://host:7000/3", "host:7000"),
        ("rediss://user:s3cret@host:7000/0", "host:7000"),
        ("redis://:s3cret@host", "host:6379"),
        ("redis://user:s3%40cret@host:7000", "host:7000"),
        ("redis://[::1]:7000", "[::1]:7000"),
        ("unix:///run/redis.sock", "/run/redis.sock"),
        ("unix://user:s3cret@/run/redis.sock?db=2", "/run/redis.sock"),
        ("unix:///run/redis.sock?password=s3cret", "/run/redis.sock"),
        ("unix://:s3cret@/run/redis@home.sock?password=a@b", "/run/redis@home.sock"),
        ("rediss://host?ssl_cert_reqs=none", "host:6379"),
    ],
)
def test_a_url_gives_an_address_without_its_secret(url: str, address: str) -> None:
    made = target(url)
    assert made.address == address
    assert SECRET not in repr(made)
    assert made.is_tls == url.startswith("rediss")


def test_what_is_ours_is_not_the_url_s_to_say() -> None:
    made = target(
        "redis://host?socket_timeout=60&protocol=3&decode_responses=true&retry_on_timeout=true"
    )
    connection = made.connection()
    assert (connection.socket_timeout, connection.socket_connect_timeout, connection.protocol) == (
        1.0,
        1.0,
        2,
    )
    assert connection.retry.get_retries() == 0
    assert connection.encoder.decode_responses is False


def test_a_target_connects_as_often_as_it_must() -> None:
    made = target("redis://host")
    assert len({id(connection) for connection in [made.connection() for _ in range(1000)]}) == 1000


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://host", "use redis://host:port"),
        ("host:6379", "is not an instance URL"),
        ("", "is not an instance URL"),
        (7, "is not an instance URL"),
        ("redis://host/three", "the database after the slash must be a number"),
        ("redis://host:port", "is not a usable instance URL"),
        ("redis://host:70000", "is not a usable instance URL"),
        ("redis://host?db=three", "is not a usable instance URL"),
        ("redis://host?nonsense=1", "is not a usable instance URL"),
    ],
)
def test_what_is_no_instance_url_is_refused_in_one_sentence(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        target(url)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret@host",
        "user:s3cret@host:6379",
        "redis://user:s3cret@host/three",
        "redis://user:s3cret@host:port",
        "redis://:s3cret",
        "redis://:s3cret/@host",
        "redis://:/s3cret@host",
        "redis://:a/s3cret@host/three",
        "redis://:#s3cret@host:x",
        "redis://:?s3cret@host:x",
        "redis://:s3@s3cret@host:x",
        "redis://host/x?password=s3cret",
        "redis://host:x?password=a@s3cret",
        "redis://host?nonsense=s3cret",
        "unix://:s3cret@/run/redis.sock?db=x",
        "unix://:a/s3cret@/run/redis.sock",
    ],
)
def test_no_refusal_shows_a_password(url: str) -> None:
    with pytest.raises(ValueError, match="instance URL") as raised:
        target(url)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("urls", "raised", "says"),
    [
        ([], ValueError, "a lock needs at least one instance URL"),
        ("redis://host", TypeError, "urls must be a list of instance URLs, not one string"),
    ],
)
def test_a_fleet_is_a_list_of_urls(urls: list[str], raised: type[Exception], says: str) -> None:
    with pytest.raises(raised, match=says):
        Redlock.connect(urls)


def test_a_way_of_waiting_is_gevent_or_threads() -> None:
    with pytest.raises(ValueError, match="shell must be auto, gevent or threads, not 'asyncio'"):
        Redlock.connect(["redis://host"], shell="asyncio")  # type: ignore[arg-type]
