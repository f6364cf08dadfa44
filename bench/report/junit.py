"""A verdict for CI servers: *cases → JUnit XML*.

Rules: a case with the status fail becomes a `failure`. A case with the status inconclusive, invalid
or violated becomes an `error`, so that no CI server shows the case as passed. If XML does not allow
a character, the character is replaced. Source: windyroad's JUnit.xsd. The readers of Jenkins,
GitLab and GitHub follow this schema. The XML has all attributes that the schema requires.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from bench.measure.result import Document

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Case:
    """One judged item.

    `status`: `pass` or `fail`. Any other word means an error. `text`: the observation.
    """

    name: str
    status: str
    text: str


@dataclass(frozen=True, slots=True)
class Suite:
    """All cases of one command.

    `started_at`: the start in UTC, as ISO 8601. `properties`: further facts. `name`: the name of
    the scenario or run, or "". `mark`: a text that is added to the name of each case. Because of
    this text, the cases of different runs have different names.
    """

    command: str
    started_at: str
    duration_s: float
    cases: Sequence[Case]
    properties: Mapping[str, str]
    name: str = ""
    mark: str = ""


def suite_of(
    result: Document, cases: Sequence[Case], properties: Mapping[str, str] | None = None
) -> Suite:
    """Return the cases of a result as a suite.

    The suite has the id of the result as a property. The suite also has all properties in
    `properties`.
    """
    about = {"id": result.id, **(properties or {})}
    return Suite(result.kind, result.started_at, result.duration_s, cases, about)


def junit_xml(suite: Suite) -> str:
    """Return the XML document."""
    bad = [case.status for case in suite.cases if case.status != "pass"]
    title = " ".join(filter(None, ("lockbench", suite.command, suite.name)))
    counts = {
        "tests": str(len(suite.cases)),
        "failures": str(bad.count("fail")),
        "errors": str(len(bad) - bad.count("fail")),
        "skipped": "0",
        "time": f"{suite.duration_s:.3f}",
    }
    root = ET.Element("testsuites", {"name": title, **counts})
    node = ET.SubElement(
        root,
        "testsuite",
        {
            "package": "lockbench",
            "id": "0",
            "name": title,
            "timestamp": suite.started_at[:19],
            "hostname": "localhost",
            **counts,
        },
    )
    properties = ET.SubElement(node, "properties")
    for name, value in suite.properties.items():
        ET.SubElement(properties, "property", name=name, value=value)
    classname = ".".join(filter(None, ("lockbench", suite.command, suite.name)))
    # Some CI servers, such as GitLab, add up the times of the cases. So the first case has the time
    # of the whole command, and all other cases have 0.
    time = counts["time"]
    for case, name in zip(suite.cases, _case_names(suite), strict=True):
        element = ET.SubElement(node, "testcase", name=name, classname=classname, time=time)
        time = "0"
        if case.status != "pass":
            kind = "failure" if case.status == "fail" else "error"
            ET.SubElement(element, kind, message=case.text, type=case.status).text = case.text
    ET.SubElement(node, "system-out").text = "\n".join(
        f"{case.name}: {case.text}" for case in suite.cases
    )
    ET.SubElement(node, "system-err")
    ET.indent(root)
    document = _NOT_XML.sub("\ufffd", ET.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{document}\n'


def _case_names(suite: Suite) -> list[str]:
    """Return unique names for the cases of a suite.

    CI servers keep only one case for each class and name.
    """
    mark = f" ({suite.mark})" if suite.mark else ""
    times: Counter[str] = Counter()
    names = []
    for case in suite.cases:
        times[case.name] += 1
        again = f" #{times[case.name]}" if times[case.name] > 1 else ""
        names.append(f"{case.name}{again}{mark}")
    return names
