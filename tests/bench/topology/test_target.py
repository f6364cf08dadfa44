"""Reading URLs: what is shown, what is refused, what stays secret."""

import pytest

from bench.errors import UsageError
from bench.topology.target import parse_targets

SECRET = "s3cret"


@pytest.mark.parametrize(
    "url, address",
    [
        ("redis://10.0.0.1:7001", "10.0.0.1:7001"),
        ("redis://", "localhost:6379"),
        (f"redis://:{SECRET}@host/3", "host:6379"),
        (f"rediss://user:{SECRET}@host:7000/0?ssl_cert_reqs=none", "host:7000"),
        (f"redis://host:1?password={SECRET}", "host:1"),
        ("redis://[::1]:7000", "[::1]:7000"),
        (f"unix://user:{SECRET}@/run/a b.sock?db=1", "/run/a b.sock"),
        (f"redis://user:{SECRET}%23%2F%3F%40@host:1", "host:1"),
    ],
)
def test_the_address_is_all_that_shows(url: str, address: str) -> None:
    (target,) = parse_targets([url])
    assert target.address == address
    assert target.tls == url.startswith("rediss")
    assert SECRET not in f"{target!r} {target}"


@pytest.mark.parametrize(
    "url, why",
    [
        (f"http://user:{SECRET}@host", "unknown scheme"),
        (f"user:{SECRET}@host", "unknown scheme"),
        ("redis://user:12#s3cret@host:6379", "cannot be read"),
        ("redis://user:12?s3cret@host:6379", "cannot be read"),
        (f"redis://user:{SECRET}/x@host", "cannot be read"),
        (f"redis://:{SECRET}@host:99999", "cannot be read"),
        (f"redis://:{SECRET}@[::1", "cannot be read"),
        (f"redis://:{SECRET}@host/locks", "database number"),
        (f"redis://:{SECRET}@host?tls=yes", "unknown option tls"),
        (f"rediss://:{SECRET}@host?ssl_cert_reqs=maybe", "wrong value"),
        (f"redis://:{SECRET}@host?socket_timeout=soon", "cannot be read"),
    ],
)
def test_a_wrong_url_is_named_by_its_position_without_its_secret(url: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"target 2 .*{why}|target 2: .*{why}") as refused:
        parse_targets(["redis://host", url])
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_no_target_is_refused() -> None:
    with pytest.raises(UsageError, match="no target given"):
        parse_targets([])


def test_our_time_outs_and_no_retry_win_over_the_url() -> None:
    (target,) = parse_targets(["redis://host?socket_timeout=60&protocol=3"])
    settings = target.client(0.5).connection_pool.connection_kwargs
    assert settings["socket_timeout"] == settings["socket_connect_timeout"] == 0.5
    assert settings["protocol"] == 2
    assert settings["retry"].get_retries() == 0
