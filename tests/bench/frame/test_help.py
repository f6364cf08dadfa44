"""Every command explains itself with examples that work, and a shell can complete it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import cloup
import pytest

from bench.program import execute, lockbench

ROOT = Path(__file__).parents[3]
TOP = cloup.Context(lockbench, info_name="lockbench")
COMMANDS = list(lockbench.commands)
EXAMPLES = [
    line.strip()
    for command in lockbench.commands.values()
    for line in (command.epilog or "").splitlines()
    if line.startswith("  ")
]


def help_of(name: str) -> str:
    command = lockbench.get_command(TOP, name)
    assert command is not None
    return command.get_help(cloup.Context(command, info_name=name, parent=TOP))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does_and_shows_how(name: str) -> None:
    text = help_of(name)
    assert text.startswith("Usage: lockbench")
    assert text.count("Examples:") == 1
    assert f"  lockbench {name}" in text or f"(lockbench {name}" in text


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
    jobs = ("Load a lock", "Plan capacity", "Compare, and gate in CI", "Judge safety")
    places = [listed.index(f"{job}:") for job in jobs]
    assert places == sorted(places)
    assert listed.count("...") == 1  # ARGS...
    text = help_of("gate")
    before, _, lock = text.partition("\nLock:")
    assert "--users" in before.partition("\nLoad:")[2]
    assert "--ttl" in lock.partition("\nServers:")[0]
    assert "--tolerance" in before.partition("\nLoad:")[0]
    assert "--junit" in lock.partition("\nOutput:")[2]


@pytest.mark.parametrize("line", EXAMPLES)
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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("fsync --fsync alway", "'alway' is not one of 'none', 'no', 'everysec', 'always', "),
        ("fsnyc", "no such command 'fsnyc'; did you mean 'fsync'?\n"),
        ("fsync --qick", "no such option '--qick' (did you mean one of: '--disk', '--quick', '"),
    ],
)
def test_a_wrong_word_is_refused_with_the_right_one(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(words.split()) == 2
    assert sentence in capsys.readouterr().err


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
