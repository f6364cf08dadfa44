"""Starting and ending Locust's process group; the process itself is played by a script here."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.scenario import load
from bench.workloads import launch
from bench.workloads.launch import OVER, LocustProcess, LocustSeries, command_line, note_failure
from bench.workloads.plan import Plan
from tests.integration.locust_runs import all_end, until

ROOT = Path(__file__).parents[3]


def plan(workdir: Path, processes: int = 1) -> Plan:
    options = {
        "targets": ["redis://:sesame@127.0.0.1:7001"],
        "users": "8",
        "processes": str(processes),
    }
    scenario = load(options=options)
    return Plan("7f3a", scenario.targets, "lockbench:7f3a:", scenario, workdir, timed=True)


def play(monkeypatch: pytest.MonkeyPatch, workdir: Path, script: str) -> LocustProcess:
    monkeypatch.setattr(launch, "command_line", lambda _plan: [sys.executable, "-c", script])
    return LocustProcess(plan(workdir))


def wait_for(path: Path) -> str:
    until(lambda: path.exists() and bool(path.read_text()), path.name)
    return path.read_text()


def test_the_command_line_is_headless_quiet_and_without_secrets(tmp_path: Path) -> None:
    words = command_line(plan(tmp_path))
    assert {"--headless", "--only-summary"} <= set(words)
    assert words[words.index("-u") + 1] == words[words.index("-r") + 1] == "8"
    assert words[words.index("--exit-code-on-error") + 1] == "0"
    assert "--processes" not in words
    assert "sesame" not in " ".join(words)


CONFIGURATIONS = {
    # in the home folder
    ".locust.conf": "tags = planted\nmaster = true\nrun-time = 3s\n",
    "locust.conf": "tags = planted\nmaster = true\nrun-time = 3s\n",
    "pyproject.toml": '[tool.locust]\ntags = ["planted"]\nmaster = true\nrun-time = "3s"\n',
    "": "",  # variables
}
READ = (
    "import json, runpy, sys; sys.argv = ['locust', '-f', 'none.py', *sys.argv[2:]]; "
    "runpy.run_path({bare!r}) if {bare!r} else None; "
    "from locust.argument_parser import get_parser; read = get_parser().parse_args(sys.argv[1:]); "
    "print(json.dumps([read.tags, read.master, read.run_time, read.num_users]))"
)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_locust_reads_its_command_line_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without our start Locust does read each of them, so they are planted where it
    looks."""
    monkeypatch.setenv("HOME", str(tmp_path))
    if name:
        (tmp_path / name).write_text(CONFIGURATIONS[name], encoding="utf-8")
    else:
        for variable, value in {"TAGS": "planted", "MODE_MASTER": "true", "RUN_TIME": "3s"}.items():
            monkeypatch.setenv(f"LOCUST_{variable}", value)

    def read(bare: str, environment: dict[str, str]) -> list[object]:
        command = [sys.executable, "-P", "-c", READ.format(bare=bare), "-", "-u", "8"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return list(json.loads(done.stdout))

    assert read("", dict(os.environ)) == [["planted"], True, 3, 8]
    bare = str(launch._BARE)
    environment = launch._environment(os.environ)
    assert read(bare, environment) == [None, False, None, 8]


def test_who_leads_and_who_joins_are_started_bare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **_: started.append(words))
    launch.join("10.0.0.9", 5557, 2, tmp_path / "note")
    for words in (*started, command_line(plan(tmp_path))):
        assert words[:3] == [sys.executable, "-P", str(launch._BARE)]
    assert len(started) == 1


def test_several_processes_speak_on_loopback_only(tmp_path: Path) -> None:
    words = command_line(plan(tmp_path, processes=2))
    assert words[words.index("--processes") + 1] == "2"
    assert (
        words[words.index("--master-bind-host") + 1]
        == words[words.index("--master-host") + 1]
        == "127.0.0.1"
    )
    assert words[words.index("--master-bind-port") + 1] == words[words.index("--master-port") + 1]


def test_locust_gets_the_plan_and_none_of_the_callers_locust_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCUST_USERS", "9")
    told = "{**os.environ, 'plan': open(os.environ['LOCKBENCH_PLAN']).read()}"
    script = f"import json, os; json.dump({told}, open('env', 'w'))"
    process = play(monkeypatch, tmp_path, script)
    assert process.wait(30) == 0
    process.close()
    environment = json.loads((tmp_path / "env").read_text())
    assert json.loads(environment["plan"])["run_id"] == "7f3a"
    assert {path.name for path in tmp_path.iterdir()} == {"env", "locust.log"}, (
        "a plan holds passwords"
    )
    assert environment["LOCKBENCH_PARENT"] == str(os.getpid())
    assert "LOCUST_USERS" not in environment
    assert process.failure() is None


def test_stopping_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import time\ntry:\n    open('ready', 'w').write('x')\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('in order')"
    )
    process = play(monkeypatch, tmp_path, script)
    wait_for(tmp_path / "ready")
    process.interrupt()
    assert process.wait(10) == 0
    process.close()
    assert process.log_tail() == "  in order"


def test_who_does_not_listen_is_killed_with_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import os, signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "pid = os.fork() or time.sleep(60)\nopen('worker', 'w').write(str(pid))\ntime.sleep(60)"
    )
    process = play(monkeypatch, tmp_path, script)
    worker = int(wait_for(tmp_path / "worker"))
    process.interrupt()
    assert process.wait(0.05) is None
    process.close()
    assert process.wait(0) == -signal.SIGKILL
    all_end([worker])


def test_a_locust_that_was_closed_is_signalled_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be that of others by then: a gate closes each of its series once more at its
    end."""
    locust = play(monkeypatch, tmp_path, "pass")
    assert locust.wait(30.0) == 0
    locust.close()
    signalled: list[int] = []
    monkeypatch.setattr(launch.os, "killpg", lambda group, _number: signalled.append(group))
    monkeypatch.setattr(launch, "_GROUP_ENDS_S", 0.0)
    locust.close()
    assert signalled == []


def test_a_worker_that_outlives_its_master_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_GROUP_ENDS_S", 0.05)
    script = (
        "import os, time\npid = os.fork()\nopen('worker', 'w').write(str(pid)) if pid else "
        "time.sleep(60)"
    )
    process = play(monkeypatch, tmp_path, script)
    assert process.wait(30) == 0
    process.close()
    all_end([int((tmp_path / "worker").read_text())])


def test_what_ended_the_run_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"sentence": "no room", "exit_code": 2, "of": "another version"}
    script = f"import json; json.dump({told}, open('failure.json', 'w')); exit(2)"
    process = play(monkeypatch, tmp_path, script)
    process.wait(30)
    process.close()
    failure = process.failure()
    assert isinstance(failure, UsageError)
    assert str(failure) == "no room"


def test_the_first_fault_stays_and_without_a_plan_nobody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    note_failure(UsageError("nobody hears"))
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("LOCKBENCH_PLAN", "/proc/self/fd/9")
    note_failure(EnvironmentNotReadyError("the first"))
    note_failure(UsageError("the second"))
    assert json.loads((tmp_path / "failure.json").read_text()) == {
        "sentence": "the first",
        "exit_code": 3,
    }


def test_an_end_without_words_shows_the_end_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = play(monkeypatch, tmp_path, "for i in range(30): print('line', i)\nexit(7)")
    process.wait(30)
    process.close()
    failure = process.failure()
    assert isinstance(failure, EnvironmentNotReadyError)
    assert "exit code 7" in str(failure)
    assert "line 29" in str(failure)
    assert "line 10\n" not in str(failure)


def test_a_log_without_a_line_is_said_to_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = play(monkeypatch, tmp_path, "exit(7)")
    process.wait(30)
    process.close()
    assert str(process.failure()).endswith("the end of its log:\n  (it said nothing)")


def test_a_folder_that_takes_no_plan_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        EnvironmentNotReadyError, match="Locust cannot be started in .*missing: No such file"
    ):
        LocustProcess(plan(tmp_path / "missing"))


SERIES = """
import os, socket
channel = socket.socket(fileno=int(os.environ["LOCKBENCH_SERIES"].rpartition("/")[2]))
plans = channel.makefile("rb")
print("one start", flush=True)
for answer in {answers!r}:
    channel.sendall(answer)
    if not plans.readline():
        break
{end}
"""


@pytest.fixture
def series(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LocustSeries]]:
    """A series whose Locust is played: it answers so often, then ends."""
    with contextlib.ExitStack() as stack:

        def made(answers: int, end: str = "") -> LocustSeries:
            script = SERIES.format(answers=[OVER] * answers, end=end)
            monkeypatch.setattr(
                launch, "command_line", lambda _plan: [sys.executable, "-c", script]
            )
            return stack.enter_context(contextlib.closing(LocustSeries()))

        yield made


def test_runs_of_a_series_follow_each_other_in_one_locust(
    series: Callable[..., LocustSeries], tmp_path: Path
) -> None:
    runs = series(answers=3)
    for _ in range(3):
        with contextlib.closing(runs.begin(plan(tmp_path))) as run:
            assert run.wait(30.0) == 0
            assert run.failure() is None
    assert run.log_tail() == "  one start"


def test_a_series_whose_locust_died_says_so_and_begins_anew(
    series: Callable[..., LocustSeries], tmp_path: Path
) -> None:
    runs = series(answers=1, end="os._exit(7)")
    assert runs.begin(plan(tmp_path)).wait(30.0) == 0
    with contextlib.closing(runs.begin(plan(tmp_path))) as run:
        assert run.wait(30.0) == 7
        assert "ended with exit code 7" in str(run.failure())
    assert runs.begin(plan(tmp_path)).wait(30.0) == 0


def test_a_series_forgets_why_an_earlier_run_failed(
    series: Callable[..., LocustSeries], tmp_path: Path
) -> None:
    told = json.dumps({"sentence": "the disk is full", "exit_code": 3})
    end = f"from pathlib import Path; Path('failure.json').write_text('{told}'); os._exit(3)"
    runs = series(answers=1, end=end)
    assert runs.begin(plan(tmp_path)).wait(30.0) == 0
    with contextlib.closing(runs.begin(plan(tmp_path))) as run:
        assert run.wait(30.0) == 3
        assert str(run.failure()) == "the disk is full"
    with contextlib.closing(runs.begin(plan(tmp_path))) as run:
        assert run.wait(30.0) == 0
        assert run.failure() is None


def test_a_locust_that_told_a_failure_gets_no_further_run(
    series: Callable[..., LocustSeries], tmp_path: Path
) -> None:
    """It is about to quit, even if its run has come to its end first."""
    runs = series(answers=2)
    assert runs.begin(plan(tmp_path)).wait(30.0) == 0
    before = runs._process
    (runs._guard.folder / "failure.json").write_text('{"sentence": "x", "exit_code": 3}')
    with contextlib.closing(runs.begin(plan(tmp_path))) as run:
        assert run.wait(30.0) == 0
        assert run.failure() is None
    assert runs._process is not before


def test_a_locust_that_dies_before_it_reads_the_next_plan_is_an_end(
    series: Callable[..., LocustSeries], tmp_path: Path
) -> None:
    end = "import time; channel.sendall(b'over\\n'); time.sleep(0.5); os._exit(7)"
    runs = series(answers=0, end=end)
    assert runs.begin(plan(tmp_path)).wait(30.0) == 0
    with contextlib.closing(runs.begin(plan(tmp_path))) as run:
        assert run.wait(30.0) == 7


def test_a_locust_that_was_asked_to_end_gets_no_further_run(
    series: Callable[..., LocustSeries], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run may come to its end first. This one takes its time."""
    runs = series(answers=2)
    run = runs.begin(plan(tmp_path))
    monkeypatch.setattr(LocustProcess, "interrupt", lambda _process: None)
    run.interrupt()
    assert run.wait(30.0) == 0
    run.close()
    assert runs._process is not None
    assert runs._process.wait(0) is not None


def test_a_series_leaves_no_process_and_no_folder(
    series: Callable[..., LocustSeries], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path))
    runs = series(answers=1)
    assert runs.begin(plan(tmp_path)).wait(30.0) == 0
    (folder,) = tmp_path.glob("lockbench-series-*")
    pid = runs._process._process.pid  # type: ignore[union-attr]
    runs.close()
    assert not folder.exists()
    all_end([pid])
