"""Results that earlier releases stored keep what was measured, whatever keys have been added since,
and their word."""

import json
import re
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
    assert builtins_of(result) == written
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
    """`node` with `url` in whatever somebody may have typed or a server may have said. The names of
    figures are lockbench's own words."""
    if isinstance(node, list):
        return [planted(one, url) for one in node]
    if not isinstance(node, dict):
        return node
    free = {"command", "warnings", "reasons", "address", "label", "server", "name"}
    said = {key: value if key == "figures" else planted(value, url) for key, value in node.items()}
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
