"""The instances side by side: *the section `instances` → one small curve each, on the same scales*.

Rules: the same axes for all, so that what differs is seen; each says its state, errors and faults in words.
Source: result.json's `instances` and its histograms `reply_<index>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.report.figures import count, counted, latency
from bench.report.html.figure import Cell, Column, Data, Figure
from bench.report.html.plot import SMALL, Axes, plot
from bench.report.html.run.latency import curve_axes, curve_lines, curve_of
from bench.report.html.scale import percentiles

Result = Mapping[str, Any]
MOST = 9  # with more, those with trouble come first


def instance_figures(result: Result) -> list[Figure]:
    """One small figure per instance; none when the result has no reply times."""
    ordered = sorted(result["instances"], key=lambda instance: (_is_well(instance), instance["index"]))
    chosen = sorted(ordered[:MOST], key=lambda instance: int(instance["index"]))
    curves = {
        instance["index"]: curve_of(result["histograms"][name], instance["reply_s"]["max"])
        for instance in chosen
        if (name := f"reply_{instance['index']}") in result["histograms"]
    }
    known = [seconds for curve in curves.values() for _, seconds in curve]
    if not known:
        return []
    most = max(instance["reply_s"]["count"] for instance in chosen)
    axes = curve_axes(percentiles(most, *SMALL.x_range), known, *SMALL.y_range)
    return [_figure(result, instance, curves.get(instance["index"], []), axes) for instance in chosen]


def instances_finding(result: Result) -> str:
    """Who was fastest and slowest, in one line."""
    replies = [(i["reply_s"]["p99"], i["index"]) for i in result["instances"] if (i.get("reply_s") or {}).get("p99")]
    trouble = [f"#{i['index']}" for i in result["instances"] if not _is_well(i)]
    said = f"; trouble on {', '.join(trouble)}" if trouble else "; all voted to the end without an error"
    if not replies:
        return f"{counted(len(result['instances']), 'instance')}{said}"
    low, high = min(replies), max(replies)
    return f"Reply p99 from {latency(low[0])} (#{low[1]}) to {latency(high[0])} (#{high[1]}){said}"


def _is_well(instance: Mapping[str, Any]) -> bool:
    return instance["state"] == "voting" and not instance["errors"]


def _figure(result: Result, instance: Mapping[str, Any], curve: list[tuple[float, float]], axes: Axes) -> Figure:
    index, reply = instance["index"], instance.get("reply_s") or {}
    title = f"#{index} {instance['address']}: {instance['state'].replace('_', ' ')}"
    about = f"Reply time by percentile, log scale, {count(reply.get('count'))} samples"
    marks = [*curve_lines(curve, reply.get("count") or 0, "c1" if _is_well(instance) else "bad")]
    share = Column("share", "text", "percentile")
    rows: list[list[Cell]] = [[f"{100 * (1 - 1 / value):.4f} %", seconds] for value, seconds in curve]
    data = Data((share, Column("reply_s", "s", "reply")), rows, [axes.x(value) for value, _ in curve])
    picture = plot(axes, marks, name=title, about=about, frame=SMALL)
    return Figure(f"instance-{index}", title, about, picture, data, notes=tuple(_notes(result, instance, reply)))


def _notes(result: Result, instance: Mapping[str, Any], reply: Mapping[str, Any]) -> list[str]:
    notes = [f"reply p50 {latency(reply.get('p50'))}, p99 {latency(reply.get('p99'))}"]
    cpu = instance.get("cpu_us_per_command")
    notes.append(
        f"{count(instance.get('commands'))} commands" + (f", CPU {cpu:.1f} µs each" if cpu is not None else "")
    )
    notes += [f"{number:,} × {kind.lower()}" for kind, number in instance["errors"].items()]
    if instance.get("leaked_keys"):
        notes.append(f"{count(instance['leaked_keys'])} keys were left")
    wanted = f"instance:{instance['index']}"
    for fault in result["faults"]:
        if fault["target"] == wanted and fault["begun_s"] is not None:
            until = f"{fault['ended_s']:.1f}" if fault["ended_s"] is not None else "the end"
            notes.append(f"fault {fault['kind']}, {fault['begun_s']:.1f}–{until} s")
    return notes
