"""From a leader's plan or Locust's options to one plan, or one sentence."""

import argparse
import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from bench.errors import UsageError
from bench.scenario import load
from bench.workloads.plan import Plan, add_options, in_memory, plan_of, split_targets

TWO = ["redis://127.0.0.1:7001", "redis://127.0.0.1:7002"]


class Parser(argparse.ArgumentParser):
    """As Locust's: `add_argument` knows the web form."""

    def add_argument(self, *args: Any, include_in_web_ui: bool = True, **kwargs: Any) -> Any:
        action = super().add_argument(*args, **kwargs)
        action.include_in_web_ui = include_in_web_ui  # type: ignore[attr-defined]
        return action


def options(*words: str, users: int = 50) -> Namespace:
    parser = Parser()
    add_options(parser)
    return parser.parse_args(words, Namespace(num_users=users))


def targets(*urls: str) -> list[str]:
    return [word for url in urls for word in ("--target", url)]


def test_targets_are_repeatable_and_everything_else_has_its_default() -> None:
    plan = plan_of(options(*targets(*TWO)), {})
    assert plan.targets == tuple(TWO)
    assert plan.scenario.users == 50
    assert (plan.scenario.recipe, plan.scenario.ttl_ms, plan.scenario.rate_per_s) == (
        "redlock",
        10_000,
        None,
    )
    assert (plan.timed, plan.workdir, plan.allow_missing) == (False, None, False)
    assert plan.window_ns == (0, None)


def test_the_environment_names_targets_too_and_the_command_line_wins() -> None:
    environ = {"LOCKBENCH_TARGETS": f"{TWO[0]}, {TWO[1]}"}
    assert plan_of(options(), environ).targets == tuple(TWO)
    assert plan_of(options("--target", "redis://localhost:1"), environ).targets == (
        "redis://localhost:1",
    )


@pytest.mark.parametrize(
    "text, urls",
    [
        ("", []),
        (" , ", []),
        (TWO[0], TWO[:1]),
        (" ".join(TWO), TWO),
        (",".join(TWO), TWO),
        ("\n".join(TWO), TWO),
    ],
)
def test_one_text_holds_many_urls(text: str, urls: list[str]) -> None:
    assert split_targets(text) == urls


def test_our_options_reach_the_scenario() -> None:
    words = (
        "--rate 2000 --arrivals fixed --skew zipf:1.1 --hold exp:5ms --ttl 2s --retry-window "
        "7ms --events stock"
    )
    scenario = plan_of(options(*targets(*TWO), *words.split()), {}).scenario
    assert (scenario.rate_per_s, scenario.arrivals, scenario.skew.kind, scenario.hold.kind) == (
        2000,
        "fixed",
        "zipf",
        "exp",
    )
    assert (scenario.ttl_ms, scenario.retry.window_ms, scenario.events) == (2000, 7.0, "stock")


@pytest.mark.parametrize(
    "words, sentence",
    [
        ([], "there is no instance to lock on; give --target"),
        ([*targets(*TWO), "--arrivals", "fixed"], "the key arrivals needs a rate"),
        (
            [*targets(*TWO), "--rate", "5", "--think", "1ms"],
            "think times are only possible without a rate",
        ),
        (
            [*targets(*TWO), "--pause", "after-get:1ms:1"],
            "redlock has no pause point 'after-get'; its points are after-g",
        ),
        (
            [*targets(*TWO), "--recipe", "set-nx-lua"],
            "set-nx-lua locks on 1 instance, but 2 were given",
        ),
        ([*targets(*TWO), "--skew", "zip:1"], "option --skew: "),
        ([*targets(*TWO), "--ttl", "10"], "option --ttl: "),
        (targets("ftp://x"), "option --target: "),
        (
            [*targets(*TWO), "--recipe", "redlok"],
            "there is no recipe 'redlok'; did you mean redlock?",
        ),
    ],
)
def test_what_cannot_be_done_is_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        plan_of(options(*words), {})


@pytest.mark.parametrize("url, shown", [(TWO[0], True), ("redis://:sesame@localhost:1", False)])
def test_targets_appear_in_the_web_form_unless_they_hold_a_password(
    url: str, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["locust", f"--target={url}"])
    parser = Parser()
    add_options(parser)
    (action,) = [action for action in parser._actions if action.dest == "targets"]
    assert action.include_in_web_ui is shown  # type: ignore[attr-defined]


def planned(workdir: Path) -> Plan:
    scenario = load(
        options={
            "targets": TWO,
            "users": "8",
            "duration": "3s",
            "warmup": "500ms",
            "hold": "exp:1ms",
        }
    )
    return Plan(
        "7f3a",
        scenario.targets,
        "lockbench:7f3a:",
        scenario,
        workdir,
        timed=True,
        allow_missing=True,
    )


def read_back(text: bytes) -> Plan:
    """By the descriptor of a file in memory, as a started Locust and its forked workers have it:
    more than once."""
    descriptor = in_memory(text)
    try:
        plans = [
            plan_of(options(*targets(*TWO)), {"LOCKBENCH_PLAN": f"/proc/self/fd/{descriptor}"})
            for _ in range(2)
        ]
    finally:
        os.close(descriptor)
    assert plans[0] == plans[1]
    return plans[0]


def test_a_plan_is_read_back_whatever_the_options_say(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert read_back(plan.text) == plan
    assert plan.window_ns == (500_000_000, 3_500_000_000)
    assert list(tmp_path.iterdir()) == []


def test_who_takes_part_has_the_leaders_plan(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan_of(Namespace(lockbench_plan=plan.text.decode()), {}) == plan


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", json.dumps({"run_id": 1, "targets": [], "scenario": {}})]
)
def test_what_is_no_plan_is_complained_of(text: str) -> None:
    with pytest.raises(UsageError, match="is not a plan of this lockbench"):
        read_back(text.encode())


def test_the_targets_of_a_plan_alone_have_the_passwords(tmp_path: Path) -> None:
    scenario = load(options={"targets": ["redis://:sesame@127.0.0.1:7001"]})
    read = read_back(Plan("7f3a", scenario.targets, "lockbench:7f3a:", scenario, tmp_path).text)
    assert (read.targets, read.scenario.targets) == (
        scenario.targets,
        ("redis://:***@127.0.0.1:7001",),
    )
