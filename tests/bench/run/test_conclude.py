"""What is said of an instance that did not see the run through: each cause once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.hosts.workers import FarCounts
from bench.measure.fleet_facts import InfoDelta, InstanceReport
from bench.measure.record import OUTCOME_CODES
from bench.measure.recorder import Recorder
from bench.run.conclude import Context, _instance_warnings, _judge, key_names
from bench.run.servers import Servers
from bench.scenario import load

REFUSED = "connection refused: nothing listens there"
NO_COUNTERS = f"no counters: {REFUSED}"


def instance(
    state: str, left: int | None, silence: str | None = None, **more: Any
) -> InstanceReport:
    info = InfoDelta("h:1", silence, 1.0)
    return InstanceReport(index=2, address="h:1", state=state, leaked_keys=left, info=info, **more)


@pytest.mark.parametrize(
    "seen, sentence",
    [
        (
            instance("down", None, NO_COUNTERS, reason=REFUSED),
            f"down at the end ({REFUSED}); lockbench could not check whether keys were left",
        ),
        (instance("down", 0, reason=REFUSED), f"down at the end ({REFUSED})"),
        (
            instance("voting", None, NO_COUNTERS),
            f"{NO_COUNTERS}; lockbench could not check whether keys were left behind",
        ),
        (
            instance("voting", 0, "no counters, because the instance restarted"),
            "no counters, because the instance restarted",
        ),
        (instance("voting", 1), "1 keys of this run were left behind"),
    ],
)
def test_a_warning_names_each_cause_once(seen: InstanceReport, sentence: str) -> None:
    (said,) = _instance_warnings(seen)
    assert said.startswith(f"instance #2 (h:1): {sentence}")
    assert said.count("refused") == sentence.count("refused")


def test_an_instance_that_voted_to_the_end_is_no_warning() -> None:
    assert list(_instance_warnings(instance("voting", 0))) == []


@pytest.mark.parametrize(("growth", "drifts"), [(0, False), (10, True)])
def test_a_run_whose_rate_drifts_says_so(tmp_path: Path, growth: int, drifts: bool) -> None:
    second_ns = 1_000_000_000
    acquired = OUTCOME_CODES["acquired"]
    recorder = Recorder(tmp_path, 0, 4_096)
    for tenth in range(10):
        for number in range(100 + growth * tenth):
            at = second_ns + tenth * second_ns // 10 + number * 100_000
            recorder.write(
                at,
                at,
                at,
                at + 9,
                at + 10_000,
                at + 9,
                at + 9,
                at + 20,
                at + 9,
                7,
                0,
                acquired,
                5,
                1,
                number,
            )
    recorder.close()
    scenario = load(options={"duration": "1s", "warmup": "0s"})
    context = Context(scenario=scenario, window_ns=(second_ns, 2 * second_ns))
    sections, *_ = _judge(tmp_path, context, [], {}, FarCounts())
    assert (
        any(
            "the rate was not in a steady state: it changed by" in text
            for text in sections.warnings
        )
        == drifts
    )


@pytest.mark.parametrize(("capacity", "faults"), [(1, 2), (2, 1), (3, 0)])
def test_the_oracle_and_the_drawing_know_how_many_may_hold(
    tmp_path: Path, capacity: int, faults: int
) -> None:
    second_ns = 1_000_000_000
    outcome = OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
    recorder = Recorder(tmp_path, 0, 64)
    for number in range(3):
        at = second_ns + number * 1_000_000
        end = at + 9_000_000
        recorder.write(
            at, at, at, at, at + second_ns, end, end, end + 9, at, 0, 0, outcome, 5, 1, number
        )
    recorder.close()
    scenario = replace(load(options={"duration": "1s", "warmup": "0s"}), capacity=capacity)
    context = Context(scenario=scenario, window_ns=(second_ns, 2 * second_ns))
    sections, *_ = _judge(tmp_path, context, [], {}, FarCounts())
    safety = sections.values.safety
    assert safety.service_faults == faults
    assert any(row[5] for row in safety.holders[0].rows) == (faults > 0)


@pytest.mark.parametrize(
    ("recipe", "capacity", "names"),
    [
        ("set-nx-lua", 1, ["pr7"]),
        ("semaphore", 3, ["pr7", "pr7:1", "pr7:2", "pr7:3"]),
        ("reader-writer", 1, ["pr7", "pr7:readers"]),
    ],
)
def test_every_key_of_a_resource_is_unlinked_by_name(
    recipe: str, capacity: int, names: list[str]
) -> None:
    scenario = replace(load(), recipe=recipe, capacity=capacity)
    assert list(key_names("p", scenario, [7])) == names


class EndedFleet:
    """Servers of ours, some of which have ended; or, with None, a guard that was killed."""

    def __init__(self, codes: tuple[int | None, ...] | None) -> None:
        self._codes = codes

    def exit_codes(self) -> tuple[int | None, ...]:
        if self._codes is None:
            raise EnvironmentNotReadyError("its guard process was killed")
        return self._codes


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ((None, None), []),
        ((None, -9), ["instance #1 ended during the run"]),
        (None, ["its guard process was killed"]),
    ],
)
def test_a_server_of_ours_that_nobody_was_to_end_spoils_the_run(
    codes: tuple[int | None, ...] | None, said: list[str]
) -> None:
    servers = Servers((), (), EndedFleet(codes), None)  # type: ignore[arg-type]
    assert [
        sentence[: len(start)] for sentence, start in zip(servers.losses(), said, strict=True)
    ] == said
    assert Servers((), (), None, None).losses() == []
