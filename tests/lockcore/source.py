"""Tests that look into lockcore's source, or replace parts of it, need it: compiled code looks
nothing up by name."""

import shutil
import sysconfig
from pathlib import Path

import pytest

from lockcore.engine import engine

COMPILED = not str(engine.__file__).endswith(".py")
needs_source = pytest.mark.skipif(
    COMPILED, reason="it looks into lockcore's source, and this one is compiled"
)
CAN_COMPILE = (
    shutil.which("cc") is not None and Path(sysconfig.get_path("include"), "Python.h").exists()
)
needs_compiler = pytest.mark.skipif(
    not CAN_COMPILE, reason="no C compiler or no Python.h here: the source runs"
)
