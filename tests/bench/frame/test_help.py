"""Every command explains itself with examples that work, and a shell can complete it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bench.frame.commands import CALLED_NOW, EXAMPLES, JOBS, execute, lockbench

ROOT = Path(__file__).parents[3]
TOP = click.Context(lockbench, info_name="lockbench")
COMMANDS = lockbench.list_commands(TOP)


def help_of(name: str) -> str:
    command = lockbench.get_command(TOP, name)
    assert command is not None
    return command.get_help(click.Context(command, info_name=name, parent=TOP))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_shows_how(name: str) -> None:
    text = help_of(name)
    assert text.startswith("Usage: lockbench")
    assert text.count("Examples:") == 1
    assert f"  lockbench {name}" in text or f"(lockbench {name}" in text


@pytest.mark.parametrize(("name", "old"), CALLED_NOW)
def test_an_old_name_says_what_it_is_called_now(
    name: str, old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    now = CALLED_NOW[name, old]
    assert execute([name, f"{old}=1"]) == 2
    assert (
        capsys.readouterr().err
        == f"lockbench: option {old} of lockbench {name} is called {now} now\n"
    )
    assert now in help_of(name)
    assert f"{old} " not in help_of(name)


def test_help_offers_nothing_that_is_always_refused(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"--rate": "100", "--threshold": "acquire.p99 < 1s"}
    for option, value in given.items():
        assert execute(["capacity", "--slo", "acquire.p99 < 10ms", option, value]) == 2
        assert f"{option}: " in capsys.readouterr().err, "it says why"
        assert f"{option} " not in help_of("capacity")


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_eighty_columns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert execute([*name.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Usage: lockbench")
    assert not [line for line in lines if len(line) > 80]


def test_commands_stand_by_their_job_and_options_by_what_they_are_about() -> None:
    listed = lockbench.get_help(TOP)
    places = [listed.index(f"{job}:") for job in JOBS]
    assert places == sorted(places)
    assert listed.count("...") == 1  # ARGS...
    text = help_of("gate")
    before, _, lock = text.partition("\nLock:")
    assert "--users" in before.partition("\nLoad:")[2]
    assert "--ttl" in lock.partition("\nServers:")[0]
    assert "--tolerance" in before.partition("\nLoad:")[0]
    assert "--junit" in lock.partition("\nOutput:")[2]


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_is_understood(line: str) -> None:
    if line.startswith("eval"):
        line = line.partition("$(")[2].partition(")")[0]
    words = shlex.split(line.partition(" > ")[0].partition(" | ")[0])
    assert words[0] == "lockbench"
    command = lockbench.get_command(TOP, words[1])
    assert command.make_context(words[1], words[2:], parent=click.Context(lockbench)) is not None


def completed(words: str, place: int, shell: str = "bash") -> list[str]:
    asked = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(place),
        "_LOCKBENCH_COMPLETE": f"{shell}_complete",
    }
    done = subprocess.run(
        [sys.executable, "-m", "bench"],
        env={**os.environ, **asked, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_a_shell_completes_commands_options_and_recipes() -> None:
    assert completed("lockbench ca", 1) == ["capacity"]
    assert completed("lockbench run --recipe watch", 3) == ["watchdog", "watchdog-naive"]
    assert "--retry-window" in completed("lockbench run --retry", 2)
    assert completed("lockbench capacity --fsync e", 3) == ["everysec"]
    assert {"everyday", "hot-key"} <= set(completed("lockbench run ", 2))


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fsync --fsync al", ["always"]),
        ("crash --fsync always,e", ["always,everysec"]),
        ("gate --metric handoff.p5", ["handoff.p50"]),
        ("capacity --slo acquire.succ", ["acquire.success"]),
        ("run --threshold safety.viol", ["safety.violations"]),
        ("capacity --sweep fs", ["fsync="]),
        ("gate --variable fs", ["fsync"]),
        ("compare --recipe watch", ["watchdog", "watchdog-naive"]),
        ("safety --claim owner", ["owner-tokens"]),
        ("audit --schedule fork", ["forked"]),
    ],
)
def test_a_shell_completes_values(words: str, offered: list[str]) -> None:
    name, option, begun = words.split()
    command = lockbench.get_command(TOP, name)
    (parameter,) = (one for one in command.params if option in one.opts)
    items = parameter.shell_complete(click.Context(command), begun)
    assert [item.value for item in items] == offered


def test_of_words_to_choose_from_the_nearest_is_named_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert execute(["fsync", "--fsync", "alway"]) == 2
    assert "'alway' is no choice; did you mean always? ('none', " in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_asks_this_command(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lockbench.main(["completion", shell], standalone_mode=False) == 0
    script = capsys.readouterr().out
    assert f"_LOCKBENCH_COMPLETE={shell}_complete" in script
    assert "lockbench" in script


def test_bash_offers_the_ready_scenarios_and_leaves_files_to_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert lockbench.main(["completion", "bash"], standalone_mode=False) == 0
    tab = (
        "compopt() { :; }; COMP_WORDS=(lockbench run hot-); COMP_CWORD=2; "
        '_lockbench_completion "$1"'
    )
    script = f"{capsys.readouterr().out}\n{tab}; echo ${{COMPREPLY[@]}}"
    command = ["bash", "-c", script, "bash", str(Path(sys.executable).with_name("lockbench"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["hot-key", "hot-key-many-processes"]
