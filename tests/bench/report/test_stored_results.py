"""Results that earlier releases stored keep what was measured, whatever keys have been added since,
and their word."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec import structs

from bench.measure.section import builtins_of
from bench.questions import ANSWERS
from bench.report.html.page import render
from bench.report.junit import junit_xml
from bench.report.sheet import sheet_markdown
from tests.bench.report.screen import sheet_text, stored
from tests.doubles.answers import cases_of, kind_of, page_of, sheet_of_its_kind

RESULTS = Path(__file__).parents[2] / "histories" / "results"
PATHS = sorted(RESULTS.glob("*.json"))
# made anew from the other sections whenever a result is read, by today's rules
JUDGED = {
    "agreement",
    "bars",
    "capacity",
    "evidence",
    "headroom",
    "knee",
    "metrics",
    "next_limit",
    "planner",
    "reasons",
    "thresholds",
}
# figures that nobody reads any more
DROPPED = {
    *(
        f"{where}.{name}"
        for where in (".scenario", ".points[].scenario", ".sides[].scenario")
        for name in ("merge_releases", "wait_for_own")
    ),
    ".contention[].start_skew_s",
    ".contention[].processes",
    ".retries[].processes",
    *(f".conditions.{name}" for name in ("seats", "retry_contenders", "parallel_retry_rounds")),
    *(
        f"{where}.{name}"
        for where in (".retries[].retry", ".conditions.retries[]")
        for name in (
            "attempts",
            "retry_unreachable",
        )
    ),
    *(f"{where}[].callers" for where in (".rows", ".costs")),
    *(
        f".planner.always_costs.{end}.callers"
        for end in (
            "least",
            "most",
        )
    ),
    ".rows[].repeats",
    ".rows[].histogram",
    ".rows[].generator.verdict",
    ".planner.sources",
    ".planner.reference.load",
    ".conditions.concurrent",
    ".conditions.planned_cuts",
    ".conditions.cells",
    ".retries[].rounds_per_grant",
    ".retries[].winners_attempt",
    ".leaks",
    ".cross_check",
    ".rows[].quorum",
    ".rows[].lost_upper_bound_95",
    ".rows[].double_grant_upper_bound_95",
    ".groups[].quorum",
    ".groups[].lost_upper_bound_95",
    *(
        f".{where}[].fsync_in_flight.{name}"
        for where in ("rows", "groups")
        for name in (
            "share",
            "lost_total",
            "lost_window_max_s",
        )
    ),
    *(
        f".points[].capacity.{name}"
        for name in ("wanted_confirmations", "confirmed", "held", "probed")
    ),
    ".points[].law",
    ".points[].no_law",
    ".conditions.budget_s",
    ".conditions.usable_cores",
    ".conditions.open_seconds",
    ".skipped",
    ".counts",
    ".findings[].figures",
    ".rows[].acknowledged",
    ".groups[].acknowledged",
    ".rows[].back_s",
    ".rows[].expected_double_grants",
    ".metrics[].detectable_ratio",
    *(f".rows[].generator.{name}" for name in ("cpu_ratio", "littles_law_ratio", "lateness_p99_s")),
    ".rows[].busiest_server_ratio",
    ".rows[].rewrite",
    ".rows[].rewrite_fsyncs_per_s",
    ".rows[].rewrite_took_s",
    ".rows[].latency_events",
    ".rows[].waitaof",
    ".rows[].p99_s",
    *(
        f".planner.options[].crash.{name}"
        for name in (
            "kinds",
            "asked",
            "double_grants_abstaining",
            "double_grant_upper_bound_95",
            "lost_window_max_s",
            "lost_per_cut.median",
            "unavailable_s.median",
        )
    ),
    ".safety.holders[].held_ratio",
    ".rows[].safety",
    ".thresholds[].margin_ratio",
    ".runs[].thresholds[].margin_ratio",
    *(
        f"{where}fleet.instances[].{name}"
        for where in (".", ".points[].", ".sides[].")
        for name in (
            "process_id",
            "uptime_s",
        )
    ),
    *(
        f".instances[].info.{name}"
        for name in (
            "children_cpu_s",
            "usec_per_call",
            "evicted_keys",
            "input_bytes",
            "output_bytes",
        )
    ),
    ".split_votes.operations",
    ".points[].attainment",
    ".points[].instances",
    ".points[].next_limit.uses",
    ".cells[].took_s",
    ".rows[].took_s",
    ".conditions.quick",
    *(f".points[].headroom.{name}" for name in ("target_rate_per_s", "kept")),
    *(
        f".points[].probes[].{name}"
        for name in ("sustained", "duration_s", "slo", "achieved_per_s")
    ),
    *(f".points[].probes[].instances[].{name}" for name in ("server", "state")),
    *(
        f".points[].probes[].generator.{name}"
        for name in ("scheduler_lag_p99_s", "verdict", "reason")
    ),
    ".runs[].started_at",
    ".runs[].position",
    ".runs[].safety.contested_leases",
    ".conditions.hot_seconds",
    ".conditions.hold_s",
    ".bars[].reached",
    ".stopped[].cycles",
    ".stopped[].rounds[].cycles",
}


def without(node: Any, keys: set[str]) -> Any:
    """`node` without these keys."""
    if isinstance(node, list):
        return [without(one, keys) for one in node]
    if not isinstance(node, dict):
        return node
    return {key: without(value, keys) for key, value in node.items() if key not in keys}


def missing(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Where `new` has lost or changed something of `old`."""
    if isinstance(old, dict):
        for key, value in old.items():
            yield from (
                missing(value, new[key], f"{path}.{key}") if key in new else [f"{path}.{key}"]
            )
    elif isinstance(old, list):
        for one, other in zip(old, new, strict=True):
            yield from missing(one, other, f"{path}[]")
    elif old != new:
        yield f"{path}: {old} → {new}"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_its_cases_are_read_by_a_ci_server_as_they_are_meant(path: Path) -> None:
    """As GitLab reads them: it keys by class and name, counts anew, and adds up the times of the
    cases."""
    result = stored(path)
    suite = cases_of(result)
    outer = ET.fromstring(junit_xml(suite))
    cases = list(outer.iter("testcase"))
    keys = {(case.get("classname"), case.get("name")) for case in cases}
    bad = [
        case for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    assert len(keys) == len(cases) == int(outer.get("tests", ""))
    assert len(bad) == int(outer.get("failures", "")) + int(outer.get("errors", ""))
    assert sum(float(case.get("time", "")) for case in cases) == float(outer.get("time", "")) > 0
    assert bool(bad) == (result.verdict.status != "pass")
    undecided = structs.replace(result.verdict, status="inconclusive", word="NOT KNOWN", reasons=())
    assert any(
        case.status != "pass" for case in cases_of(structs.replace(result, verdict=undecided)).cases
    )


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_stored_result_keeps_every_value_and_is_told_whole(path: Path) -> None:
    written = json.loads(path.read_text("utf-8"))
    result = stored(path)
    word = result.verdict.word
    kept = without(builtins_of(result), JUDGED)
    assert set(missing(without(written, JUDGED), kept)) <= DROPPED
    assert word == written["verdict"]["word"]
    assert cases_of(result).cases
    for width in (80, 100):
        text = sheet_text(sheet_of_its_kind(result), width)
        assert text.startswith(f"{word}   ")
        assert max(map(len, text.splitlines())) <= width
        assert not re.search(r"\w…", text), "no cell is cut"
    markdown = sheet_markdown(sheet_of_its_kind(result))
    assert markdown.startswith(f"## {word}: ")
    assert not re.search(r"[#@]\w", markdown), "a pull request makes a link of #1, and calls @name"
    assert len(markdown) < 65_536, "what a comment may have"
    assert word in render(page_of(result))


def test_there_is_one_of_every_kind() -> None:
    assert {kind_of(stored(path)) for path in PATHS} == set(ANSWERS)


def planted(node: Any, url: str) -> Any:
    """`node` with `url` in whatever somebody may have typed or a server may have said."""
    if isinstance(node, list):
        return [planted(one, url) for one in node]
    if not isinstance(node, dict):
        return node
    free = {"command", "warnings", "reasons", "address", "label", "server", "name"}
    said = {key: planted(value, url) for key, value in node.items()}
    for key in free & said.keys():
        if isinstance(said[key], list):
            said[key] = [*said[key], url]
        elif isinstance(said[key], str):
            said[key] = url
    return said


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_no_password_in_a_stored_result_reaches_a_reader(path: Path, tmp_path: Path) -> None:
    secret = "s3cret-of-ann"
    place = tmp_path / "result.json"
    written = json.loads(path.read_text("utf-8"))
    place.write_text(json.dumps(planted(written, f"redis://ann:{secret}@db:7000")), "utf-8")
    read = stored(place)
    sheet = sheet_of_its_kind(read)
    texts = [
        render(page_of(read)),
        sheet_markdown(sheet),
        sheet_text(sheet, 80),
        junit_xml(cases_of(read)),
    ]
    assert [secret in text for text in texts] == [False] * 4
    assert "ann:***@" in texts[0]
