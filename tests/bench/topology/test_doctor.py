"""What the doctor says about a good and about a poor machine."""

import subprocess
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.topology import doctor
from bench.topology.doctor import Fact, Status, examine
from bench.topology.server import find_server


def named(facts: tuple[Fact, ...]) -> dict[str, Fact]:
    return {fact.name: fact for fact in facts}


@pytest.mark.integration
def test_this_machine_has_what_the_tests_run_on(tmp_path: Path) -> None:
    facts = named(examine(tmp_path))
    found = find_server()
    assert facts["server"].status is Status.OK
    assert f"{found.name} {found.version}, {found.path}" in facts["server"].value
    assert "AOF" in facts["server"].value
    assert "compare-and-delete" in facts["server"].value
    assert f" appends in {tmp_path}" in facts["fdatasync"].value
    assert facts["package redis"].status is Status.OK
    assert all(fact.advice for fact in facts.values() if fact.status is not Status.OK)
    assert not any(fact.advice for fact in facts.values() if fact.status is Status.OK)
    assert list(tmp_path.iterdir()) == []


def test_a_poor_machine_is_told_what_to_do_and_nothing_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = EnvironmentNotReadyError("/bin/redis-server does not run")
    monkeypatch.setattr(doctor, "found_servers", lambda: (broken,))
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda _pid: {0})
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _what: (64, 256))
    monkeypatch.setattr(doctor, "_text", lambda path: "MemAvailable: 1024 kB" if "meminfo" in path else "")
    monkeypatch.setattr(doctor, "_NEEDED", ("no-such-package-here",))
    monkeypatch.setenv("PATH", "")
    facts = named(examine(tmp_path / "absent"))
    assert facts["server"].value == "/bin/redis-server does not run"
    poor = {name: fact.status for name, fact in facts.items() if fact.status is not Status.OK}
    expected = {
        "server": Status.MISSING,
        "C compiler": Status.LIMITED,
        "cores": Status.LIMITED,
        "memory": Status.LIMITED,
        "fdatasync": Status.MISSING,
        "file descriptors": Status.LIMITED,
        "faults": Status.LIMITED,
        "fault: network namespace": Status.LIMITED,
        "package no-such-package-here": Status.MISSING,
    }
    assert poor | expected == poor
    assert all(facts[name].advice for name in expected)


def test_no_server_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "found_servers", lambda: ())
    (fact,) = doctor._servers()
    assert (fact.value, fact.status) == ("none found", Status.MISSING)
    assert "install" in fact.advice


def test_a_compiler_that_fails_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    assert doctor._compiler().value == f"{fake} fails"
    assert doctor._compiler().status is Status.LIMITED


def test_a_command_that_hangs_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_command: object, **_options: object) -> None:
        raise subprocess.TimeoutExpired("x", 1)

    monkeypatch.setattr(doctor.subprocess, "run", hang)
    assert not doctor._works("true")


def test_each_fault_is_possible_or_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "why_not_here", lambda _server: {"kill": None, "stop": None, "drop": "it needs root"})
    possible, impossible = doctor._faults()
    assert (possible.name, possible.value, possible.status) == ("faults", "kill, stop", Status.OK)
    assert (impossible.name, impossible.status) == ("fault: drop", Status.LIMITED)
    assert impossible.advice == "it needs root; a run with it says that it is skipped"
