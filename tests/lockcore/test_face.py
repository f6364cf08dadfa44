"""What people see of the lock: methods that an editor, a subclass and a type checker find."""

import inspect
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, create_autospec

import pytest

from lockcore import AsyncRedlock, Denied, Lease, Outcome, Redlock, Settings, Tally

ROOT = Path(__file__).parents[2]
USE = Path(__file__).with_name("typed_use.py")
OPERATIONS = ("acquire", "try_acquire", "release", "try_release", "extend", "try_extend", "hold")
DENIED = Denied("stock", Outcome.CONTENDED, Tally(refused=3), 1, 0, 0, 1)
LOCKS = pytest.mark.parametrize("lock", [Redlock, AsyncRedlock])


@LOCKS
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_a_method_with_a_docstring_and_a_full_signature(
    lock: type, name: str
) -> None:
    method = getattr(lock, name)
    assert method.__doc__
    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())[1:]
    assert parameters
    assert all(one.annotation is not inspect.Parameter.empty for one in parameters)
    assert not {one.kind for one in parameters} & {
        inspect.Parameter.VAR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    }
    assert signature.return_annotation is not inspect.Signature.empty


@LOCKS
def test_connect_names_each_setting_with_the_default_of_settings(lock: Any) -> None:
    parameters = dict(inspect.signature(lock.connect).parameters)
    del parameters["urls"]
    parameters.pop("shell", None)
    assert {one.kind for one in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    defaults = {name: one.default for name, one in parameters.items()}
    assert defaults == {one.name: one.default for one in fields(Settings)}


def test_an_override_of_try_acquire_is_what_acquire_calls() -> None:
    class Refusing(Redlock):
        def try_acquire(self, resource: str, ttl_ms: int, wait_ms: float = 0) -> Lease | Denied:
            return DENIED

    driver = MagicMock()
    lock = Refusing(driver)
    assert lock.try_acquire("stock", 1_000) is DENIED
    with pytest.raises(Exception, match="stock"):
        lock.acquire("stock", 1_000)
    driver.try_acquire.assert_not_called()
    driver.engine.retired = True


def test_autospec_knows_the_arguments_of_the_hot_methods() -> None:
    lock = create_autospec(Redlock, instance=True)
    lock.try_acquire("stock", 1_000)
    with pytest.raises(TypeError):
        lock.try_acquire("stock")
    with pytest.raises(TypeError):
        lock.try_release()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 cannot be told")
@pytest.mark.parametrize("name", ["try_acquire", "try_release"])
def test_a_hot_method_of_asyncredlock_is_known_as_one_that_is_awaited(name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(AsyncRedlock, name))


IGNORE = re.compile(r"  # type: ignore\[([\w-]+)\]")


def bare_use(folder: Path) -> Path:
    """The file of uses without its comments, so that each mistake is an error."""
    bare = folder / "bare_use.py"
    bare.write_text(IGNORE.sub("", USE.read_text("utf-8")), "utf-8")
    return bare


def printed(*command: str) -> str:
    """What a type checker prints, whatever it finds."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout


def test_mypy_finds_each_mistake_and_nothing_else(tmp_path: Path) -> None:
    mistakes = IGNORE.findall(USE.read_text("utf-8"))
    assert len(mistakes) > 10
    bare = bare_use(tmp_path)
    errors = printed("mypy", "--strict", "--no-error-summary", str(USE), str(bare)).splitlines()
    assert [line for line in errors if "bare_use.py" not in line] == []
    kinds = [re.findall(r"\[([\w-]+)\]$", line) for line in errors if ": error: " in line]
    assert kinds == [[kind] for kind in mistakes]


def test_pyright_finds_each_mistake_and_nothing_else(tmp_path: Path) -> None:
    """Several errors may stand on the line of one mistake, as what follows is unknown."""
    lines = USE.read_text("utf-8").splitlines()
    mistakes = {number for number, line in enumerate(lines) if IGNORE.search(line)}
    bare_use(tmp_path)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    command = ("basedpyright", "--pythonpath", sys.executable, "--outputjson")
    report = json.loads(printed(*command, "--project", str(tmp_path)))
    assert report["summary"]["filesAnalyzed"] == 1
    errors = {one["range"]["start"]["line"] for one in report["generalDiagnostics"]}
    assert errors == mistakes
