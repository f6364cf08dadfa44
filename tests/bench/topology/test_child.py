"""A process that obeys, and ends with whoever started it."""

import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.topology.child import Child

DEADLINE_S = 30.0


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
            r"the worker ended early \(its log says: no lock to be had\)",
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
        with pytest.raises(EnvironmentNotReadyError, match="the worker did not answer for 0 s"):
            child.hear(str, 0.05)
    assert child.ended


@pytest.mark.parametrize(
    ("source", "longest", "why"),
    [
        ("while True: sys.stdout.write('x' * 1000)", 100_000, "bytes without the end of a line"),
        ("while True: sys.stdout.write('.'); sys.stdout.flush()", 1 << 30, "did not answer"),
    ],
)
def test_a_line_without_an_end_is_given_up_on(source: str, longest: int, why: str) -> None:
    words = [sys.executable, "-c", f"import sys\n{source}"]
    with Child("the worker", words) as child:
        child.LONGEST_LINE = longest
        with pytest.raises(EnvironmentNotReadyError, match=why):
            child.read_line(patience_s=0.5)


def test_one_that_has_ended_cannot_be_told() -> None:
    with python("raise SystemExit('gone')") as child:
        child.process.wait(DEADLINE_S)
        with pytest.raises(EnvironmentNotReadyError, match="its log says: gone"):
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
