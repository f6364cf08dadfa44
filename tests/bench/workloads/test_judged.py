"""`locust --result DIR` is the same run by `lockbench run`: what becomes of Locust's words."""

from argparse import Namespace

import pytest

from bench.errors import UsageError
from bench.scenario import KEYS
from bench.workloads.plan import is_wanted, words_of
from tests.bench.workloads.test_plan import TWO, Parser, add_options, targets

LOCUSTS = {
    "headless": True,
    "run_time": 20,
    "num_users": 8,
    "processes": None,
    "master": False,
    "expect_workers": 1,
    "master_bind_host": "*",
    "master_bind_port": 5557,
}


def options(*words: str, **locusts: object) -> Namespace:
    parser = Parser()
    add_options(parser)
    return parser.parse_args([*words, "--result", "out"], Namespace(**{**LOCUSTS, **locusts}))


@pytest.mark.parametrize(
    "locusts, said",
    [
        ({}, []),
        ({"processes": 2}, ["--processes=2"]),
        ({"master": True, "expect_workers": 3}, ["--expect-workers=3", "--bind=*:5557"]),
        ({"master": True, "master_bind_host": "::1"}, ["--expect-workers=1", "--bind=[::1]:5557"]),
    ],
)
def test_locusts_words_become_lockbenchs_and_targets_stand_in_none(
    locusts: dict[str, object], said: list[str]
) -> None:
    words, urls = words_of(
        options(*targets(*TWO), "--hold", "2ms", "--retry-window", "9ms", **locusts), {}
    )
    assert urls == TWO
    assert words[:2] == ["--out=out", "--duration=20s"]
    assert set(words[2:]) == {"--hold=2ms", "--retry-window=9ms", "--users=8", *said}
    assert {word.partition("=")[0] for word in words} <= {key.option for key in KEYS} | {
        "--out",
        "--expect-workers",
        "--bind",
    }


def test_a_run_without_an_end_is_refused() -> None:
    with pytest.raises(UsageError, match="-t 20s"):
        words_of(options(*targets(*TWO), run_time=None), {})


def test_only_who_leads_is_judged() -> None:
    assert is_wanted(["--headless", "--result", "out"])
    assert is_wanted(["--headless", "--result=out"])
    assert not is_wanted(["--worker", "--result", "out"])
    assert not is_wanted(["--headless", "--results"])
    assert not is_wanted(["--result", "out"]), "each run of a page has a judge beside it"
