"""Recording and alert rules: promtool's own tests, and only metrics that lockbench exports."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.telemetry.table import BY_NAME
from tests.dashboards.prometheus3 import FOLDER as PROMETHEUS_3
from tests.dashboards.prometheus3 import needs_prometheus_3

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).parents[2] / "dashboards" / "prometheus"
TESTS = ("rules.test.yml", "rules.hours.test.yml")
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "rules.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing (Debian: prometheus)"
)
NEWEST = str(Path(PROMETHEUS_3, "promtool").resolve()) if PROMETHEUS_3 else "promtool"
OLDER = [pytest.param("promtool", marks=pytest.mark.slow)] if PROMETHEUS_3 else []
with_each = pytest.mark.parametrize("tool", [NEWEST, *OLDER])


def _promtool(tool: str, *words: str) -> str:
    done = subprocess.run(
        [tool, *words], cwd=FOLDER, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@promtool
@with_each
def test_rules_and_configuration_pass_promtools_checks(tool: str) -> None:
    assert "23 rules found" in _promtool(tool, "check", "rules", "rules.yml")
    _promtool(tool, "check", "config", "prometheus.yml")


@promtool
@with_each
def test_every_alert_fires_when_it_must_and_only_then(tool: str) -> None:
    assert "SUCCESS" in _promtool(tool, "test", "rules", *TESTS)


@needs_prometheus_3
def test_every_rule_answers_on_native_histograms_too() -> None:
    """That of Debian 12 is 2.42 and knows the functions, but no such series."""
    assert "SUCCESS" in _promtool(NEWEST, "test", "rules", "rules.native.test.yml")


@promtool
def test_a_rule_that_is_blind_turns_its_test_red(tmp_path: Path) -> None:
    text = (FOLDER / "rules.yml").read_text("utf-8")
    (tmp_path / "rules.yml").write_text(
        text.replace("redlock:instances_spare < 0", "redlock:instances_spare < -9")
    )
    shutil.copy(FOLDER / TESTS[0], tmp_path)
    words = ["promtool", "test", "rules", TESTS[0]]
    assert (
        subprocess.run(
            words, cwd=tmp_path, capture_output=True, timeout=300, check=False
        ).returncode
        != 0
    )


def test_the_alerts_are_there_each_with_severity_summary_runbook_and_a_test() -> None:
    alerts = {rule["alert"]: rule for rule in RULES if "alert" in rule}
    assert set(alerts) == {
        "LockSafetyViolated",
        "LockQuorumLost",
        "LoadGeneratorSaturated",
        "LoadProcessSilent",
        "LockInstanceSlow",
        "TargetDown",
        "LocksFailing",
        "LocksFailingSlowly",
        "LocksSlow",
        "LocksQuorumLost",
        "LocksInstanceOut",
        "LocksLost",
        "LocksOverdue",
    }
    tests = [
        each
        for name in TESTS
        for each in yaml.safe_load((FOLDER / name).read_text("utf-8"))["tests"]
    ]
    tested = {
        one["alertname"]
        for each in tests
        for one in each.get("alert_rule_test", [])
        if one["exp_alerts"]
    }
    assert tested == set(alerts)
    short = {
        one["alertname"]
        for each in tests
        for one in each.get("alert_rule_test", [])
        if "20 s" in each["name"] and one["eval_time"] == "20s" and one["exp_alerts"]
    }
    assert short == {name for name in alerts if not name.startswith("Locks")}, (
        "those of a run fire within 20 s of it"
    )
    for rule in alerts.values():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        page, _, heading = rule["annotations"]["runbook_url"].partition("#")
        paragraphs = (FOLDER.parents[1] / page).read_text("utf-8").split("\n### ")[1:]
        assert [one for one in paragraphs if one.split("\n")[0].lower() == heading], (
            f"{heading} has no paragraph"
        )


def test_an_alert_silences_those_of_its_own_run_or_service_only() -> None:
    manager = yaml.safe_load((FOLDER / "alertmanager.yml").read_text("utf-8"))
    (inhibition,) = manager["inhibit_rules"]
    assert set(inhibition["equal"]) | {"alertname"} == set(manager["route"]["group_by"])
    named = "|".join((*inhibition["source_matchers"], *inhibition["target_matchers"]))
    for rule in (one for one in RULES if one.get("alert", "?") in named):
        text = " ".join(
            one["expr"] for one in RULES if one is rule or one.get("record", "?") in rule["expr"]
        )
        assert ("by (job" if rule["alert"].startswith("Locks") else "by (redlock_run_id") in text, (
            rule["alert"]
        )


def test_a_rule_asks_for_metrics_of_the_table_only() -> None:
    known = {
        f"{one.prometheus}{part}"
        for one in BY_NAME.values()
        for part in ("", "_bucket", "_sum", "_count")
    }
    for rule in RULES:
        names = set(re.findall(r"\b((?:redlock|db_client|redis)_\w+)(?=[\[{ )]|$)", rule["expr"]))
        labels = {
            "redlock_fleet",
            "redlock_run_id",
            "redlock_recipe",
            "redlock_fsync",
            "redlock_outcome",
            "redlock_worker",
        }
        assert names - labels <= known, rule
