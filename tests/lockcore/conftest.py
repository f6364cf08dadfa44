"""What most tests of the engine begin with."""

from inspect import signature

import pytest

from tests.lockcore.scripted import ScriptedFleet
from tests.lockcore.source import needs_source


@pytest.fixture
def fleet() -> ScriptedFleet:
    """Three scripted instances that vote."""
    return ScriptedFleet(3)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Planted faults are planted in the source."""
    if isinstance(item, pytest.Function) and "monkeypatch" in signature(item.function).parameters:
        item.add_marker(needs_source)
