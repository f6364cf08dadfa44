"""What needs Locust's classes: the tests of two other files, each in a child process that loads
Locust first."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CODE = "import sys, locust, pytest; sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.parametrize("name", ["beside_locust.py", "ends_beside_locust.py"])
def test_beside_locust(name: str) -> None:
    tests = Path(__file__).with_name(name)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "PYTEST_ADDOPTS": ""}
    words = [
        sys.executable,
        "-c",
        CODE,
        "-q",
        "-p",
        "no:warnings",
        "-p",
        "no:cacheprovider",
        str(tests),
    ]
    child = subprocess.run(
        words, capture_output=True, text=True, timeout=120, check=False, env=environ
    )
    assert child.returncode == 0, child.stdout + child.stderr
    passed = re.search(r"(\d+) passed", child.stdout)
    assert passed is not None, child.stdout
    assert int(passed[1]) == tests.read_text().count("\ndef test_") >= 8
