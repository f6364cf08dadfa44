"""The examples in the public API's docstrings are true."""

import doctest
from importlib import import_module

import pytest

from tests.lockcore.source import needs_source

MODULES = ("clock", "facts.model", "facts.quorum", "redlock", "settings")


@needs_source
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_come_out_as_they_say(name: str) -> None:
    failed, tried = doctest.testmod(import_module(f"lockcore.{name}"))
    assert (failed, tried > 0) == (0, True)
