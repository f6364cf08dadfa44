"""The verdict of a run as its whole result earns it: what else the reasons of a violated run
name."""

import pytest
from msgspec import structs

from bench.gates.run_verdict import judge_result
from bench.measure.fleet_facts import InfoDelta
from bench.measure.run_result import RunResult
from bench.measure.section import typed
from tests.bench.whole_run import SAMPLE


@pytest.fixture
def result() -> RunResult:
    return typed(SAMPLE, RunResult)


def with_evictions(result: RunResult, keys: int, safety: str) -> RunResult:
    info = InfoDelta("10.0.0.1:6379", None, 1.0, evicted_keys=keys)
    first, *others = result.instances
    instances = (structs.replace(first, info=info), *others)
    report = structs.replace(
        result.safety, verdict=safety, reason="1 × service fault", service_faults=1, violations=1
    )
    return structs.replace(result, instances=instances, safety=report)


def test_a_violated_run_names_the_instances_that_evicted_keys(result: RunResult) -> None:
    verdict = judge_result(with_evictions(result, 1_234, "VIOLATED"))
    assert verdict.word == "VIOLATED"
    assert any("evicted 1,234 keys" in reason for reason in verdict.reasons)


def test_a_violated_run_without_evictions_names_none(result: RunResult) -> None:
    assert not any(
        "evicted" in reason
        for reason in judge_result(with_evictions(result, 0, "VIOLATED")).reasons
    )
