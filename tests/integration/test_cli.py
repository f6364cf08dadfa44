"""The `lockbench` command as people type it: exit codes, what goes to which stream, and never a
traceback."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from tests.conftest import Ended
from tests.integration.locust_runs import ROOT, all_end, free_port, started

pytestmark = pytest.mark.integration
Lockbench = Callable[..., Ended]


def refused(done: Ended, code: int) -> str:
    """The one sentence of a refusal: nothing on stdout, no traceback, the right exit code."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert lines[-1].startswith("lockbench: "), done.stderr
    return lines[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnu"], "no such command 'rnu'"),
        (["run", "--usrs", "3"], "no such option '--usrs'"),
        (
            ["run", "--users", "many"],
            "option --users: 'many' is not a whole number from 1 to 100000",
        ),
        (["run", "--duration", "20"], "option --duration: 20 is not a duration"),
        (["run", "nowhere.toml"], "nowhere.toml: no scenario file has this name"),
        (
            ["run", "--threshold", "aquire.p99 < 1ms"],
            "there is no metric aquire.p99; did you mean acquire.p99?",
        ),
        (
            ["run", "--threshold", "acquire.p99 < 1"],
            "the limit needs a unit (write it like acquire.p99 < 5ms)",
        ),
        (["run", "--target", "localhost"], "option --target: 'localhost' is not an instance URL"),
        (["run", "--recipe", "redlok"], "there is no recipe 'redlok'"),
        (
            ["run", "--recipe", "set-nx-lua", "--instances", "5"],
            "the recipe set-nx-lua locks on 1 instance",
        ),
        (
            ["run", "--recipe", "set-nx-lua", "--pause", "after-get:1ms:0.5"],
            "no pause point 'after-get'; its points",
        ),
        (
            [
                "run",
                "--fault",
                '{ at = "1s", kind = "fsync-latency", target = ["instance:0"], params = '
                "{ dely = 2 } }",
            ],
            "fault 1 (fsync-latency): there is no param 'dely' (it has delay); did you mean delay?",
        ),
        (
            ["run", "--instance-timeout", "3s"],
            "3s is too long for a ttl of 10s; set at most 2500ms, a quarter of the ttl",
        ),
        (["fleet", "--instances", "0"], "invalid value for '--instances'"),
        (["fleet", "--fsync", "sometimes"], "invalid value for '--fsync'"),
        (["doctor", "--what"], "no such option '--what'"),
        (
            ["safety", "--recipe", "redlok", "--out", "out"],
            "no recipe 'redlok'; did you mean redlock?",
        ),
        (
            ["safety", "--claim", "restart", "--out", "out"],
            "no claim 'restart'; did you mean restart-margin?",
        ),
        (
            ["safety", "--recipe", "set-nx-lua", "--recipe", "nothing"],
            "no recipe 'nothing'; the recipes are redlock, ",
        ),
        (["safety", "--recipe", "nope"], "no recipe 'nope'; the recipes are redlock, "),
        (["explore", "--budget", "0s"], "'--budget': the duration is 0"),
        (
            ["split-votes", "--contenders", "3,many"],
            "'--contenders': 'many' is not a valid whole number",
        ),
        (["split-votes", "--spread", "2s"], "'--spread': 2s is too long"),
        (
            ["split-votes", "--retry-policy", "exponential:5ms"],
            "'--retry-policy': 'exponential:5ms' is not a retry policy",
        ),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_2(
    lockbench: Lockbench, tmp_path: Path, arguments: Sequence[str], said: str
) -> None:
    done = lockbench(*arguments)
    assert said in refused(done, 2)
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing was started, so nothing is left"


def test_without_a_command_the_help_is_shown(lockbench: Lockbench) -> None:
    done = lockbench()
    assert done.returncode == 2
    assert "Exit codes: 0 pass" in done.stderr
    assert lockbench("--help").returncode == 0
    assert lockbench("--version").stdout.startswith("lockbench ")


def test_an_unreachable_target_is_named_without_its_password(lockbench: Lockbench) -> None:
    url = f"redis://user:hunter2@127.0.0.1:{free_port()}"
    sentence = refused(lockbench("run", "--target", url, "--quiet"), 3)
    assert "lockbench cannot use 1 of 1 targets: 127.0.0.1:" in sentence
    assert "connection refused" in sentence
    assert "hunter2" not in sentence


@pytest.mark.parametrize("place", ["there", "file/below", "/proc/lockbench"])
def test_a_result_folder_that_cannot_be_used_is_refused_before_any_work(
    lockbench: Lockbench, tmp_path: Path, place: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    sentence = refused(lockbench("run", "--out", place), 3)
    assert place in sentence
    assert "--out" in sentence


def test_a_markdown_file_that_cannot_be_written_is_refused_before_any_work(
    lockbench: Lockbench,
) -> None:
    assert "cannot write" in refused(lockbench("run", "--markdown", "no/where.md"), 3)


def test_a_server_that_is_none_is_refused(lockbench: Lockbench, tmp_path: Path) -> None:
    assert "/no/such/server" in refused(lockbench("run", "--server", "/no/such/server"), 2)
    assert list(tmp_path.glob("results/*")) == [], "the empty result folder is gone"


def test_an_unexpected_exception_is_one_sentence_and_a_saved_traceback(tmp_path: Path) -> None:
    code = (
        "import bench.program as c, bench.__main__ as m\n"
        "def broken(*_arguments): raise RuntimeError('redis://u:hunter2@h:1 broke')\n"
        "c.execute = broken\n"
        "m.main(['run'])"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    (saved,) = tmp_path.glob("lockbench-crash-*.txt")
    assert str(saved) in done.stderr
    assert "RuntimeError" in saved.read_text()
    assert "hunter2" not in saved.read_text() + done.stderr
    assert saved.stat().st_mode & 0o077 == 0


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    process = started(tmp_path, "recipes")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 0, "a reader that leaves early changes no exit code"
    assert stderr == ""


@pytest.mark.parametrize(
    "redirection, code, said",
    [
        (">&-", 0, ""),
        ("2>&- >&- <&-", 0, ""),
        (
            ">/dev/full",
            3,
            "lockbench: the output cannot be written (No space left on device); ",
        ),
    ],
)
def test_output_that_goes_nowhere_is_no_fault_of_ours(
    tmp_path: Path, redirection: str, code: int, said: str
) -> None:
    command = f'"{sys.executable}" -m bench recipes {redirection}'
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", command], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)


def test_init_writes_a_lock_only_where_judge_would_read_it(
    lockbench: Lockbench, tmp_path: Path
) -> None:
    assert "mine.txt does not end in .py" in refused(lockbench("init", "--lock", "mine.txt"), 2)
    assert not (tmp_path / "mine.txt").exists()
    assert "run: lockbench judge own.py" in lockbench("init", "--lock", "own.py").stderr


def test_init_writes_a_scenario_that_loads_and_never_overwrites(
    lockbench: Lockbench, tmp_path: Path
) -> None:
    done = lockbench("init")
    assert (done.returncode, done.stdout) == (0, "")
    assert "wrote scenario.toml; as the next step, run: lockbench run scenario.toml" in done.stderr
    assert "run: lockbench run 'my own.toml'" in lockbench("init", "my own.toml").stderr
    text = (tmp_path / "scenario.toml").read_text(encoding="utf-8")
    assert 'retry.window = "5ms"' in text
    assert "already exists" in refused(lockbench("init"), 3)
    assert "option --users: 0 is not a whole number" in refused(
        lockbench("run", "scenario.toml", "--users", "0"), 2
    )


def test_recipes_are_listed_with_their_fault(lockbench: Lockbench) -> None:
    assert "set-nx-lua" in lockbench("recipes").stdout
    listed = json.loads(lockbench("recipes", "--json").stdout)
    assert {recipe["name"] for recipe in listed} >= {"redlock", "set-nx-lua"}
    assert all(recipe["flaw"] for recipe in listed)


@pytest.mark.parametrize(("number", "as_json"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_fleet_prints_its_urls_and_ends_with_all_its_servers(
    tmp_path: Path, number: signal.Signals, as_json: bool
) -> None:
    words = ("fleet", "--instances", "3", "--fsync", "no", *["--json"] * as_json)
    with started(tmp_path, *words) as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline()) if as_json else None
        urls = facts["urls"] if facts else [process.stdout.readline().strip() for _ in range(3)]
        servers = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "server" in child.name()
        ]
        for url in urls:
            host, port = url.removeprefix("redis://").split(":")
            socket.create_connection((host, int(port)), 5).close()
        process.send_signal(number)
        rest, _ = process.communicate(timeout=30)
    assert (process.returncode, len(urls), len(servers)) == (130, 3, 3)
    assert rest == "", "stdout holds the URLs, or one object, and nothing else"
    assert facts is None or (facts["fsync"] == "no" and facts["server"]["version"])
    all_end(child.pid for child in servers)
