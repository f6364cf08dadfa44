"""Which run of a CI job a JUnit file is about."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.frame.identity import identity_of
from tests.conftest import Ended


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"scenario": Path("a/mine.toml"), "name": "before", "out": Path("r/x")}, ("before", "")),
        ({"scenario": Path("a/mine.toml"), "name": "", "out": None}, ("mine", "")),
        ({"scenario": Path("mine.v2.toml"), "out": Path("r/x")}, ("mine-v2", "x")),
        ({"scenario": Path("hot-key"), "out": Path("hot-key")}, ("hot-key", "")),
        ({"scenario": Path("/proc/self/fd/5"), "recipe": "redlock"}, ("redlock", "")),
        ({"scenario": None, "name": "", "recipe": None}, ("", "")),
        (
            {"scenario": None, "baseline": "git:origin/main", "candidate": "git:HEAD"},
            ("git:origin-main-git:HEAD", ""),
        ),
        ({"scenario": None, "things": ("before", "after"), "recipe": ()}, ("before-after", "")),
        ({"name": "../ü <&> \x1b[31m"}, ("ü-31m", "")),
        ({"name": "…"}, ("", "")),
        ({}, ("", "")),
    ],
)
def test_a_command_is_named_by_what_its_user_calls_it(
    parameters: dict[str, object], expected: tuple[str, str]
) -> None:
    assert identity_of(parameters) == expected


def test_a_refused_command_bears_the_same_name(
    lockbench: Callable[..., Ended], tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text("users = 0\n", encoding="utf-8")
    for words, classname in (
        (("run", "mine.toml"), "lockbench.run.mine"),
        (("run", "mine.toml", "--name=first", "--nonsense"), "lockbench.run.first"),
        (
            ("gate", "--baseline", "results/gone", "--candidate", "mine.toml"),
            "lockbench.gate.results-gone-mine-toml",
        ),
    ):
        assert lockbench(*words, "--junit", "j.xml").returncode == 2
        (case,) = ET.parse(tmp_path / "j.xml").iter("testcase")
        assert case.get("classname") == classname
