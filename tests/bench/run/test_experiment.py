"""The skeleton of every experiment: Ctrl-C ends a part and takes nothing, the header is that of a
Document."""

import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest

from bench.errors import EnvironmentNotReadyError
from bench.frame.experiment import Several, measured
from bench.frame.outputs import Outputs
from bench.measure.result import Document, read_result
from bench.measure.section import says
from bench.measure.verdict import AS_EXPECTED, NOT_KNOWN, Verdict
from bench.run import experiment
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.run.journal import open_journal

SEED = 7


class Counted(Document, frozen=True, kw_only=True):
    kind: Annotated[Literal["count"], says("x")] = "count"
    rows: Annotated[tuple[int, ...], says("x")]


def count(order: ExperimentOrder[int], cut_after: int, tmp_path: Path) -> Done[Counted]:
    """Count to the plan; Ctrl-C comes after so many."""
    rows: list[int] = []
    with Experiment(order) as counting:
        with counting.cuttable():
            for number in range(order.plan):
                if number == cut_after:
                    signal.raise_signal(signal.SIGINT)
                rows.append(number)
        # noted only
        signal.raise_signal(signal.SIGINT)
        counting.require(rows)
        verdict = Verdict.of(NOT_KNOWN if counting.cut else AS_EXPECTED, 0, (), ())
        header = counting.header(seed=SEED, interrupted=counting.cut)
        return counting.store(Counted(**header, verdict=verdict, rows=tuple(rows)))


def order_in(folder: Path) -> ExperimentOrder[int]:
    return ExperimentOrder(3, "abcd", ["lockbench", "count"], folder)


@pytest.mark.parametrize(("cut_after", "rows", "code"), [(9, (0, 1, 2), 0), (2, (0, 1), 130)])
def test_what_was_measured_is_stored_before_a_wish_to_end_is_granted(
    tmp_path: Path, cut_after: int, rows: tuple[int, ...], code: int
) -> None:
    done = count(order_in(tmp_path), cut_after, tmp_path)
    assert (done.result.rows, done.exit_code, done.result.interrupted) == (rows, code, code == 130)
    stored = read_result(tmp_path)
    assert (stored["rows"], stored["id"], stored["seed"], stored["command"]) == (
        list(rows),
        "abcd",
        SEED,
        ["lockbench", "count"],
    )
    assert stored["started_at"].endswith("Z")
    assert stored["environment"]["python"]


def test_why_the_commit_is_not_known_stands_in_every_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "environment_warnings", lambda: ["git does not read it"])
    assert count(order_in(tmp_path), 9, tmp_path).result.warnings == ("git does not read it",)


def test_cut_before_anything_was_measured_there_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        count(order_in(tmp_path), 0, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_was_cut_or_broke_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(order: ExperimentOrder[int], _show: Show) -> Done[Counted]:
        with (
            Experiment(order) as experiment,
            open_journal(order.folder, {"seed": 1}, int) as journal,
        ):
            journal.write(1)
            journal.pieces.append(1)
            if order.plan:
                raise EnvironmentNotReadyError("the disk is full")
            header = experiment.header(seed=1, interrupted=True)
            return experiment.unfinished(
                Counted(**header, verdict=Verdict.of(NOT_KNOWN, 4, (), ()), rows=())
            )

    for plan, out in enumerate((tmp_path / "a", tmp_path / "b")):
        monkeypatch.setattr(sys, "argv", ["lockbench", "crash", "--out", str(out)])
        again = f"go on with: lockbench crash --out {out}$"
        outputs = Outputs(out, quiet=True)
        if plan:
            with pytest.raises(EnvironmentNotReadyError, match=f"^the disk is full; {again}"):
                measured("crash", plan, outputs, begin, server=None, goes_on=True)
        else:
            assert (
                measured("crash", plan, outputs, begin, server=None, goes_on=True).unstored
                == f"cut short; {again[:-1]}"
            )


def test_an_option_with_several_values_takes_each_once_and_names_itself() -> None:
    @click.command()
    @click.option("--rounds", type=Several(int))
    @click.option("--users", type=Several(click.IntRange(1, 4)))
    def command(**values: object) -> dict[str, object]:
        return values

    def told(*arguments: str) -> object:
        return command.main(arguments, standalone_mode=False)

    assert told("--rounds", "3, 1,3") == {"rounds": (3, 1), "users": None}
    assert told("--users", "4,4") == {"rounds": None, "users": (4,)}
    with pytest.raises(click.BadParameter, match="invalid literal"):
        told("--rounds", "3,x")
    with pytest.raises(click.BadParameter, match="5 is not in the range"):
        told("--users", "1,5")
