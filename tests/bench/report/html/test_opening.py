"""A page opens on the first violation, else on the first fault, else on the slowest acquire, and
says so."""

import re

from bench.measure.run_result import RunResult
from bench.measure.section import builtins_of, typed
from bench.report.html.page import render
from bench.report.html.run_page import findings, moment_of
from tests.doubles.answers import page_of


def changed(result, change):
    plain = builtins_of(result)
    change(plain)
    return typed(plain, RunResult)


def opens(result):
    """What the page says, and the name of the picture that answers."""
    page = render(page_of(result))
    ((link, text),) = re.findall(r'Look first: <a href="#([^"]+)">([^<]+)', page)
    assert f'id="{link}"' in page
    return text, re.findall(r'data-figure="(.+?)"', page)[0]


def test_a_violation_comes_first_even_beside_a_fault(violated, safe):
    faults = builtins_of(safe)["faults"]
    both = changed(violated, lambda plain: plain.update(faults=faults))
    text, picture = opens(both)
    assert re.fullmatch(
        r"Violation 1 of 1: on resource \d+, two leases valid at once at [\d.]+ s", text
    )
    assert picture == "holders"
    moment = moment_of(both)
    assert moment.is_violation
    assert moment.view_s[0] < moment.view_s[1] < moment.view_s[0] + 1, (
        "its operations, not their validity"
    )


def test_of_several_violations_the_earliest_is_told(violated):
    def another(plain):
        (example,) = plain["safety"]["examples"]
        plain["safety"]["examples"].append({**example, "at_ns": example["at_ns"] - 1_000_000_000})
        plain["safety"]["examples"].insert(0, {**example, "kind": "client_overstay", "at_ns": 0})
        plain["safety"]["service_faults"] = 2

    first = moment_of(violated).view_s[0]
    text, _ = opens(changed(violated, another))
    assert text.startswith("Violation 1 of 2: on resource ")
    found = changed(violated, another)
    assert moment_of(found).view_s[0] < first
    assert [one.kind for one in findings(found)] == [
        "service_fault",
        "service_fault",
        "client_overstay",
    ]
    assert "s (warm-up)" in text


def test_else_the_first_fault(safe):
    text, picture = opens(safe)
    assert text == "Fault 1 of 1: stop #1, #2, from 2.00 s to 3.50 s of the run"
    assert picture == "latency-over-time"
    low, high = moment_of(safe).view_s
    assert low <= 2.0 < high


def test_else_the_slowest_acquire_of_the_result(safe):
    calm = changed(safe, lambda plain: plain.update(faults=[]))
    text, picture = opens(calm)
    assert re.fullmatch(
        r"The slowest acquire took [\d.]+ ms; it was due [\d.]+ s after the start of the measured "
        "window",
        text,
    )
    assert picture == "latency-over-time"
    over = calm.over_time
    (low, high) = moment_of(calm).view_s
    slowest = max(
        (value, at)
        for value, at in zip(over.acquire.max_s, over.start_s, strict=True)
        if value and at >= 0
    )
    assert low <= slowest[1] + over.slice_s / 2 <= high


def test_without_a_course_nothing_is_looked_at_first(violated, cut):
    assert moment_of(cut) is None
    assert "Look first" not in render(page_of(cut))
    old = changed(violated, lambda plain: plain.update(over_time=None))
    assert "1. two leases valid at once" in render(page_of(old))
