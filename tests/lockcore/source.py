"""Tests that look into lockcore's source, or replace parts of it, need it: compiled code looks nothing up by name."""

from __future__ import annotations

import pytest

from lockcore import engine

COMPILED = not str(engine.__file__).endswith(".py")
needs_source = pytest.mark.skipif(COMPILED, reason="it looks into lockcore's source, and this one is compiled")
