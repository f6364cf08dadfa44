"""A result is complete, meets its documented schema, is written whole or not at all, and is found
by its kind."""

import errno
import json
import os
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from msgspec import structs

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.gates.run_verdict import judge_run
from bench.measure import environment, result, workers
from bench.measure.facts import Window
from bench.measure.fleet_facts import FleetFacts
from bench.measure.fold import fold
from bench.measure.history import History
from bench.measure.record import records_of
from bench.measure.result import read_result, write_result
from bench.measure.run_result import RunResult, fields_of
from bench.measure.section import builtins_of, schema_of, typed
from bench.report.run_answer import RUN
from bench.safety.judge import judge
from tests.doubles.records import MS, scenario_of

SCHEMA = schema_of(RunResult, "urn:x")
HISTORIES = Path(__file__).parents[2] / "histories" / "results"


@pytest.fixture
def complete(records, report):
    """A result of a run with two overlapping leases and a failed acquire."""
    history = records(
        {"start": 1_100, "ended": 1_101, "release_sent": 1_150, "release_replied": 1_152},
        {"start": 1_110, "ended": 1_120, "release_sent": 1_130, "release_replied": 1_131},
        {"start": 1_105, "ended": 1_140, "outcome": "contended", "votes": {"refused": 5}},
    )
    reports = [report(instances=[report.instance(commands=3)], reply_histograms=[])]
    sections = fold(history, Window(1_000 * MS, 2_000 * MS), scenario_of(), reports)
    measured = structs.replace(sections.values, safety=judge(History(history, 0, 0), 10_000))
    return RunResult(
        **fields_of(measured),
        id="7f3a",
        command=("lockbench", "run"),
        scenario=scenario_of(),
        seed=1,
        started_at="2026-11-20T18:24:01Z",
        environment=environment.describe_environment(),
        instances=tuple(workers.instances(reports)),
        fleet=FleetFacts(started=False, server=None, fsync=None, fdatasync_s=None, instances=()),
        warnings=sections.warnings,
        verdict=judge_run(measured, ()),
    )


def test_a_result_meets_the_schema_and_is_read_as_it_was(complete, tmp_path):
    path = write_result(complete, tmp_path)
    jsonschema.validate(
        json.loads(path.read_text("utf-8")), SCHEMA, jsonschema.Draft202012Validator
    )
    assert RUN.read_file(tmp_path) == complete
    assert complete.safety.service_faults == 1


def test_an_empty_run_meets_the_schema_too(complete):
    empty = records_of([])
    measured = fold(empty, Window(0, 10**9), scenario_of(rate_per_s=10.0)).values
    nothing = structs.replace(
        complete, **{**fields_of(measured), "safety": judge(History(empty, 0, 0), 10_000)}
    )
    jsonschema.validate(builtins_of(nothing), SCHEMA, jsonschema.Draft202012Validator)


def test_a_run_that_an_earlier_release_stored_is_read():
    stored = RUN.read_file(HISTORIES / "run.json")
    assert (stored.verdict.word, stored.latency_s.acquire_all.p99) == ("INCONCLUSIVE", None)
    assert stored.latency_s.acquire_all.count == stored.outcomes.total
    assert stored.scenario.retry.attempts == 1000, "the default of its time; today's is None"


@pytest.mark.parametrize(
    "path, value",
    [
        (("schema_version",), 2),
        (("rate", "achieved_per_s"), "fast"),
        (("verdict", "status"), "good"),
        (("safety", "verdict"), "safe"),
        (("outcomes", "acquired"), -1),
        (("latency_s", "acquire", "p50"), "1 ms"),
        (("generator", "verdict"), None),
        (("unknown",), 1),
        (("safety", "examples", 0, "kind"), "bad luck"),
        (("instances", 0, "reply_s", "count"), 0.5),
    ],
)
def test_the_schema_refuses_what_is_wrong(complete, path, value):
    document = builtins_of(complete)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA, jsonschema.Draft202012Validator)
    # a key of a newer release is no fault
    if path != ("unknown",):
        with pytest.raises(UsageError, match="is not a complete RunResult"):
            typed(document, RunResult)


def test_a_result_that_exists_is_kept(complete, tmp_path):
    write_result(complete, tmp_path)
    with pytest.raises(EnvironmentNotReadyError, match=r"result\.json exists and is not replaced"):
        write_result(structs.replace(complete, id="other"), tmp_path)
    assert read_result(tmp_path)["id"] == "7f3a"


def test_a_full_disk_leaves_no_half_result(complete, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(result.os, "fsync", full)
    with pytest.raises(EnvironmentNotReadyError, match=r"cannot write .*No space left on device"):
        write_result(complete, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_made_and_one_that_cannot_be_is_one_sentence(complete, tmp_path):
    write_result(complete, tmp_path / "absent" / "yet")
    with pytest.raises(EnvironmentNotReadyError, match="cannot write"):
        write_result(complete, tmp_path / "absent" / "yet" / "result.json" / "below a file")


def test_infinity_has_no_place_in_a_result(complete, tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_result(structs.replace(complete, duration_s=float("inf")), tmp_path)


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "cannot read"),
        ("{", "is not a result"),
        ("[" * 100_000, "is not a result"),
        ("[]", "has no schema_version; name a result folder"),
        ('{"schema_version": 9}', "version 9, but this lockbench reads 1; read it with"),
    ],
)
def test_what_is_no_result_is_a_usage_error(tmp_path, text, message):
    if text is not None:
        (tmp_path / "result.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_result(tmp_path / "result.json" if text is None else tmp_path)


def test_a_file_without_end_is_refused_and_a_byte_order_mark_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(result, "MOST_BYTES", 1 << 20)
    (tmp_path / "result.json").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="the file is larger than 1 MiB; name a result folder"):
        read_result(tmp_path)
    marked = tmp_path / "marked.json"
    marked.write_bytes(b"\xef\xbb\xbf" + b'{"schema_version": 1}')
    assert read_result(marked) == {"schema_version": 1}


def test_the_environment_names_machine_python_and_packages_but_no_folder():
    section = builtins_of(environment.describe_environment())
    assert section["cores"] >= 1
    assert section["memory_bytes"] > 2**20
    assert section["python"].startswith("CPython 3.")
    assert section["packages"]["numpy"] == np.__version__
    assert str(environment._SOURCE) not in json.dumps(section)


def test_outside_a_checkout_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_SOURCE", tmp_path)
    section = builtins_of(environment.describe_environment())
    assert (section["git_commit"], section["git_dirty"]) == (None, None)
