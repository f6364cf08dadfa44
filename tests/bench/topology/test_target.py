"""A client of a URL: what is shown of it, what is refused, whose time-outs win."""

import pytest

from bench.errors import UsageError
from bench.topology.target import client_of, parse_targets

SECRET = "s3cret"


@pytest.mark.parametrize(
    "url, address",
    [
        (f"redis://:{SECRET}@host/3", "host:6379"),
        (f"rediss://user:{SECRET}@host:7000/0?ssl_cert_reqs=none", "host:7000"),
        (f"unix://user:{SECRET}@/run/a b.sock?db=1", "/run/a b.sock"),
    ],
)
def test_the_address_is_all_that_shows(url: str, address: str) -> None:
    (target,) = parse_targets([url])
    assert target.address == address
    assert target.is_tls == url.startswith("rediss")
    assert SECRET not in f"{target!r} {target}"


def test_a_wrong_url_is_named_by_its_position_without_its_secret() -> None:
    with pytest.raises(
        UsageError, match="target 2: .*the database after the slash must be a number"
    ) as refused:
        parse_targets(["redis://host", f"redis://:{SECRET}@host/locks"])
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__


def test_our_time_outs_and_no_retry_win_over_the_url() -> None:
    (target,) = parse_targets(["redis://host?socket_timeout=60&protocol=3"])
    settings = client_of(target, 0.5).connection_pool.connection_kwargs
    assert settings["socket_timeout"] == settings["socket_connect_timeout"] == 0.5
    assert settings["protocol"] == 2
    assert settings["retry"].get_retries() == 0
