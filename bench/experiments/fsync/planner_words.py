"""The planner's page: *the section `planner` of a result → a table, a chart, sentences; on a terminal or as Markdown*.

Rules: the advice first; nothing is computed here; what was not measured is an en dash. Fits 100 columns.
Source: bench.experiments.fsync.planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_letters
from typing import Any

from bench.experiments.fsync.scatter import Point, scatter
from bench.report.figures import MISSING, count, decimals, latency, milliseconds
from bench.report.sheet import GOOD, Part, Sentence, Sheet

Page = Mapping[str, Any]

_SPEED = ("", "N", "policy", "restart", "locks\n/s", "±", "p99\nms")
_LOSSES = ("lost,\nmedian", "\nmost", "window\ns", "double\ngrants", "blocked\ns")
MEMORY_S, VIRTUAL_S = 5e-6, 5e-4  # an fdatasync of a file in memory, and of a disk that is none of a cloud, takes less
_LEFT = frozenset({0, 2, 3})
CARRY_OVER = (
    "absolute rates are this machine's, its disk's and this client's, and do not carry over; what does: the order of "
    "the policies, how the cost of always falls with callers, and the row whose latency is nearest to your own disk "
    "(lockbench doctor measures it)"
)


def sheet(result: Mapping[str, Any]) -> Sheet:
    """The page of a result of `lockbench fsync` in words."""
    page, server = result["planner"], result["fleet"]["server"]
    name = f"{server['name']} {server['version']}" if server else "your servers"
    load = page["reference"]
    at = ""
    if load:
        at = f"{load['clients']}×{load['pipeline']} callers, {disk_name(load['injected_ms'])} fsync"
    conditions = f"{name} · {at} · p99 from the intended start"
    lines = tuple(Sentence(*line) for line in _lines(page))
    return Sheet("PLANNER", GOOD, page["advice"][0], conditions, tuple(_parts(page)), lines, _charts(page))


def disk_name(injected_ms: float) -> str:
    """The disk of a row: as it is, or with so much latency added."""
    return f"+{injected_ms:g} ms" if injected_ms else "raw"


def spread_of(figure: Mapping[str, float] | None) -> str:
    """Half the range over the repeats, in per cent of the median; a dash when there was one repeat."""
    if figure is None or not figure["median"] or figure["high"] == figure["low"]:
        return MISSING
    return f"{(figure['high'] - figure['low']) / 2 / figure['median'] * 100:.0f} %"


def disk_text(disk: Mapping[str, float | None] | None) -> str:
    """What the disk is like, and what that means."""
    if disk is None:
        return "not known: fdatasync can only be measured where the files of the servers lie"
    p50_s = disk["p50"] or 0.0
    memory = "; this is memory, no disk" if p50_s < MEMORY_S else ""
    virtual = "; cloud volumes take 0.5–10 ms, which the added latencies imitate" if p50_s < VIRTUAL_S else ""
    return f"fdatasync p50 {latency(disk['p50'])}, p99 {latency(disk['p99'])}{memory}{virtual}"


def _lines(page: Page) -> Iterator[tuple[str, str]]:
    for text in page["advice"][1:]:
        yield "seen", text
    for warning in page["warnings"]:
        yield "warning", warning
    yield "disk", disk_text(page["disk_fdatasync_s"])
    yield "beware", CARRY_OVER
    marked = list(zip(ascii_letters, page["options"], strict=False))
    drawn = {point.mark for point in _points(marked, "grants")}
    if absent := [mark for mark, option in marked if option["crash"] and mark not in drawn]:
        yield "no p99", f"so not among the double grants that are drawn: {' '.join(absent)}"
    if page["sources"]["crash"]:
        offered = page["crash_locks_per_s"]
        at = f", at {count(offered)} locks/s; at another rate L expect up to L × window" if offered else ""
        yield "lost", f"locks that somebody held and a crash forgot, of the worst power cut tried{at}"
        yield (
            "crash",
            (
                f"power cuts (none: kill −9), TTL {(page['ttl_ms'] or 0) / 1000:g} s; double grants: of clients that "
                "trust a restarted instance; a delayed restart waits out the longest TTL, so its price grows with yours"
            ),
        )


def _parts(page: Page) -> Iterator[Part]:
    options = page["options"]
    marked = list(zip(ascii_letters, options, strict=False))
    if page["sources"]["crash"]:
        rows = tuple((*_speed(mark, option), *_losses(option["crash"])) for mark, option in marked)
        yield Part(
            "speed beside losses",
            "p99 at 80 %; lost per crash; grants in so many cuts",
            (*_SPEED, *_LOSSES),
            rows,
            _LEFT,
        )
    else:
        yield Part("speed", "", _SPEED, tuple(_speed(mark, option) for mark, option in marked), _LEFT)


def _speed(mark: str, option: Mapping[str, Any]) -> tuple[str, ...]:
    rate = option["acquired_per_s"]
    p99 = milliseconds(option["p99_s"]) if option["sustained"] else "queue" if option["sustained"] is False else MISSING
    speed = MISSING if rate is None else ("≥" if option["generator_bound"] else "") + count(round(rate["median"]))
    return (mark, str(option["instances"]), option["policy"], option["restart"] or MISSING, speed, spread_of(rate), p99)


def _losses(crash: Mapping[str, Any] | None) -> tuple[str, ...]:
    if crash is None:
        return (MISSING,) * len(_LOSSES)
    lost, waits = crash["lost_per_cut"], crash["unavailable_s"]
    return (
        count(round(lost["median"])),
        count(lost["max"]),
        decimals(crash["lost_window_max_s"]),
        f"{count(crash['double_grants'])} in {count(crash['cuts'])}",
        f"{waits['max']:.1f}",
    )


def _charts(page: Page) -> tuple[tuple[str, ...], ...]:
    """Throughput against locks lost, p99 against double grants, by the letters of the table; none without crashes."""
    marked = list(zip(ascii_letters, page["options"], strict=False))
    lost, grants = _points(marked, "lost"), _points(marked, "grants")
    if not lost and not grants:
        return ()
    return (
        tuple(scatter(lost, "acquires/s", "most locks lost per crash")),
        tuple(scatter(grants, "p99 ms at 80 %", "double grants per 100 cuts")),
    )


def _points(marked: Sequence[tuple[str, Mapping[str, Any]]], what: str) -> list[Point]:
    points = []
    for mark, option in marked:
        crash, rate, p99_s = option["crash"], option["acquired_per_s"], option["p99_s"]
        if crash is None:
            continue
        if what == "lost" and rate is not None:
            points.append(Point(mark, rate["median"], crash["lost_per_cut"]["max"]))
        elif what == "grants" and p99_s is not None and crash["double_grants"] is not None:
            points.append(Point(mark, p99_s * 1000, crash["double_grants"] / crash["cuts"] * 100))
    return points
