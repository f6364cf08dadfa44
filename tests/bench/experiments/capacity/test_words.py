"""What `lockbench capacity` says: the planning question answered in words, and nothing cut off."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from bench.experiments.capacity.words import answer, sheet, suite
from bench.report.sheet import print_sheet, sheet_markdown

LATENCY = {"count": 30_000, "mean": 0.001, "p50": 0.0009, "p99": 0.0085, "p999": 0.012, "max": 0.03}
ATTAINED = {"within": 29_850, "operations": 30_000, "limit_s": 0.01, "rate": 0.995, "low": 0.9941, "high": 0.9958}
SERVER = {"name": "server CPU of one instance", "ratio": 0.97, "text": "#2: 97 % of a core"}


def point(low: float | None = 11_200.0, high: float | None = 11_480.0, **given: Any) -> dict[str, Any]:
    probe = {
        "rate_per_s": low or 1.0, "step": "confirming", "seen": "held", "completed_per_s": low or 1.0,
        "acquire_s": LATENCY, "attainment": ATTAINED, "users": 512, "generator": {"cpu_ratio": 0.71},
    }  # fmt: skip
    instance = {
        "index": 2, "address": "127.0.0.1:40000", "server": "redis 7.0.15", "cpu_ratio": 0.97,
        "cpu_us_per_command": 4.1, "reply_p50_s": 0.0003, "reply_p99_s": None, "delayed_fsyncs": 0,
    }  # fmt: skip
    return {
        "variables": {},
        "scenario": {
            "recipe": "redlock", "instances": 5, "targets": [], "fsync": "everysec", "resources": 1000,
            "skew": {"kind": "uniform", "value": 0.0}, "hold": {"kind": "fixed", "ms": 5.0, "sigma": 0.0},
            "duration_ms": 3000.0, "arrivals": "poisson",
        },
        "fleet": {"started": True, "server": {"name": "redis", "version": "7.0.15"}},
        "status": "pass", "reasons": [],
        "capacity": {"low": low, "high": high, "confirmed": 3, "at_least": False, "wanted_confirmations": 3},
        "attainment": ATTAINED, "knee": {"rate_per_s": 9_500.0, "acquire_s": LATENCY},
        "headroom": {"target_rate_per_s": 5_000.0, "ratio": 1.24, "kept": True},
        "next_limit": {**{key: SERVER[key] for key in ("name", "text")}, "uses": [SERVER]},
        "instances": [instance], "probes": [probe],
        "callers": [], "law": None, "no_law": "0 points past the peak (at 128 callers), and a fit needs 2",
        **given,
    }  # fmt: skip


def result(*points: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "x", "seed": 1, "started_at": "2026-11-21T00:00:00Z", "duration_s": 100.0, "interrupted": False,
        "environment": {"usable_cores": 4}, "slo": ["acquire.p99 < 10ms"], "target_rate_per_s": None,
        "points": list(points), "warnings": ["fsync is cheap here"],
        "verdict": {"status": points[0]["status"], "reasons": points[0]["reasons"]},
    }  # fmt: skip


def shown(document: dict[str, Any], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    print_sheet(sheet(document, "results/x/result.json"), console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_planning_question_is_answered_in_words() -> None:
    assert answer(point(), result(point())) == (
        "N=5, fsync everysec, 1,000 keys, 5ms hold: 11,200–11,500 leases/s at acquire.p99 < 10ms; "
        "next limit: server CPU of one instance"
    )


def test_at_least_is_said_where_the_generator_was_the_limit() -> None:
    capacity = {**point()["capacity"], "at_least": True}
    assert ": ≥ 11,200 leases/s at" in answer(point(capacity=capacity), result(point()))


def test_no_rate_is_said() -> None:
    assert ": no rate at" in answer(point(None, 0.7), result(point()))


@pytest.mark.parametrize("width", [80, 100])
def test_nothing_is_cut_off(width: int) -> None:
    text = shown(result(point()), width)
    assert "…" not in text
    for needed in ("95 % sure: 99.41 % to 99.58 %", "+124 % at 5,000/s", "no law fitted", "#2 127.0.0.1:40000", "97 %"):
        assert needed in " ".join(text.split())


def test_a_sweep_is_one_table_with_a_sentence_for_each_point() -> None:
    points = [point(variables={"instances": "1"}), point(None, 0.7, variables={"instances": "3"})]
    summary = sheet(result(*points))
    assert summary.parts[0].rows[0][:2] == ("1", "11,200–11,500")
    assert summary.parts[0].rows[1][:2] == ("3", "no rate")
    assert [line.label for line in summary.lines].count("instances=3") == 1
    assert "| 1 | 11,200–11,500 |" in sheet_markdown(summary)
    assert [case.name for case in suite(result(*points)).cases] == ["1", "3"]
