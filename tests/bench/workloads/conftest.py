"""The scene of callers whose greenlets stay parked (lending.py)."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lockcore import Redlock
from tests.bench.workloads.lending import Scene
from tests.doubles.instance import Instances


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A lock on three scripted instances, closed in the end."""
    with ExitStack() as stack:
        instances = stack.enter_context(Instances.of(3))
        settings = {"instance_timeout_ms": 2000, "rejoin": "trust"}
        lock = stack.enter_context(Redlock.connect(instances.urls, shell="gevent", **settings))
        made = Scene(instances, lock)
        yield made
        instances.resume()
        instances.be_honest()
        for alarm in (made.naps, made.rests, made.arrivals):
            alarm.close()
