"""What the doctor says about a good and about a poor machine, and about one instance."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.topology import doctor, probe
from bench.topology.doctor import Fact, Status, examine, examine_target, examine_targets
from bench.topology.fleet import HOST, KeptPort
from bench.topology.server import find_server
from tests.conftest import Ended
from tests.doubles.instance import Instances


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
    assert all(fact.advice for fact in facts.values() if fact.status is not Status.OK)
    assert not any(fact.advice for fact in facts.values() if fact.status is Status.OK)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_a_server_without_a_known_release_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "dialect_of", lambda _target: None)
    fact = doctor._server()
    assert fact.status is Status.LIMITED
    assert fact.value.endswith("compare-and-delete not known")
    assert "DELEX" in fact.advice


def test_a_poor_machine_is_told_what_to_do_and_nothing_raises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def find_server() -> None:
        raise EnvironmentNotReadyError("/bin/redis-server does not run")

    monkeypatch.setattr(doctor, "find_server", find_server)
    monkeypatch.setattr(doctor, "usable_cores", lambda: 1.0)
    # forgets what it compiled
    monkeypatch.setattr(doctor, "shim_library", doctor.shim_library.__wrapped__)
    monkeypatch.setenv("PATH", "")
    facts = named(examine(tmp_path / "absent"))
    assert facts["server"].value == "/bin/redis-server does not run"
    poor = {name: fact.status for name, fact in facts.items() if fact.status is not Status.OK}
    expected = {
        "server": Status.MISSING,
        "C compiler": Status.LIMITED,
        "cores": Status.LIMITED,
        "fdatasync": Status.MISSING,
        "faults": Status.LIMITED,
    }
    assert poor | expected == poor
    assert all(facts[name].advice for name in expected)


def test_each_fault_is_possible_or_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_server", lambda: None)
    monkeypatch.setattr(
        doctor,
        "why_not_here",
        lambda _server: {"kill": None, "stop": None, "drop": "it needs root"},
    )
    possible, impossible = doctor._faults()
    assert (possible.name, possible.value, possible.status) == ("faults", "kill, stop", Status.OK)
    assert (impossible.name, impossible.status) == ("fault: drop", Status.LIMITED)
    assert impossible.advice == "it needs root; use --allow-skipped to run without this fault"


def told(instances: Instances, *, run_id: bool) -> dict[str, tuple[str, Status, str]]:
    if not run_id:
        instances[0].run_id = ""
    return {
        fact.name: (fact.value, fact.status, fact.advice)
        for fact in examine_target(instances[0].url)
    }


@pytest.mark.parametrize(
    ("info", "run_id", "identity", "status", "meaning"),
    [
        ("", True, "run_id", Status.OK, "every restart is noticed"),
        (
            f"master_replid:{'4d' * 20}\r\n",
            False,
            "master_replid",
            Status.LIMITED,
            "the first replica also changes master_replid",
        ),
        (
            "process_id:1\r\n",
            False,
            "process_id and start time",
            Status.LIMITED,
            "cannot notice a restart with the same process_id within a second",
        ),
    ],
    ids=["Redis", "Dragonfly", "Kvrocks"],
)
def test_the_identity_of_a_server_is_named_with_what_it_means(
    info: str, run_id: bool, identity: str, status: Status, meaning: str
) -> None:
    with Instances.of(1, info=info) as instances:
        facts = told(instances, run_id=run_id)
        assert facts["identity"][:2] == (identity, status)
        assert meaning in facts["identity"][2]
        assert facts["flushes"][:2] == ("not told", Status.LIMITED)
        assert facts["release"][0] == "evalsha"


def test_a_server_that_cannot_vote_says_why_and_is_3(lockbench: Callable[..., Ended]) -> None:
    with Instances.of(1) as instances:
        instances[0].run_id = ""
        done = lockbench("doctor", "--target", instances[0].url, "--json")
        assert done.returncode == 3
        (fact,) = json.loads(done.stdout)
        assert "neither run_id nor master_replid nor process_id" in fact["advice"]


def test_a_server_that_is_named_twice_can_vote_only_once() -> None:
    with Instances.of(2) as instances:
        urls = [instances[0].url, instances[1].url, instances[0].url + "/1"]
        facts = examine_targets(urls)
        unique = examine_targets(urls[:2])
    (twin,) = [fact for fact in facts if fact.status is Status.MISSING]
    assert twin.value.startswith("the same server as 127.0.0.1:"), twin
    assert twin.advice == "leave one out"
    assert not [fact for fact in unique if fact.status is Status.MISSING]


def test_a_target_that_is_not_there_or_no_url_is_one_sentence() -> None:
    port = KeptPort()
    (fact,) = examine_target(f"redis://:hunter2@{HOST}:{port.number}")
    assert fact.status is Status.MISSING
    assert "hunter2" not in str(fact)
    with pytest.raises(UsageError, match="--target"):
        examine_target("redis://:hunter2")
