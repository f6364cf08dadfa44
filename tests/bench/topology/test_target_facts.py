"""What `doctor --target` says of an instance: its identity and what that means. Doubles of documented INFO."""

from __future__ import annotations

import json

import pytest

from bench.cli.doctor import print_doctor
from bench.errors import UsageError
from bench.topology.doctor import Status, examine_target
from bench.topology.ports import HOST, KeptPort
from tests.doubles.instance import Instances


def told(instances: Instances, *, run_id: bool) -> dict[str, tuple[str, Status, str]]:
    if not run_id:
        instances[0].run_id = ""
    return {fact.name: (fact.value, fact.status, fact.advice) for fact in examine_target(instances[0].url)}


@pytest.mark.parametrize(
    ("info", "run_id", "identity", "status", "meaning"),
    [
        ("", True, "run_id", Status.OK, "every restart is noticed"),
        (f"master_replid:{'4d' * 20}\r\n", False, "master_replid", Status.LIMITED, "a first replica changes it"),
        ("process_id:1\r\n", False, "process_id and start time", Status.LIMITED, "not one within a second"),
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


def test_a_server_that_cannot_vote_says_why_and_is_3(capsys: pytest.CaptureFixture[str]) -> None:
    with Instances.of(1) as instances:
        instances[0].run_id = ""
        assert print_doctor((instances[0].url,), as_json=True) == 3
        (fact,) = json.loads(capsys.readouterr().out)
        assert "neither run_id nor master_replid nor process_id" in fact["advice"]


def test_a_target_that_is_not_there_or_no_url_is_one_sentence() -> None:
    port = KeptPort()
    (fact,) = examine_target(f"redis://:hunter2@{HOST}:{port.number}")
    assert fact.status is Status.MISSING
    assert "hunter2" not in str(fact)
    with pytest.raises(UsageError, match="--target"):
        examine_target("redis://:hunter2")
