"""`lockbench crash` on real servers: the findings, the planted faults."""

import contextlib
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.experiments.durability import cut as crash_place
from bench.experiments.durability.cut import CrashPlace
from bench.experiments.durability.loss_experiment import run_crash
from bench.experiments.durability.loss_judge import LossLedger
from bench.experiments.durability.loss_plan import CrashPlan
from bench.experiments.durability.loss_result import Crash, CrashResult, CrashRow
from bench.measure.section import builtins_of
from bench.run.experiment import ExperimentOrder
from bench.run.journal import JOURNAL_NAME, read_journal
from bench.topology.shim import Control
from tests.conftest import Ended
from tests.integration.locust_runs import result_in, started, until

pytestmark = pytest.mark.integration
PATIENCE_S = 60.0
MAIN = (
    Crash(3, "everysec", "power-cut", 1, "at-once"),
    Crash(3, "everysec", "kill-slow-fsync", 1, "at-once"),
    Crash(3, "no", "power-cut", 1, "at-once"),
    Crash(3, "always", "power-cut-torn", 1, "at-once"),
    Crash(3, "none", "kill", 1, "at-once"),
    Crash(4, "none", "kill", 1, "at-once"),
    Crash(3, "everysec", "power-cut", 2, "delayed"),
)


def ordered(
    folder: Path, *crashes: Crash, cuts: int = 2, seed: int = 3
) -> ExperimentOrder[CrashPlan]:
    plan = CrashPlan(crashes, cuts, 120, seed, quick=True)
    return ExperimentOrder(plan, "abc", ["lockbench", "crash"], folder)


def the(
    result: CrashResult, *case: object, abstention: bool = False, instances: int = 3
) -> CrashRow:
    """The row of a policy, kind and margin."""
    wanted = (*case, abstention, instances)
    (row,) = [
        row
        for row in result.rows
        if (row.policy, row.kind, row.margin, row.abstention, row.instances) == wanted
    ]
    return row


def test_what_is_lost_and_granted_twice_is_what_each_policy_promises(tmp_path: Path) -> None:
    said: list[str] = []
    done = run_crash(ordered(tmp_path, *MAIN, cuts=2), said.append)
    result = done.result
    # a machine too busy to lose, or to tell in time
    if result.verdict.status == "inconclusive":
        pytest.skip(f"not known here: {'; '.join(result.verdict.reasons)}")
    assert (done.exit_code, result.verdict.status, result.verdict.reasons) == (0, "pass", ())
    assert builtins_of(result) == result_in(tmp_path, CrashResult)
    assert said[0].startswith("plan: 14 cuts in 7 groups; about ")
    assert the(result, "always", "power-cut-torn", 0).lost_total == 0
    assert the(result, "everysec", "power-cut", 0, abstention=True).lost_total > 0
    assert the(result, "everysec", "kill-slow-fsync", 0).fsync_in_flight.cuts > 0
    assert the(result, "no", "power-cut", 1).lost_share > 0.9
    memory = the(result, "none", "kill", 0)
    assert memory.cuts_with_double_grants == memory.cuts == 2
    assert the(result, "none", "kill", 1).double_grants == 0
    assert the(result, "none", "kill", 0, abstention=True).double_grants == 0
    assert the(result, "none", "kill", 0, instances=4).double_grants == 0
    delayed = [row for row in result.rows if row.restart == "delayed"]
    assert [row.double_grants for row in delayed] == [0, 0]
    # two of three away: nobody gets a lock
    assert all(row.unavailable_s.median >= 2.0 for row in delayed)


def test_a_shim_that_forgets_to_cut_a_ledger_that_misses_and_a_fleet_that_fails_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(self: CrashPlace, *arguments: Any) -> LossLedger:
        return replace(
            seeing(self, *arguments), in_flight=0, synced_after_write=False, since_write_s=None
        )

    def refuse(self: CrashPlace, instances: int, policy: str) -> None:
        if policy == "no":
            raise EnvironmentNotReadyError("no such fleet today")
        opened(self, instances, policy)

    seeing: Callable[..., LossLedger] = CrashPlace.examine
    opened = CrashPlace.open
    monkeypatch.setattr(crash_place, "cut_power", lambda *_arguments: ())
    monkeypatch.setattr(CrashPlace, "examine", blind)
    monkeypatch.setattr(CrashPlace, "open", refuse)
    done = run_crash(ordered(tmp_path, *MAIN[:3], cuts=4), lambda _text: None)
    verdicts = {group.kind: (group.verdict, group.reason) for group in done.result.groups}
    if any(group.kind == "power-cut" and group.lost_total for group in done.result.groups):
        pytest.skip(
            "not known here: this disk held up a write so long that kill -9 alone lost locks"
        )
    assert verdicts["power-cut"] == ("not shown", "nothing was lost")
    assert verdicts["kill-slow-fsync"][0] == "violated"
    assert "although no sync was in flight" in str(verdicts["kill-slow-fsync"][1])
    assert f"{MAIN[2].key}: given up: no such fleet today" in done.result.verdict.reasons
    assert {row.policy for row in done.result.rows} == {"everysec"}
    assert done.exit_code == 5


def test_servers_without_the_shim_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Control, "loaded_in", lambda _self, _pid: False)
    with pytest.raises(
        EnvironmentNotReadyError,
        match="lockbench can neither count fsyncs nor simulate a power cut",
    ):
        run_crash(ordered(tmp_path, *MAIN), lambda _text: None)
    assert not (tmp_path / JOURNAL_NAME).exists()


# -- as it is typed: what Ctrl-C and kill -9 leave, and how it goes on -----------------------------


def cuts_in(folder: Path) -> int:
    # its first line is not there yet
    with contextlib.suppress(UsageError):
        return len(read_journal(folder)[1]) if (folder / JOURNAL_NAME).exists() else 0
    return 0


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_a_matrix_that_was_ended_goes_on_where_it_stopped(
    lockbench: Callable[..., Ended], tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "out"
    options = ("--fsync", "none", "--kind", "kill", "--cuts", "3", "--seed", "5")
    words = ("crash", "--instances", "1", "--rate", "60", *options, "--out", folder)
    with started(tmp_path, *words) as process:
        until(lambda: cuts_in(folder) >= 3, "three cuts", PATIENCE_S)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (130 if number is signal.SIGINT else -9), err
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert alive == []
    kept = cuts_in(folder)
    assert 3 <= kept < 6
    assert not (folder / "result.json").exists()
    if number is signal.SIGINT:
        assert out.startswith("INTERRUPTED")
        assert "go on with: lockbench crash" in err
        assert f"--out {folder}" in err
    ended = lockbench(*words, "--json")
    assert ended.returncode == 0, ended.stderr
    assert f"plan: 6 cuts in 2 groups ({kept} cuts are already done)" in ended.stderr
    assert [row["cuts"] for row in json.loads(ended.stdout)["rows"]] == [3, 3, 3]
    assert not (folder / JOURNAL_NAME).exists()
