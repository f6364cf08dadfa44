"""Where a leader is: what people write."""

import pytest

from bench.hosts.joining import address


def test_addresses() -> None:
    assert address("10.0.0.9") == ("10.0.0.9", 5557)
    assert address("[::1]:6000") == ("::1", 6000)
    for wrong in ("", "10.0.0.9:", "10.0.0.9:0", "a:70000", "tcp://a", "a b"):
        with pytest.raises(ValueError, match="is not an address"):
            address(wrong)
