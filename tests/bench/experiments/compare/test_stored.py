"""Stored results: unlike ones are refused with the names of what differs, and few are too few."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.errors import UsageError
from bench.experiments.compare.question import COMPARE
from bench.experiments.compare.sides import (
    differences,
    is_stored,
    read_named,
    read_series,
    require_alike,
    settings_of,
    shortened,
)
from bench.scenario import Scenario, load
from tests.bench.whole_run import SAMPLE, run_of

Result = dict[str, Any]
NUMBERS = itertools.count()


def result(started: str = "2026-11-21T01:00:00Z", **scenario: Any) -> Result:
    made: Result = copy.deepcopy(SAMPLE)
    made["scenario"] |= {"ttl_ms": 10_000, **scenario}
    made["fleet"]["instances"] = [
        {"index": 0, "address": "h:1", "tls": False, "server": "redis", "version": "7.0.15"}
    ]
    # a started server has it
    made["fleet"]["instances"][0]["fsync"] = made["scenario"]["fsync"]
    made["fleet"]["server"]["sha256"] = "0" * 64
    return {**made, "started_at": started, "id": f"{next(NUMBERS):08x}"}


def store(place: Path, document: Result) -> Path:
    place.mkdir(parents=True)
    (place / "result.json").write_text(json.dumps(document), encoding="utf-8")
    return place


def test_a_place_is_a_result_or_a_folder_of_them_oldest_first(tmp_path: Path) -> None:
    store(tmp_path / "series" / "b", result("2026-11-21T01:00:00Z"))
    store(tmp_path / "series" / "a", result("2026-11-21T02:00:00Z"))
    one = store(tmp_path / "one", result())
    assert len(read_series(one)) == len(read_series(one / "result.json")) == 1
    assert [found["started_at"][11:13] for found in read_series(tmp_path / "series")] == [
        "01",
        "02",
    ]


def test_what_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no result"):
        read_series(tmp_path)
    other = store(tmp_path / "other", {"schema_version": 1, "kind": "gate", "started_at": "x"})
    with pytest.raises(
        UsageError, match="is a result of another command; name a result of lockbench run"
    ):
        read_series(other)


def alike(series: list[list[Result]], labels: list[str], variables: tuple[str, ...]) -> list[str]:
    """What differs, where that is allowed."""
    runs = [[run_of(one) for one in results] for results in series]
    require_alike(runs, labels, variables)
    return list(differences(*(settings_of(results[0]) for results in runs)).values())


def test_unlike_results_are_refused_naming_every_difference() -> None:
    other = result(users=128, fsync="always")
    with pytest.raises(UsageError) as refusal:
        alike([[result()], [other]], ["a", "b"], ())
    assert "fsync everysec → always" in str(refusal.value)
    assert "users 64 → 128" in str(refusal.value)
    with pytest.raises(UsageError) as refusal:
        alike([[result()], [other]], ["a", "b"], ("fsync",))
    assert "users 64 → 128" in str(refusal.value)
    assert "fsync" not in str(refusal.value)


def test_a_compiled_core_is_not_compared_with_its_source() -> None:
    compiled = result()
    compiled["environment"]["lockcore"] = "compiled"
    with pytest.raises(UsageError, match=r"machine\.lockcore source → compiled"):
        alike([[result()], [compiled]], ["a", "b"], ())


def test_the_declared_variable_may_differ_and_is_named() -> None:
    series = [[result()], [result(fsync="always")]]
    assert alike(series, ["a", "b"], ("fsync",)) == ["fsync everysec → always"]
    assert alike([[result()], [result()]], ["a", "b"], ()) == []
    holding = [[result()], [result(hold={"kind": "fixed", "ms": 5.0, "sigma": 0.0})]]
    assert (
        alike(holding, ["a", "b"], ("hold",)) == ["hold.ms 0 → 5"]
        or SAMPLE["scenario"]["hold"]["ms"]
    )
    assert alike([[result()], [result(ttl_ms=500)]], ["a", "b"], ("ttl",))


def test_another_machine_or_server_is_another_configuration_but_another_commit_is_not() -> None:
    other = result()
    other["environment"] |= {"git_commit": "f" * 40, "git_dirty": True}
    assert alike([[result()], [other]], ["a", "b"], ()) == []
    other["environment"]["cpu_model"] = "another"
    with pytest.raises(UsageError, match=r"machine\.cpu_model .* → another"):
        alike([[result()], [other]], ["a", "b"], ())


def test_a_difference_is_told_as_one_would_write_it() -> None:
    series = [[result(rate_per_s=None)], [result(rate_per_s=200.0)]]
    assert alike(series, ["a", "b"], ("rate",)) == ["rate_per_s none → 200"]
    series = [[result(duration_ms=1_200_000.0)], [result(duration_ms=1_200_001.0)]]
    assert alike(series, ["a", "b"], ("duration",)) == ["duration_ms 1200000 → 1200001"]


def test_a_variable_that_is_no_setting_is_refused() -> None:
    with pytest.raises(
        UsageError, match="option --variable: there is no setting fsnyc; did you mean fsync"
    ):
        alike([[result()], [result()]], ["a", "b"], ("fsnyc",))


def test_a_series_must_be_of_one_thing() -> None:
    with pytest.raises(UsageError, match="the runs in a have different settings: users 64 → 9"):
        alike([[result(), result(users=9)], [result()]], ["a", "b"], ())


def test_a_run_is_not_compared_with_itself_nor_counted_twice() -> None:
    one = result()
    other = result()
    for series in ([[one], [one]], [[one, one], [other]]):
        with pytest.raises(UsageError, match=rf"run {one['id']} was named twice"):
            alike(series, ["a", "b"], ())


def test_what_a_word_names_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("users = 3\n", encoding="utf-8")
    store(tmp_path / "run", result())
    words = {"mine.toml": "scenario", "run": "stored"}
    for word, kind in words.items():
        assert read_named(str(tmp_path / word), tmp_path).kind == kind
    assert read_named(f"lib:{tmp_path}", tmp_path).kind == "library"
    assert read_named("hot-key", tmp_path).kind == "scenario"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lib:hot-key", "no such folder$"),
        ("hot-kye", "did you mean hot-key"),
        ("x" * 300, "no such result"),
    ],
)
def test_what_names_nothing_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"there is .*{said}"):
        read_named(text, tmp_path)


def test_a_stored_run_and_one_made_now_are_never_compared(tmp_path: Path) -> None:
    place = store(tmp_path / "run", result())
    (tmp_path / "mine.toml").write_text("users = 3\n", encoding="utf-8")
    given = [read_named(str(place), tmp_path), read_named(str(tmp_path / "mine.toml"), tmp_path)]
    with pytest.raises(UsageError, match="is not fair"):
        is_stored(given)
    assert is_stored(given[:1])
    assert not is_stored(given[1:])


def test_what_is_stored_is_not_run_again_on_other_hosts(tmp_path: Path) -> None:
    words = [str(store(tmp_path / name, result())) for name in ("a", "b")]
    with pytest.raises(
        UsageError, match="option --expect-workers: stored results are not run again"
    ):
        COMPARE.command().main([*words, "--expect-workers", "2"], standalone_mode=False)


def test_runs_to_compare_are_short_unless_asked_otherwise() -> None:
    def cut(scenario: Scenario, **options: str) -> float:
        return shortened(scenario, options).duration_ms

    assert cut(load(None, {})) == 1500
    assert shortened(load(None, {}), {}).warmup_ms == 300
    assert cut(load(None, {"duration": "9s"}), duration="9s") == 9000
    assert cut(load(None, {"duration": "400ms"})) == 400
    late = load(None, {"faults": ['{ at = "5s", kind = "stop", target = ["instance:0"] }']})
    assert cut(late) == 20_000


def sides_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[list[tuple[str, str]], Any]:
    """What would be run: labels with their policies; and what click said."""
    asked: list[Any] = []
    monkeypatch.setattr(
        "bench.experiments.compare.command._now",
        lambda _kind, sides, _outputs, options, _values: (
            asked.extend([*sides, options.variables]) or 0
        ),
    )
    done = CliRunner().invoke(COMPARE.command(), [*words], standalone_mode=False)
    return [(side.label, side.scenario.retry.policy) for side in asked[:-1]], asked[
        -1
    ] if asked else done.exception


def test_a_variable_with_values_is_a_side_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    sides, variables = sides_of(
        monkeypatch, "hot-key-many-processes", "--variable", "retry.policy=full-jitter,push"
    )
    assert sides == [("full-jitter", "full-jitter"), ("push", "push")]
    assert variables == ["retry.policy"]


def test_of_several_things_each_is_run_with_each_value(monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = (
        "--recipe",
        "redlock",
        "--recipe",
        "set-nx-lua",
        "--variable",
        "retry.policy=poll,push",
    )
    sides, _ = sides_of(monkeypatch, *recipes)
    assert sides == [
        (f"{name} {policy}", policy)
        for policy in ("poll", "push")
        for name in ("redlock", "set-nx-lua")
    ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("hot-key", "--variable", "retry.policy=push"), "name at least two things"),
        (
            ("hot-key", "--variable", "retry.polcy=poll,push"),
            "there is no key retry.polcy; did you mean retry.policy",
        ),
        (("hot-key", "--variable", "retry.policy=poll,push,shout"), "'shout' is none of"),
    ],
)
def test_values_that_make_no_sides_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], why: str
) -> None:
    sides, error = sides_of(monkeypatch, *words)
    assert sides == []
    assert why in str(error)
