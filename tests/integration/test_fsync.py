"""`lockbench fsync` on real servers: measured, cut and gone on with; the user's setting is back
however it ends."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from bench.errors import EnvironmentNotReadyError
from bench.experiments.durability.policies import Policy
from bench.experiments.durability.price_experiment import (
    load_process,
)
from bench.experiments.durability.price_plan import LoadOrder, Phase
from bench.experiments.durability.price_result import (
    FsyncCell,
    FsyncResult,
    PhaseFigures,
)
from bench.experiments.durability.servers import (
    OwnServers,
    UserServers,
    set_policy,
    without_waitaof,
)
from bench.measure.server_facts import ServerBinary
from bench.run.journal import JOURNAL_NAME
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import find_server, found_servers
from bench.topology.shim import Control
from tests.conftest import Ended
from tests.integration.locust_runs import keys, result_in, started, targets, until

pytestmark = pytest.mark.integration
WAIT_S = 60.0
ONE = ["--clients", "1", "--pipeline", "1", "--repeats", "6", "--duration", "200ms"]


def cell_of(policy: Policy, *, pipeline: int = 1, injected_ms: float = 0.0) -> FsyncCell:
    return FsyncCell(
        policy=policy,
        instances=1,
        clients=1,
        pipeline=pipeline,
        injected_ms=injected_ms,
    )


def pieces(folder: Path) -> int:
    path = folder / JOURNAL_NAME
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


# -- a matrix --------------------------------------------------------------------------------------


def test_a_matrix_that_was_cut_goes_on_where_it_stopped(
    lockbench: Callable[..., Ended], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    order = ["--fsync", "everysec,always", "--instances", "1", "--latency", "1ms,2ms", *ONE]
    first = started(tmp_path, "fsync", *order, "--out", folder)
    until(lambda: pieces(folder) >= 12, "a first block, whose visits are noted together", WAIT_S)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=WAIT_S)
    assert first.returncode == 130
    assert "go on with: lockbench fsync" in err
    assert out.startswith("INTERRUPTED")
    kept = (folder / JOURNAL_NAME).read_text("utf-8")
    assert not (folder / "result.json").exists()

    other = lockbench("fsync", *order, "--out", folder, "--seed", "2")
    assert other.returncode == 2
    assert "seed 1 there, 2 here" in other.stderr
    assert (folder / JOURNAL_NAME).read_text("utf-8") == kept

    rest = lockbench("fsync", *order, "--out", folder, "--json", "--quiet")
    # four cells of 0.2 s: on a busy machine they may leave it not known
    assert rest.returncode in (0, 4), rest.stderr
    result = result_in(folder, FsyncResult)
    assert json.loads(rest.stdout) == result
    assert not (folder / JOURNAL_NAME).exists()
    before = [json.loads(line) for line in kept.splitlines()[1:]]
    cell = before[0]["cell"]
    leases = sum(piece["loads"]["max"]["leases"] for piece in before if piece["cell"] == cell)
    row = next(
        row for row in result["rows"] if row.items() >= cell.items() and row["load"] == "max"
    )
    assert row["leases"] == leases, "not measured twice"
    assert [visit["repeat"] for visit in row["visits"]] == list(range(6))
    assert all(cost["pairs"] == 6 for cost in result["costs"])
    check_durability(result)
    assert (rest.returncode, result["verdict"]["status"]) in ((0, "pass"), (4, "inconclusive"))
    costs = result["costs"]
    # a busy machine makes a price unknown, or its interval wide: never wrong
    if rest.returncode:
        assert all(cost["high"] is None or cost["high"] > 1 for cost in costs)
    else:
        assert all(cost["low"] > 1 for cost in costs)


def check_durability(result: dict[str, Any]) -> None:
    """Two fsyncs of two milliseconds for each lock and its release under always; next to none under
    everysec."""
    maxima = {row["policy"]: row for row in result["rows"] if row["load"] == "max"}
    always = maxima["always"]
    everysec = maxima["everysec"]
    assert always["acquired_per_s"]["median"] < everysec["acquired_per_s"]["median"]
    assert always["locks_per_fsync"]["median"] == pytest.approx(0.5, abs=0.1)
    assert always["acquire_s"]["mean"] >= 0.002
    assert everysec["fsyncs_per_s"]["median"] < 20


# -- the user's servers ----------------------------------------------------------------------------


@pytest.fixture
def theirs() -> Iterator[Fleet]:
    with start_fleet(2, "no") as fleet:
        yield fleet


def policies(fleet: Fleet) -> list[str]:
    found = []
    for url in fleet.urls:
        with redis.Redis.from_url(url) as client:
            found.append(client.config_get("appendfsync")["appendfsync"])
    return found


def test_without_permission_nothing_is_touched(
    lockbench: Callable[..., Ended], theirs: Fleet, tmp_path: Path
) -> None:
    done = lockbench("fsync", *targets(theirs), *ONE)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--allow-config" in done.stderr
    assert policies(theirs) == ["no", "no"]
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize("end", ["interrupt", "kill", "worker"])
def test_their_setting_is_back_however_it_ends(theirs: Fleet, tmp_path: Path, end: str) -> None:
    redis.Redis.from_url(theirs.urls[1]).config_set("appendfsync", "everysec")
    before = policies(theirs)
    long = [*ONE[:-1], "30s"]
    run = started(tmp_path, "fsync", *targets(theirs), *long, "--allow-config", "--fsync", "always")
    try:
        until(lambda: policies(theirs) == ["always", "always"], "the policy", WAIT_S)
        until(lambda: bool(load_of(run)), "the load process", WAIT_S)
        if end == "worker":
            load_of(run)[0].kill()
        else:
            run.send_signal(signal.SIGINT if end == "interrupt" else signal.SIGKILL)
        _, err = run.communicate(timeout=WAIT_S)
    finally:
        run.kill()
    assert run.returncode == {"interrupt": 130, "kill": -9, "worker": 3}[end]
    until(lambda: policies(theirs) == before, "the setting as it was", WAIT_S)
    if end == "worker":
        assert "the load process ended early (signal 9)" in err
        assert keys(theirs) == 0


def load_of(run: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        children = psutil.Process(run.pid).children()
        return [
            child
            for child in children
            if "bench.experiments.durability.load_process" in child.cmdline()
        ]
    except psutil.Error:
        return []


@pytest.mark.parametrize("ill, well", [(1, 0), (0, 1)])
@pytest.mark.parametrize("fall", [Fleet.kill, Fleet.stop])
def test_a_server_that_could_not_be_asked_is_named_with_its_value(
    theirs: Fleet, fall: Callable[[Fleet, int], None], ill: int, well: int
) -> None:
    servers = UserServers(theirs.urls, ["always"], allow_config=True)
    set_policy(theirs.urls, "always")
    fall(theirs, ill)
    assert servers.close().endswith(f"{theirs.instances[ill].port} (CONFIG SET appendfsync no)")
    assert redis.Redis.from_url(theirs.urls[well]).config_get("appendfsync") == {
        "appendfsync": "no"
    }


# -- WAITAOF, faults of servers --------------------------------------------------------------------


def with_waitaof() -> ServerBinary:
    for server in found_servers():
        if not without_waitaof(server.name, server.version):
            return server
    pytest.skip("no server with WAITAOF on this machine")


def test_a_lock_whose_fsync_is_not_confirmed_is_not_granted(tmp_path: Path) -> None:
    cell = cell_of("waitaof", pipeline=2)
    # never synced, so WAITAOF's time-out answers
    with start_fleet(1, "no", server=with_waitaof()) as fleet:
        with load_process(LoadOrder(fleet.urls, "lockbench:test:", cell, 1)) as load:
            load.tell(Phase(0.0, 0.1))
            figures = load.hear(PhaseFigures, WAIT_S)
        assert keys(fleet) == 0, "what was not granted is cleaned up"
    assert figures.leases == 0
    assert figures.denied == {"unreachable": 2}


@pytest.mark.parametrize("number", [0, 1])
def test_the_notebooks_programs_show_the_faults_of_servers(number: int) -> None:
    text = (Path(__file__).parents[2] / "docs/lab/durability.md").read_text("utf-8")
    program = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[number]
    out = subprocess.check_output([sys.executable, "-c", program, with_waitaof().path], text=True)
    assert ("bytes written" if number == 0 else "locks acknowledged while rewriting") in out


def test_servers_without_the_shim_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Control, "loaded_in", lambda _self, _pid: False)
    with (
        pytest.raises(
            EnvironmentNotReadyError,
            match="lockbench can neither count fsyncs nor simulate a power cut",
        ),
        OwnServers(find_server(), None).serving(cell_of("no")),
    ):
        pass
