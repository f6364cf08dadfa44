"""A verdict as JUnit XML: *cases → the document CI servers read*.

Rules: fail is a `failure`; inconclusive, invalid and violated are an `error`, so that no CI shows them green. What XML
cannot hold is replaced. Source: windyroad's JUnit.xsd (all of its required attributes), which Jenkins, GitLab and
GitHub's reporters read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that was judged: `status` pass, fail, or anything else for an error; `text` says what was seen."""

    name: str
    status: str
    text: str


@dataclass(frozen=True, slots=True)
class Suite:
    """All cases of one command. `started_at`: UTC, ISO 8601; `properties`: what else to know."""

    command: str
    started_at: str
    duration_s: float
    cases: Sequence[Case]
    properties: Mapping[str, str]


def junit_xml(suite: Suite) -> str:
    """Return the document."""
    bad = [case.status for case in suite.cases if case.status != "pass"]
    root = ET.Element("testsuites")
    node = ET.SubElement(
        root,
        "testsuite",
        package="lockbench",
        id="0",
        name=_clean(f"lockbench {suite.command}"),
        timestamp=suite.started_at[:19],
        hostname="localhost",
        tests=str(len(suite.cases)),
        failures=str(bad.count("fail")),
        errors=str(len(bad) - bad.count("fail")),
        time=f"{suite.duration_s:.3f}",
    )
    properties = ET.SubElement(node, "properties")
    for name, value in suite.properties.items():
        ET.SubElement(properties, "property", name=_clean(name), value=_clean(value))
    for case in suite.cases:
        _add(node, case, f"lockbench.{suite.command}")
    ET.SubElement(node, "system-out").text = "\n".join(_clean(f"{case.name}: {case.text}") for case in suite.cases)
    ET.SubElement(node, "system-err")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add(node: ET.Element, case: Case, classname: str) -> None:
    element = ET.SubElement(node, "testcase", name=_clean(case.name), classname=classname, time="0")
    if case.status != "pass":
        kind = "failure" if case.status == "fail" else "error"
        said = ET.SubElement(element, kind, message=_clean(case.text), type=_clean(case.status))
        said.text = _clean(case.text)


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
