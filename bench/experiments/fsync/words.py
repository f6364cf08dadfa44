"""What `lockbench fsync` says: *its result → tables, findings, the planner's page; on a terminal or as Markdown*.

Rules: verdict first; nothing is computed here; a latency of a load that was not sustained is not shown; a rate that the
generator limited is marked ≥. Fits 100 columns. Source: the sections of bench.experiments.fsync.experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.experiments.fsync import planner_words
from bench.experiments.fsync.planner_words import disk_name, disk_text, spread_of
from bench.measure.expectation import ROW_WORDS
from bench.report.figures import MISSING, count, milliseconds, percent
from bench.report.junit import Case, Suite
from bench.report.sheet import Part, Sheet, sheet_of

Result = Mapping[str, Any]

_MAXIMUM = ("N", "callers", "fsync", "policy", "acquires\n/s", "±", "p50\nms", "p99\nms", "fsyncs\n/s", "locks\n/fsync",
            "CPU µs\n/lock", "busy")  # fmt: skip
_OPEN = (
    "N",
    "callers",
    "fsync",
    "policy",
    "50 %\np50 ms",
    "\np99",
    "80 %\np50 ms",
    "\np99",
    "\np99.9",
    "\nmax",
    "\nkept",
)
_LEGEND = (
    ("callers", "connections per instance × callers that share one; each lock is two writes, SET and its release"),
    (
        "fsync",
        "the disk as it is, or so much added; R: AOF rewritten in the middle, R!: no-appendfsync-on-rewrite, too",
    ),
    (
        "columns",
        "±: half the range over repeats; ≥: limited by the load process; kept: granted ÷ offered; busy: fullest server",
    ),
    ("no latency", "queue: the rate was not sustained; late: the load process was late; –: too few samples"),
)
_LEFT = frozenset({1, 2, 3})
_EVENTS = ("aof-fsync-always", "aof-write-pending-fsync", "fork")


def sheet(result: Result, place: str = "") -> Sheet:
    """Return the planner's page, then the figures it rests on; `result` is stored at `place` ("" = nowhere)."""
    planned = planner_words.sheet(result)
    advice = [("advice", planned.headline)]
    own = [*advice, *_lines(result), *((line.label, line.text) for line in planned.lines)]
    return sheet_of(
        result, place, kind="fsync", headline=_headline(result), conditions=_conditions(result),
        parts=(*planned.parts, *_parts(result)), lines=dict.fromkeys(own), charts=planned.charts,
    )  # fmt: skip


def suite(result: Result) -> Suite:
    """The findings as test cases."""
    cases = [
        Case(f"{finding['name']}: {finding['cell']}", ROW_WORDS[finding["verdict"]].status, finding["text"])
        for finding in result["findings"]
        if finding["verdict"] in ROW_WORDS  # not those that were not judged, and what is the server's fault
    ]
    return Suite("fsync", result["started_at"], result["duration_s"], cases, {"id": result["id"]})


def _headline(result: Result) -> str:
    costs = result["planner"]["always_costs"]
    if costs is None:
        return f"{len(result['rows'])} rows"
    least, most = costs["least"], costs["most"]
    if least == most:
        return f"everysec ÷ always: {most['ratio']:.1f}× at {most['clients']}×{most['pipeline']} callers"
    return (
        f"everysec ÷ always: {most['ratio']:.1f}× at {most['clients']}×{most['pipeline']} callers, "
        f"{least['ratio']:.1f}× at {least['clients']}×{least['pipeline']}"
    )


def _conditions(result: Result) -> str:
    conditions, server = result["conditions"], result["fleet"]["server"]
    return " · ".join(
        (
            f"{server['name']} {server['version']}"
            if server
            else f"{len(result['fleet']['instances'])} of your servers",
            f"{conditions['visits_done']} of {conditions['visits_planned']} visits in random order",
            f"{conditions['seconds']:g} s per load",
            f"{conditions['usable_cores']} cores shared by load and servers",
            f"seed {result['seed']}",
            f"{result['duration_s']:.0f} s",
        )
    )


def _lines(result: Result) -> Iterator[tuple[str, str]]:
    for finding in result["findings"]:
        if finding["verdict"] == "as expected":
            yield "as expected", finding["text"]
    yield "disk", disk_text(result["planner"]["disk_fdatasync_s"])
    yield "slow events", _events(result["rows"])
    stalls = [row for row in result["rows"] if row["aof_delayed_fsync"]]
    if stalls:
        most = max(stalls, key=lambda row: int(row["aof_delayed_fsync"]))
        yield "stalls", f"aof_delayed_fsync up to {count(most['aof_delayed_fsync'])}: {_cell(most)}, {most['load']}"
    yield from _LEGEND


def _cell(row: Mapping[str, Any]) -> str:
    return f"N={row['instances']} {row['policy']} {row['clients']}×{row['pipeline']} {_disk(row)}"


def _disk(row: Mapping[str, Any]) -> str:
    disk = "none" if row["policy"] == "none" else disk_name(row["injected_ms"])
    return disk + {"off": "", "on": " R", "on-no-sync": " R!"}[row["rewrite"]]


def _events(rows: Sequence[Mapping[str, Any]]) -> str:
    """The longest of each kind, and where."""
    if any(row["latency_events"] is None for row in rows):
        return "the servers do not watch (latency-monitor-threshold is 0, or LATENCY is not allowed)"
    found = []
    for name in _EVENTS:
        seen = [row for row in rows if name in row["latency_events"]]
        if seen:
            worst = max(seen, key=lambda row: int(row["latency_events"][name]["max_ms"]))
            found.append(f"{name} up to {worst['latency_events'][name]['max_ms']} ms ({_cell(worst)})")
    return "; ".join(found) or f"none of {', '.join(_EVENTS)} took 1 ms"


def _parts(result: Result) -> Iterator[Part]:
    maxima = [row for row in result["rows"] if row["load"] == "max"]
    yield Part("maximum", "closed loop", _MAXIMUM, tuple(map(_maximum, maxima)), _LEFT)
    loads = {(row["load"], _cell(row)): row for row in result["rows"]}
    about = "open loop, Poisson arrivals at 50 % and 80 % of the maximum, from the intended start"
    rows = tuple(_open(loads["50%", _cell(row)], loads["80%", _cell(row)]) for row in maxima)
    yield Part("latency", about, _OPEN, rows, _LEFT)


def _names(row: Mapping[str, Any]) -> tuple[str, ...]:
    return str(row["instances"]), f"{row['clients']}×{row['pipeline']}", _disk(row), row["policy"]


def _maximum(row: Mapping[str, Any]) -> tuple[str, ...]:
    bound = "≥" if row["generator"]["bound"] else ""
    return (
        *_names(row),
        bound + count(round(row["acquired_per_s"]["median"])),
        spread_of(row["acquired_per_s"]),
        milliseconds(row["acquire_s"]["p50"]),
        milliseconds(row["acquire_s"]["p99"]),
        _figure(row["fsyncs_per_s"]),
        _figure(row["locks_per_fsync"]),
        _figure(row["server_cpu_us_per_lock"]),
        percent(row["busiest_server_ratio"]["median"], 0) if row["busiest_server_ratio"] else MISSING,
    )


def _figure(figure: Mapping[str, float] | None) -> str:
    return MISSING if figure is None else count(round(figure["median"], 1))


def _open(half: Mapping[str, Any], most: Mapping[str, Any]) -> tuple[str, ...]:
    kept = most["acquired_per_s"]["median"] / most["offered_per_s"]["median"]
    return (
        *_names(most),
        *(_latency(half, name) for name in ("p50", "p99")),
        *(_latency(most, name) for name in ("p50", "p99", "p999", "max")),
        percent(min(kept, 1.0), 0),
    )


def _latency(row: Mapping[str, Any], name: str) -> str:
    if not row["sustained"]:
        return "queue"
    if row["generator"]["reason"]:
        return "late"
    return milliseconds(row["acquire_s"][name])
