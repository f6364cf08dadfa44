"""JUnit XML: valid by the usual schema whatever stands in it, and nothing that is not a pass looks
like one."""

import copy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import xmlschema
from msgspec import structs

from bench.gates.threshold import read_threshold
from bench.report.junit import Case, Suite, junit_xml
from bench.report.summary import sheet
from bench.report.summary import suite as suite_of
from tests.bench.report.screen import sheet_text
from tests.bench.whole_run import SAMPLE, run_of

HERE = Path(__file__).parent
XSD = xmlschema.XMLSchema(str(HERE / "JUnit.xsd"))
Result = dict[str, Any]


def judged(*texts: str, status: str = "pass", reasons: tuple[str, ...] = ()) -> Result:
    result: Result = copy.deepcopy(SAMPLE)
    result["thresholds"] = [read_threshold(text).judge(run_of(result)) for text in texts]
    result["verdict"] |= {"status": status, "word": "SAFE" if status == "pass" else status.upper()}
    result["verdict"]["reasons"] = list(reasons)
    return result


def read(document: str) -> ET.Element:
    XSD.validate(document)
    suite = ET.fromstring(document).find("testsuite")
    assert suite is not None
    return suite


def test_a_run_is_a_case_of_its_own_beside_its_thresholds() -> None:
    result = judged(
        "acquire.p99 < 5s",
        "acquire.p99 < 1us",
        status="fail",
        reasons=("acquire.p99 < 1us does not hold",),
    )
    suite = read(junit_xml(suite_of(run_of(result))))
    assert [case.get("name") for case in suite.iter("testcase")] == [
        "the run",
        "acquire.p99 < 5s",
        "acquire.p99 < 1us",
    ]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "limit 1 µs · margin -" in str(failure.get("message"))


def test_the_outer_element_has_the_counts_and_the_time_too() -> None:
    cases = [
        Case("one", "pass", ""),
        Case("two", "fail", ""),
        Case("three", "violated", ""),
        Case("four", "invalid", ""),
    ]
    document = junit_xml(Suite("gate", "2026-11-21T01:02:03Z", 1.5, cases, {}, "mine"))
    outer = ET.fromstring(document)
    inner = read(document)
    counts = {
        "tests": "4",
        "failures": "1",
        "errors": "2",
        "skipped": "0",
        "time": "1.500",
        "name": "lockbench gate mine",
    }
    assert outer.attrib == counts
    assert counts.items() <= inner.attrib.items()


def test_no_two_cases_have_one_class_and_name() -> None:
    """Readers such as GitLab's keep one of them."""
    cases = [
        Case("acquire.p99 < 5s", "pass", ""),
        Case("acquire.p99 < 5s", "fail", ""),
        Case("rate > 1/s", "pass", ""),
    ]
    suites = [
        Suite("run", "2026-11-21T01:02:03Z", 1.5, cases, {}, "mine", "before"),
        Suite("run", "2026-11-21T01:02:03Z", 1.5, cases, {}, "mine", "after"),
        Suite("run", "2026-11-21T01:02:03Z", 1.5, cases, {}, "yours"),
        Suite("run", "2026-11-21T01:02:03Z", 1.5, cases, {}),
    ]
    found = [
        (case.get("classname"), case.get("name"))
        for suite in suites
        for case in read(junit_xml(suite)).iter("testcase")
    ]
    assert len(set(found)) == len(found) == 12
    assert found[0] == ("lockbench.run.mine", "acquire.p99 < 5s (before)")
    assert found[6] == ("lockbench.run.yours", "acquire.p99 < 5s")
    assert found[9][0] == "lockbench.run"


@pytest.mark.parametrize("status", ["inconclusive", "invalid", "violated"])
def test_what_is_not_a_pass_is_an_error(status: str) -> None:
    suite = read(junit_xml(suite_of(run_of(judged(status=status, reasons=("it was so",))))))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")


def test_an_open_threshold_is_its_own_error_not_the_runs() -> None:
    result = judged("acquire_failed.p99 < 5s")
    open_one = {
        "status": "inconclusive",
        "reason": "there are no samples",
        "value": None,
        "margin": None,
    }
    result["thresholds"] = [structs.replace(result["thresholds"][0], **open_one)]
    result["verdict"] = {
        "status": "inconclusive",
        "reasons": ["acquire_failed.p99 < 5s: there are no samples"],
    }
    suite = read(junit_xml(suite_of(run_of(result))))
    assert [len(case) for case in suite.iter("testcase")] == [0, 1]


def test_nothing_in_a_text_breaks_the_document() -> None:
    ugly = 'a < b & "c" ]]> \x00\x1b[31m ü 𝄞 \ud800'
    suite = Suite("gate", "2026-11-21T01:02:03Z", 1.5, [Case(ugly, "fail", ugly)], {"server": ugly})
    assert read(junit_xml(suite)).get("failures") == "1"


def test_the_terminal_shows_value_limit_and_margin() -> None:
    result = judged("acquire.p99 < 5s", "rate >= 9000000/s", "safety.violations == 0")
    lines = [
        line
        for line in sheet_text(sheet(run_of(result)), 110).splitlines()
        if line.startswith("threshold")
    ]
    assert lines[0].split()[1:5] == ["PASS", "acquire.p99", "<", "5s"]
    assert "limit 5.00 s · margin +" in lines[0]
    assert lines[1].split()[1] == "FAIL"
    assert "margin -" in lines[1]
    assert "measured 0 · limit 0 · margin 0" in lines[2]
