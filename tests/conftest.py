"""What every test may use: nothing yet but a terminal that does not change between machines."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering must not depend on who runs the tests: no colours, no width from the environment."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "LOCKBENCH_TARGETS", "LOCKBENCH_PLAN"):
        monkeypatch.delenv(name, raising=False)
