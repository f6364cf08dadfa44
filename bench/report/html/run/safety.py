"""Who held what: *the sections `safety` and `over_time` → a timeline to zoom into, and the operations involved*.

Rules: red, and marked, is what overlaps; a stretch of which the result has no single leases says so. The script of the
page draws it (page.js: holders); without a script the tables below say the same. Source: bench/safety/holders.py.
"""

from __future__ import annotations

from bench.measure.run_result import RunResult
from bench.measure.section import builtins_of
from bench.report.figures import count, inverse
from bench.report.html.figure import Column, Data, Figure, Legend
from bench.report.html.run.course import course_of, fault_bands
from bench.report.sheet import Part

_COLUMNS = ("granted_us", "end_us", "valid_until_us", "work_end_us", "caller", "fault")
_TIMES = ("start_ns", "granted_ns", "valid_until_ns", "work_end_ns", "release_sent_ns", "release_replied_ns")
_KINDS = {
    "service_fault": "two leases valid at once", "granted_invalid": "accepted after its own end",
    "foreign_delete": "deleted another's lock", "client_overstay": "worked past its own validity",
    "spurious_refusal": "refused, and nobody held it",
}  # fmt: skip


def safety_finding(result: RunResult) -> str:
    """The verdict of the oracle in one line."""
    safety = result.safety
    tested = f"{count(safety.tested_leases)} tested leases"
    if safety.verdict == "VIOLATED":
        return f"VIOLATED: {safety.reason}, in {tested}"
    if safety.verdict != "SAFE":
        return f"{safety.verdict}: {safety.reason}"
    return f"0 violations in {tested} (95 % sure: < 1 in {inverse(safety.upper_bound_95 or 0.0)})"


def holders_figure(result: RunResult) -> Figure | None:
    """Holders per resource over time; None when the result has none."""
    holders, over = result.safety.holders, course_of(result)
    if over is None or not any(entry.rows for entry in holders):
        return None
    starts = over.start_s
    end = starts[-1] + over.slice_s
    drawn = {
        "start_s": starts[0],
        "end_s": end,
        "slice_s": over.slice_s,
        "bands": [[band.start, band.stop, band.text] for band in fault_bands(result, end)],
        "lanes": [{**builtins_of(entry), "name": f"resource {entry.resource}"} for entry in holders],
        "marks": _marks(result, over.origin_ns),
    }
    rows = [[entry.resource, *row] for entry in holders for row in entry.rows]
    columns = (Column("resource", "count"), *(Column(name, "count") for name in _COLUMNS))
    about = (
        "Each bar is a lease, from its grant to its release or the end of its validity. "
        "The strip above shows the whole run: the darker, the longer held."
    )
    keys = (
        Legend("good", "lease", area=True),
        Legend("bad", "overlaps another", area=True),
        Legend("c3", "works past its validity", area=True),
    )
    return Figure("holders", safety_finding(result), about, "", Data(columns, rows), keys, drawn=drawn)


def _marks(result: RunResult, origin: int) -> list[dict[str, object]]:
    """The findings, as places to go to: resource, from, to, in seconds of the window."""
    marks = []
    for example in result.safety.examples:
        operations = example.operations
        times = [at for op in operations for name in _TIMES if (at := getattr(op, name))]
        span = [(min(times) - origin) / 1e9, (max(times) - origin) / 1e9]
        at_s = (example.at_ns - origin) / 1e9
        text = f"{_KINDS.get(example.kind, example.kind)} at {at_s:.3f} s{' (warm-up)' if at_s < 0 else ''}"
        marks.append({"resource": operations[0].resource, "span_s": span, "text": text})
    return marks


def examples_table(result: RunResult) -> Part | None:
    """The operations of every finding, times in ms from the first of them."""
    rows: list[tuple[str, ...]] = []
    for number, example in enumerate(result.safety.examples, 1):
        operations = example.operations
        first = min(op.start_ns for op in operations)
        for place, op in enumerate(operations):
            what = f"{number}. {_KINDS.get(example.kind, example.kind)}" if not place else ""
            blame = (example.blame or "no violation") if not place else ""
            times = (f"{(at - first) / 1e6:,.3f}" if (at := getattr(op, name)) else "–" for name in _TIMES)
            ended = f"{op.outcome}, {op.release_outcome}".replace("_", " ")
            rows.append((what, blame, f"caller {op.caller}, resource {op.resource}", ended, *times))
    if not rows:
        return None
    when = ("start", "granted", "valid until", "work end", "release sent", "returned")
    about = "Up to five of each kind; times in ms from the earliest start of the finding"
    head = ("finding", "cause", "who", "acquire, release", *when)
    return Part("The operations involved", about, head, tuple(rows), frozenset(range(4)))
