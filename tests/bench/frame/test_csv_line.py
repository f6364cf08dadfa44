"""A line per run: the header once, the same columns in every line, other people's files left
alone."""

import copy
import csv
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.frame.showing import append_line, require_table
from bench.gates.threshold import shown_at
from tests.bench.whole_run import SAMPLE, run_of


def test_a_line_per_run_below_one_header(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    for number in range(3):
        require_table(path)
        sample = copy.deepcopy(SAMPLE)
        sample["id"] = str(number)
        sample["name"] = 'a, "quoted" name'
        append_line(path, run_of(sample))
    lines = list(csv.reader(path.open(encoding="utf-8", newline="")))
    assert lines[0][:2] == ["name", "id"]
    assert len(set(lines[0])) == len(lines[0])
    assert {len(line) for line in lines} == {len(lines[0])}
    assert [line[:2] for line in lines[1:]] == [
        ['a, "quoted" name', str(number)] for number in range(3)
    ]
    row = dict(zip(lines[0], lines[1], strict=True))
    assert float(row["rate"]) == SAMPLE["rate"]["achieved_per_s"]
    assert float(row["acquire.p50_s"]) == SAMPLE["latency_s"]["acquire_all"]["p50"], "with its unit"
    assert (row["users"], row["retry.policy"]) == (str(SAMPLE["scenario"]["users"]), "full-jitter")


def test_every_usual_figure_and_every_key_of_a_scenario_has_a_column(tmp_path: Path) -> None:
    append_line(tmp_path / "runs.csv", run_of())
    (columns,) = [
        line.split(",") for line in (tmp_path / "runs.csv").read_text("utf-8").splitlines()[:1]
    ]
    assert {name.removesuffix("_s") for name in columns} >= {
        metric.name for metric in shown_at("several")
    }
    assert {"recipe", "instances", "fsync", "hold.ms", "faults", "thresholds"} <= set(columns)


def test_a_table_of_another_release_keeps_its_columns(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("name,id,gone,rate\n", encoding="utf-8")
    append_line(tmp_path / "runs.csv", run_of())
    (row,) = csv.DictReader((tmp_path / "runs.csv").open(encoding="utf-8"))
    assert (row["gone"], float(row["rate"])) == ("", SAMPLE["rate"]["achieved_per_s"])


def test_what_is_not_known_is_empty(tmp_path: Path) -> None:
    sample = copy.deepcopy(SAMPLE)
    sample["cost"]["client_cpu_us_per_cycle"] = None
    require_table(tmp_path / "runs.csv")
    append_line(tmp_path / "runs.csv", run_of(sample))
    (row,) = csv.DictReader((tmp_path / "runs.csv").open(encoding="utf-8"))
    assert row["cost.client_cpu_us_per_cycle"] == ""


def test_another_table_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(UsageError, match="differ from the columns of a run"):
        require_table(tmp_path / "other.csv")
    assert (tmp_path / "other.csv").read_text(encoding="utf-8") == "a,b\n1,2\n"
    with pytest.raises(EnvironmentNotReadyError, match="cannot write"):
        require_table(tmp_path)
