"""Plain Locust with our locustfile, against real servers: rows, totals, ends good and bad, no lock
left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psutil import Process
from redis import Redis

from bench.topology.fleet import Fleet, start_fleet
from tests.integration.locust_runs import (
    ROOT,
    answers,
    counts,
    free_port,
    get,
    keys,
    targets,
    until,
)

pytestmark = pytest.mark.integration
LOCUSTFILE = ROOT / "bench" / "workloads" / "locustfile.py"
NOBODY = r"nobody has judged this run: .* the run ended before all its users had started"
VERDICT = re.compile(
    rf"(SAFE|NOT TESTED|UNKNOWN|INVALID|INCONCLUSIVE)   ([\d,.]+ leases/s|{NOBODY})"
    r"|INVALID   the figures of this run"
)
RUNNING: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(fleet: Fleet) -> Iterator[None]:
    yield
    for process in RUNNING:
        # of a test that failed: it would load the machine for ever
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    RUNNING.clear()
    assert keys(fleet) == 0


@dataclass
class Plain:
    """A plain `locust` of ours, in a process group and a folder of its own."""

    process: subprocess.Popen[str]
    folder: Path

    def end(self, timeout_s: float = 90.0) -> tuple[int, list[dict[str, Any]], str]:
        """Exit code, what --json printed, standard error."""
        out, err = self.process.communicate(timeout=timeout_s)
        assert "Traceback" not in err, err
        assert [
            path.name
            for path in (self.folder / "tmp").iterdir()
            if path.name.startswith("lockbench")
        ] == []
        rows = json.loads(out[out.index("[") :]) if "[" in out else []
        return self.process.returncode, rows, err


def plain(
    folder: Path, *words: str, processes: int = 1, environ: dict[str, str] | None = None
) -> Plain:
    (folder / "tmp").mkdir()
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        str(LOCUSTFILE),
        "--json",
        "--instance-timeout",
        "2500ms",
        *words,
    ]
    if processes > 1:
        port = str(free_port())
        command += [
            "--processes",
            str(processes),
            "--master-port",
            port,
            "--master-bind-port",
            port,
        ]
        command += ["--master-bind-host", "127.0.0.1"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder / "tmp"),
            **(environ or {}),
        },
    )
    RUNNING.append(process)
    return Plain(process, folder)


def sets(fleet: Fleet) -> int:
    with Redis.from_url(fleet.urls[0]) as client:
        return int(client.info("commandstats").get("cmdstat_set", {}).get("calls", 0))


def test_own_is_own_over_all_processes_and_takes_one_round_per_lease(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Seven callers in two processes over seven resources: whoever shared one would be refused and
    ask again."""
    words = [
        "--headless",
        "-u",
        "7",
        "-r",
        "7",
        "-t",
        "2s",
        "--skew",
        "own",
        "--resources",
        "7",
        "--hold",
        "fixed:1ms",
    ]
    words += ["--think", "fixed:10ms"]
    before = sets(fleet)
    code, rows, log = plain(tmp_path, *words, *targets(fleet), processes=2).end()
    assert code == 0, log
    acquires, _ = counts(rows)["acquire"]
    if acquires < 100:
        pytest.skip(f"the machine was too busy: {acquires} acquires in 2 s")
    assert sets(fleet) - before <= 1.05 * acquires + 5, "a busy machine answers late now and then"


def test_plain_locust_shows_our_rows_and_they_equal_our_counts(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Its targets come from the environment."""
    words = [
        "--headless",
        "-u",
        "20",
        "-r",
        "20",
        "-t",
        "1s",
        "--events",
        "stock",
        "--exit-code-on-error",
        "0",
    ]
    words += ["--think", "fixed:10ms"]
    run = plain(tmp_path, *words, processes=2, environ={"LOCKBENCH_TARGETS": " ".join(fleet.urls)})
    code, rows, log = run.end()
    assert code == 0, log
    table = counts(rows)
    assert set(table) == {"acquire", "release"}
    acquires, failed = table["acquire"]
    assert acquires > 0
    assert table["release"] == (acquires - failed, 0)
    assert VERDICT.search(log.splitlines()[-1]), "the verdict is the last line"
    for row in rows:
        assert row["method"] == "redlock"
        assert row["min_response_time"] > 0
        # a busy machine has none so short
        if row["min_response_time"] < 5:
            # fractions of a millisecond
            assert any(float(key) % 1 for key in row["response_times"])


@pytest.mark.parametrize("processes", [1, 2])
def test_a_lock_that_does_not_hold_is_caught_by_plain_locust(
    fleet: Fleet, tmp_path: Path, processes: int
) -> None:
    words = [
        "--headless",
        "-u",
        "16",
        "-r",
        "16",
        "-t",
        "3s",
        "--recipe",
        "get-set",
        "--resources",
        "1",
    ]
    words += ["--hold", "20ms", "--pause", "after-get:5ms:0.5", "--target", fleet.urls[0]]
    code, _, log = plain(tmp_path, *words, processes=processes).end()
    assert code == 5, log
    assert re.search(r"VIOLATED   .*; \d+ × service fault", log.splitlines()[-1]), "and why"


def test_servers_with_a_password_are_judged_and_it_is_told_nowhere(tmp_path: Path) -> None:
    with start_fleet(1, "none") as fleet:
        with Redis.from_url(fleet.urls[0]) as server:
            server.config_set("requirepass", "sesame")
        url = fleet.urls[0].replace("redis://", "redis://:sesame@")
        words = ["--headless", "-u", "4", "-r", "4", "-t", "2s", "--hold", "fixed:1ms"]
        _, _, log = plain(tmp_path, *words, environ={"LOCKBENCH_TARGETS": url}).end()
    assert VERDICT.search(log.splitlines()[-1]), log
    assert "sesame" not in log


def test_a_run_whose_judge_was_killed_goes_on_and_says_so(fleet: Fleet, tmp_path: Path) -> None:
    words = ["--headless", "-u", "4", "-r", "4", "--hold", "fixed:1ms", *targets(fleet)]
    run = plain(tmp_path, *words)
    until(lambda: keys(fleet) > 0, "a lock")
    (judge,) = (
        child
        for child in Process(run.process.pid).children()
        if "bench.run.beside" in child.cmdline()
    )
    judge.kill()
    run.process.send_signal(signal.SIGINT)
    code, rows, log = run.end()
    assert (code, counts(rows)["acquire"][0] > 0) == (0, True), log
    assert (
        "UNKNOWN   nobody has judged this run: the judge ended early (signal 9)"
        in log.splitlines()[-1]
    )


def test_an_unreachable_target_is_one_sentence_and_exit_code_3(
    fleet: Fleet, tmp_path: Path
) -> None:
    dead = f"redis://:sesame@127.0.0.1:{free_port()}"
    words = ["--headless", "-u", "4", "-r", "4", "-t", "5s", *targets(fleet), "--target", dead]
    code, rows, log = plain(tmp_path, *words, processes=2).end()
    assert code == 3, log
    assert rows == []
    assert log.count("cannot be used") == 1
    assert "correct that, or name other instances with --target" in log
    assert "sesame" not in log


@pytest.mark.parametrize(
    "words, sentence",
    [
        (
            ["--target", "redis://h", "--rate", "10", "--think", "5ms"],
            "option --think: think times are only possible ",
        ),
        ([], "there is no instance to lock on; give --target"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_exit_code_2(
    tmp_path: Path, words: list[str], sentence: str
) -> None:
    code, rows, log = plain(tmp_path, "--headless", "-t", "5s", *words).end()
    assert (code, rows) == (2, [])
    assert f"lockbench: {sentence}" in log


@pytest.mark.parametrize("processes, number", [(2, signal.SIGINT), (1, signal.SIGTERM)])
def test_ctrl_c_and_sigterm_give_every_lock_back_and_keep_the_totals(
    fleet: Fleet, tmp_path: Path, processes: int, number: signal.Signals
) -> None:
    words = [
        "--headless",
        "-u",
        "16",
        "-r",
        "16",
        "--hold",
        "fixed:50ms",
        "--exit-code-on-error",
        "0",
    ]
    run = plain(tmp_path, *words, *targets(fleet), processes=processes)
    until(lambda: keys(fleet) > 3 * 8, "locks held by more users than one process has")
    until(lambda: keys(fleet) < 3 * 16, "a lock given back")
    if number is signal.SIGINT:
        # a terminal sends it to the whole group
        os.killpg(run.process.pid, number)
    else:
        run.process.send_signal(number)
    code, rows, log = run.end()
    assert code == 0, log
    acquires, failed = counts(rows)["acquire"]
    assert acquires > 8, "those whose locks were seen are counted"
    assert counts(rows)["release"] == (acquires - failed, 0)


def test_users_that_locust_kills_under_a_lease_or_while_they_wait_for_one_leave_nothing(
    fleet: Fleet, tmp_path: Path
) -> None:
    words = [
        "--headless",
        "-u",
        "6",
        "-r",
        "6",
        "-t",
        "3s",
        "--stop-timeout",
        "1",
        "--resources",
        "1",
    ]
    words += ["--hold", "fixed:50s", "--wait", "30s", "--ttl", "60s", "--max-ttl", "60s"]
    # a quick machine makes the usual 1,000 in three seconds
    words += ["--retry-attempts", "1000000"]
    began = time.monotonic()
    code, rows, log = plain(tmp_path, *words, *targets(fleet)).end()
    assert code == 0, log
    # nobody waited for a hold
    assert time.monotonic() - began < 45
    # the others were cut in their acquire
    assert counts(rows) == {"acquire": (1, 0), "release": (1, 0)}


def state(url: str) -> str:
    return str(json.loads(get(f"{url}/stats/requests"))["state"])


def test_the_web_ui_has_our_options_and_our_rows_and_runs_twice(
    fleet: Fleet, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = ("--web-host", "127.0.0.1", "--web-port", str(port), "--result", "out")
    run = plain(tmp_path, *words, *targets(fleet))
    try:
        until(lambda: answers(url), "the web UI")
        page = get(url)
        for option in ("retry_window", "instance_timeout", "skew", "hold", "targets"):
            assert f'"{option}"' in page, option
        # a drop-down
        assert '"choices": ["full-jitter", "poll", "push", "fixed", "none"]' in page
        assert 'input[name="host"]){display:none}' in page
        # else the page asks for a field that it does not show
        assert '"missing_host_warning": false' in page
        assert verdict(url)["text"] == "", "nothing has run"
        assert "RPS: the last seconds of Locust's table" in page, "what its rate and ours count"
        for round_ in range(2):
            form = "user_count=4&spawn_rate=4&hold=fixed%3A1ms&resources=50"
            post(f"{url}/swarm", form)
            # before that, the last run's rows are shown
            until(lambda: state(url) == "running", f"run {round_}")
            until(
                lambda: rows_of(url).get("release", {}).get("num_requests", 0) > 50,
                f"rows of run {round_}",
            )
            assert rows_of(url)["acquire"]["median_response_time"] > 0
            if round_ == 1:
                # Locust takes it; the run keeps its plan
                post(f"{url}/swarm", "user_count=4&spawn_rate=4&ttl=bogus")
            post(f"{url}/stop")
            until(lambda: state(url) == "stopped", "the end of the run")
            # it returns at a quorum
            until(lambda: keys(fleet) == 0, "the last release's arrival everywhere")
            until(lambda: verdict(url)["report"], "the verdict")
            assert verdict(url)["word"] in ("SAFE", "NOT TESTED", "INVALID")
            assert "leases/s over" in verdict(url)["text"] or verdict(url)["word"] == "INVALID"
            assert "; " in verdict(url)["text"], "the reason of the word"
            assert "<html" in get(f"{url}/lockbench/report")
    finally:
        run.process.send_signal(signal.SIGINT)
    code, _, log = run.end()
    assert code == 0, log
    assert len(VERDICT.findall(log)) == len(list((tmp_path / "out").glob("*/result.json"))) == 2
    assert "Traceback" not in log


def verdict(url: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(get(f"{url}/lockbench/verdict"))
    return answer


def post(url: str, form: str = "") -> None:
    urllib.request.urlopen(url, data=form.encode(), timeout=10).close()


def rows_of(url: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(get(f"{url}/stats/requests"))["stats"]}
