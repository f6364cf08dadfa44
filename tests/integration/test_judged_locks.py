"""Locks whose source is known are judged: the rows say what the source says."""

import sys
import textwrap
from pathlib import Path

import pytest

from bench.errors import UsageError
from bench.experiments.judge.experiment import run_judge
from bench.experiments.judge.plan import plan_of
from bench.experiments.judge.result import JudgedRow
from bench.experiments.judge.subject import read_subject
from bench.run.experiment import ExperimentOrder

pytestmark = pytest.mark.integration
# How often a row that is not known is played.
TRIES = 3
LOCKS = Path(__file__).parents[1] / "locks"


def judged(lock: str, row: str, folder: Path, capacity: int = 1) -> JudgedRow:
    """What comes of one row. A busy machine may prevent what the row rests on, so a row that is not
    known is played again."""
    plan = plan_of(read_subject(lock), [row], quick=True, capacity=capacity, with_costs=False)
    for number in range(TRIES):
        order = ExperimentOrder(plan, "1", ("pytest",), folder / f"out-{number}")
        done = run_judge(order, lambda _line: None)
        (found,) = (one for one in done.result.rows if one.topic == row)
        if found.verdict != "not known":
            break
    return found


@pytest.mark.parametrize(
    ("lock", "row", "word"),
    [
        ("ours.py:without_owner", "release-after-expiry", "does not"),
        ("ours.py:get_then_del", "release-after-expiry", "holds"),
        ("ours.py:get_then_del", "paused-in-release", "does not"),
        ("ours.py:in_memory", "contention", "does not"),
        ("ours.py:true_or_none", "contention", "holds"),
        ("ours.py:true_or_none", "paused-in-acquire", "holds"),
        ("ours.py:true_or_none", "search", "holds"),
        ("ours.py:none_or_false", "contention", "holds"),
        ("ours.py:none_or_false", "paused-holder", "holds"),
        ("ours.py:wrong_semaphore", "contention", "does not"),
        ("ours.py:semaphore_of_keys", "interrupted-acquire", "does not"),
        ("ours.py:semaphore_of_keys", "exception-in-body", "holds"),
        ("libraries.py:redis_py", "paused-in-release", "holds"),
        ("libraries.py:redis_py", "paused-in-acquire", "does not"),
        ("libraries.py:lockcore", "paused-in-acquire", "holds"),
    ],
)
def test_a_row_says_what_the_source_says(lock: str, row: str, word: str, tmp_path: Path) -> None:
    capacity = 3 if "semaphore" in lock else 1
    found = judged(str(LOCKS / lock), row, tmp_path, capacity)
    assert found.verdict == word, found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("for line in sys.stdin: print('rubbish', flush=True)", r"with the answer rubbish"),
        ("sys.exit(3)", "ended early .exit code 3.*answer each line on stdin"),
        ("sys.stdout.write('x' * 10**7); sys.stdin.read()", "bytes without the end of a line"),
        ("for line in sys.stdin: sys.stdout.buffer.write(b'\\xff\\n')", "the answer|ended early"),
    ],
)
def test_a_command_that_answers_nothing_of_use_is_refused_in_a_sentence(
    text: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "command.py"
    path.write_text(f"import sys\n{textwrap.dedent(text)}\n", "utf-8")
    with pytest.raises(UsageError, match=sentence):
        judged(f"{sys.executable} -u {path}", "contention", tmp_path)
