"""Three servers in memory, for all tests of a file that leave them as they were."""

from collections.abc import Iterator

import pytest

from bench.topology.fleet import Fleet, start_fleet


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with start_fleet(3, "none") as started:
        yield started
