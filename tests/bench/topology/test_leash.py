"""A change that is undone when the process that made it ends."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.topology.leash import Leash

HOLD = 'touch "$1"; echo here; read -r _; rm "$1"'


DEADLINE_S = 30.0


def test_the_change_lasts_until_it_is_released(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    leash = Leash(["sh", "-c", HOLD, "sh", str(mark)], ready="here")
    assert mark.exists()
    leash.release()
    assert not mark.exists()
    leash.release()


def test_it_is_told_what_to_do(tmp_path: Path) -> None:
    Leash(
        ["sh", "-c", "read -r word; echo $word; read -r _"], ready="hello", say="hello\n"
    ).release()


@pytest.mark.parametrize(
    "command, why",
    [
        (["sh", "-c", "echo no such thing; read -r _"], "sh failed: no such thing"),
        (["sh", "-c", "echo not allowed >&2; echo here; read -r _"], "sh failed: not allowed"),
        (["sh", "-c", "exit 3"], "sh failed: it ended without a word"),
        (["no-such-program"], "no-such-program cannot be started .*No such file"),
    ],
)
def test_a_change_that_was_not_made_is_said(command: list[str], why: str) -> None:
    with pytest.raises(EnvironmentNotReadyError, match=why):
        Leash(command, ready="here")


OWNER = """
import sys
from bench.topology.leash import Leash
leash = Leash(sys.argv[1:], ready="here")
print(leash._child.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_its_owner_however_that_ends(number: signal.Signals, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    command = [sys.executable, "-c", OWNER, "sh", "-c", HOLD, "sh", str(mark)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        held = os.pidfd_open(int(owner.stdout.readline()))
        assert mark.exists()
        os.killpg(owner.pid, number)
        assert select.select([held], [], [], DEADLINE_S)[0]
    assert not mark.exists()
