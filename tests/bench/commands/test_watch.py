"""What is started around a run: found or refused in a sentence, with the variables of before when
it ends."""

import os
from pathlib import Path

import pytest
import yaml

from bench.commands.watch import (
    GRAPHS,
    find_collector,
    graphs,
    open_watch,
    shipped,
    wanted_variables,
)
from bench.errors import EnvironmentNotReadyError


def test_without_prometheus_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(
            EnvironmentNotReadyError, match="the program Prometheus was not found.*apt-get"
        ),
        open_watch(),
    ):
        pass
    with (
        pytest.raises(EnvironmentNotReadyError, match="the program /no/such was not found"),
        open_watch("/no/such"),
    ):
        pass
    assert find_collector(None) is None
    with pytest.raises(EnvironmentNotReadyError, match="is not a program"):
        find_collector("/no/such")


def test_a_users_own_collector_is_left_alone_and_prometheus_scrapes_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.example:4318")
    assert find_collector(None) is None
    wanted = wanted_variables([1, 2, 3, 4, 5], collector=False)
    assert wanted["OTEL_METRICS_EXPORTER"] == "otlp,prometheus"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in wanted


def test_the_variables_are_those_of_before_when_the_watch_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert (
        wanted_variables([1, 2, 3, 4, 5], collector=True)["OTEL_EXPORTER_OTLP_ENDPOINT"]
        == "http://127.0.0.1:4"
    )
    for start in ("_start_prometheus", "_await"):
        monkeypatch.setattr(f"bench.commands.watch.{start}", lambda *_, **_more: None)
    with open_watch("/bin/true", "none"):
        assert os.environ["OTEL_METRICS_EXPORTER"] == "prometheus"
        assert os.environ["OTEL_EXPORTER_PROMETHEUS_HOST"] == "127.0.0.1"
    assert os.environ["OTEL_METRICS_EXPORTER"] == "console"
    assert "OTEL_EXPORTER_PROMETHEUS_HOST" not in os.environ


def test_the_page_of_graphs_shows_what_the_rules_record() -> None:
    groups = yaml.safe_load(shipped("prometheus", "rules.yml").read_text("utf-8"))["groups"]
    recorded = {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    # those are an application's
    assert set(GRAPHS) == {record for record in recorded if not record.startswith("job:")}
    assert graphs("http://127.0.0.1:9090").startswith(
        "http://127.0.0.1:9090/graph?g0.expr=redlock%3Aacquires%3Arate30s"
        "&g0.tab=0&g0.range_input=5m&g1."
    )
