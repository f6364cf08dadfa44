"""What most tests of the engine begin with."""

from __future__ import annotations

import pytest

from tests.lockcore.scripted import ScriptedFleet


@pytest.fixture
def fleet() -> ScriptedFleet:
    """Three scripted instances that vote."""
    return ScriptedFleet(3)
