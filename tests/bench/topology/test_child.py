"""A process that obeys, and ends with whoever started it; a change that is undone then."""

import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.topology.child import Child, Leash

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
from bench.topology.child import Child, Leash
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


# -- orders and answers ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sum:
    """An order."""

    parts: tuple[int, ...]
    place: Path = Path("here")


def python(source: str) -> Child:
    return Child(
        "the worker",
        [sys.executable, "-c", f"from bench.topology.child import orders, say\n{source}"],
    )


def test_every_order_is_answered_and_an_answer_of_two_pieces_is_one() -> None:
    from_tests = "from tests.bench.topology.test_child import Sum"
    with python(
        f"{from_tests}\nfor order in orders(Sum): say(sum(order.parts) if order.place.name else 0)"
    ) as child:
        for parts in ((1, 2), tuple(range(30_000))):
            child.tell(Sum(parts))
            assert child.hear(int, DEADLINE_S) == sum(parts)
    assert child.ended


def test_two_answers_that_came_at_once_are_heard_one_by_one() -> None:
    with python("for _ in orders(str): say('one'), say('two')") as child:
        child.tell("go")
        assert [child.hear(str, DEADLINE_S) for _ in range(2)] == ["one", "two"]


@pytest.mark.parametrize(
    "source, why",
    [
        (
            "raise SystemExit('no lock to be had')",
            r"the worker ended early \(it said: no lock to be had\)",
        ),
        ("raise SystemExit(7)", r"the worker ended early \(exit code 7\)"),
        ("import os; os.kill(os.getpid(), 9)", r"the worker ended early \(signal 9\)"),
        ("print('nonsense', flush=True)", r"the worker ended early \(exit code 0\)"),
        ("say('no number')", r"the worker ended early \(exit code 0\)"),
    ],
)
def test_why_it_ended_is_said(source: str, why: str) -> None:
    with python(source) as child, pytest.raises(EnvironmentNotReadyError, match=why):
        child.hear(int, DEADLINE_S)


def test_who_does_not_answer_is_given_up_on_and_ended() -> None:
    with python("for _ in orders(str): import time; time.sleep(600)") as child:
        child.tell("go")
        with pytest.raises(EnvironmentNotReadyError, match="the worker gave no answer for 0 s"):
            child.hear(str, 0.05)
    assert child.ended


def test_one_that_has_ended_cannot_be_told() -> None:
    with python("raise SystemExit('gone')") as child:
        child.process.wait(DEADLINE_S)
        with pytest.raises(EnvironmentNotReadyError, match="it said: gone"):
            child.tell("go")


BUSY_OWNER = """
import sys
from bench.topology.child import Child
busy = "from bench.topology.child import *\\nfor _ in orders(str):\\n say('on')\\n while True: pass"
child = Child("x", [sys.executable, "-c", busy])
child.tell("go")
child.hear(str)
print(child.process.pid, flush=True)
sys.stdin.read()
"""


def test_a_busy_one_ends_with_an_owner_that_was_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY_OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        busy = os.pidfd_open(int(owner.stdout.readline()))
        owner.kill()
        assert select.select([busy], [], [], DEADLINE_S)[0]
