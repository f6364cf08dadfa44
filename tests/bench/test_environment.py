"""Targets of the environment: every command that takes --target honours them, and names them where
they are wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.errors import UsageError
from bench.frame.options import given_options
from bench.program import lockbench as group
from bench.scenario.environment import split_targets, targets_of
from bench.topology.probe import inspect
from tests.conftest import Ended
from tests.doubles.instance import Instances

SECRET = "s3cret"
TWO = ["redis://10.0.0.1", "valkey+unix:///tmp/a.sock"]
# what each command needs besides
WORDS = {
    "run": (),
    "observe": (),
    "fsync": (),
    "doctor": (),
    "capacity": ("--slo", "acquire.p99 < 10ms"),
    "compare": ("hot-key", "--variable", "users=8,9"),
    "gate": ("--baseline", "hot-key", "--candidate", "hot-key"),
}


@pytest.mark.parametrize(
    "text", [" ".join(TWO), ", ".join(TWO), "\n".join(TWO), f"\n {TWO[0]},{TWO[1]} \n"]
)
def test_urls_are_parted_by_spaces_lines_or_commas(text: str) -> None:
    assert split_targets(text) == TWO
    assert targets_of({"LOCKBENCH_TARGETS": text}) == (TWO, "LOCKBENCH_TARGETS")


def test_a_file_has_one_a_line_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "targets"
    file.write_text(
        f"# ours\n{TWO[0]}\n\n  # the other one\r\n{TWO[1]} # :7000 is the old one\r\n",
        encoding="utf-8-sig",
    )
    assert targets_of({"LOCKBENCH_TARGETS_FILE": str(file)}) == (TWO, "LOCKBENCH_TARGETS_FILE")


def test_nothing_set_is_nothing() -> None:
    assert targets_of({"LOCKBENCH_TARGETS": "", "LOCKBENCH_TARGETS_FILE": " "})[0] == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "LOCKBENCH_TARGETS_FILE: .* cannot be read"),
        (b"", "names no instance; write one URL per line"),
        (b"# redis://a\n", "names no instance"),
        (b"\xff\xfe", "is not UTF-8"),
        (
            f"redis://a redis://:{SECRET}@b?nonsense=1".encode(),
            "target 2: 'redis://:.*@b.*' is not a usable",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_variable(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "targets"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=says) as raised:
        targets_of({"LOCKBENCH_TARGETS_FILE": str(file)})
    assert "LOCKBENCH_TARGETS_FILE" in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("mode", "url", "is_exposed"),
    [
        (0o644, f"redis://:{SECRET}@127.0.0.1:1", True),
        (0o640, f"rediss://127.0.0.1:1?password={SECRET}", True),
        (0o600, f"redis://:{SECRET}@127.0.0.1:1", False),
        (0o644, "redis://127.0.0.1:1", False),
    ],
)
def test_a_file_of_passwords_that_others_may_read_is_remarked_once(
    lockbench: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    mode: int,
    url: str,
    is_exposed: bool,
) -> None:
    file = tmp_path / "my targets"
    file.write_text(url)
    file.chmod(mode)
    monkeypatch.setenv("LOCKBENCH_TARGETS_FILE", str(file))
    done = lockbench("run", "hot-key", "--quiet")
    assert done.returncode == 3
    assert done.stderr.count("other users can read it; run chmod 600 '") == is_exposed
    assert SECRET not in done.stderr


def test_both_variables_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="both set; unset one"):
        targets_of({"LOCKBENCH_TARGETS": TWO[0], "LOCKBENCH_TARGETS_FILE": "x"})


def test_an_option_for_servers_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKBENCH_TARGETS", TWO[0])
    assert given_options({"users": "3"}) == {"users": "3", "targets": [TWO[0]]}
    assert given_options({"targets": (TWO[1],)}) == {"targets": (TWO[1],)}
    for own in ({"instances": "3"}, {"fsync": "no"}):
        assert given_options(own) == own
    assert given_options({"server": "/x"}) == {}


def test_every_command_with_target_is_in_this_table() -> None:
    taking = set()
    for name, command in group.commands.items():
        if any("--target" in option.opts for option in command.params):
            taking.add(name)
    assert taking == set(WORDS)


@pytest.mark.parametrize("variable", ["LOCKBENCH_TARGETS", "LOCKBENCH_TARGETS_FILE"])
@pytest.mark.parametrize("command", WORDS)
def test_every_command_with_target_asks_the_instances_of_the_environment(
    lockbench: Callable[..., Ended],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
    variable: str,
) -> None:
    with Instances.of(1) as instances:
        # it cannot vote, so nothing is measured
        instances[0].run_id = ""
        instances[0].says["other"] = b"-NOAUTH Authentication required.\r\n"
        value = instances[0].url
        if variable == "LOCKBENCH_TARGETS_FILE":
            (tmp_path / "targets").write_text(value)
            value = str(tmp_path / "targets")
        monkeypatch.setenv(variable, value)
        if command == "doctor":
            monkeypatch.setattr("bench.topology.doctor.examine", tuple)
        # it would count the commands of an acquire first, on servers of its own
        if command == "gate":
            now = "bench.experiments.compare.command._now"
            monkeypatch.setattr(now, lambda _kind, sides, *_: inspect(sides[1].scenario.targets))
        done = lockbench(command, *WORDS[command])
        assert done.returncode == 3, done.stderr
        assert f"127.0.0.1:{instances[0].port.number}" in done.stdout + done.stderr
        assert "the server asks for a password" in " ".join((done.stdout + done.stderr).split())
        assert f"lockbench: 1 target from {variable}\n" in done.stderr
