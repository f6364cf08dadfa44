"""The instances side by side: *the section `instances` → one small curve each, on the same scales*.

Rules: the same axes for all, so that what differs is seen; each says its state, errors and faults in words.
Source: result.json's `instances` and its histograms `reply_<index>`.
"""

from __future__ import annotations

from bench.measure.run_result import InstanceReport, RunResult
from bench.report.figures import count, counted, latency
from bench.report.html.figure import Cell, Column, Data, Figure
from bench.report.html.plot import SMALL, Axes, plot
from bench.report.html.run.latency import curve_axes, curve_lines, curve_of
from bench.report.html.scale import percentiles

MOST = 9  # with more, those with trouble come first


def instance_figures(result: RunResult) -> list[Figure]:
    """One small figure per instance; none when the result has no reply times."""
    ordered = sorted(result.instances, key=lambda instance: (instance.is_well, instance.index))
    chosen = sorted(ordered[:MOST], key=lambda instance: instance.index)
    curves = {
        instance.index: curve_of(result.histograms[name], instance.reply_s.max if instance.reply_s else None)
        for instance in chosen
        if (name := f"reply_{instance.index}") in result.histograms
    }
    known = [seconds for curve in curves.values() for _, seconds in curve]
    if not known:
        return []
    most = max(instance.reply_s.count for instance in chosen if instance.reply_s)
    axes = curve_axes(percentiles(most, *SMALL.x_range), known, *SMALL.y_range)
    return [_figure(result, instance, curves.get(instance.index, []), axes) for instance in chosen]


def instances_finding(result: RunResult) -> str:
    """Who was fastest and slowest, in one line."""
    replies = [(one.reply_s.p99, one.index) for one in result.instances if one.reply_s and one.reply_s.p99]
    trouble = [f"#{one.index}" for one in result.instances if not one.is_well]
    said = f"; trouble on {', '.join(trouble)}" if trouble else "; all voted to the end without an error"
    if not replies:
        return f"{counted(len(result.instances), 'instance')}{said}"
    low, high = min(replies), max(replies)
    return f"Reply p99 from {latency(low[0])} (#{low[1]}) to {latency(high[0])} (#{high[1]}){said}"


def _figure(result: RunResult, instance: InstanceReport, curve: list[tuple[float, float]], axes: Axes) -> Figure:
    index, reply = instance.index, instance.reply_s
    samples = reply.count if reply else 0
    title = f"#{index} {instance.address}: {instance.state.replace('_', ' ')}"
    about = f"Reply time by percentile, log scale, {count(samples)} samples"
    marks = [*curve_lines(curve, samples, "c1" if instance.is_well else "bad")]
    share = Column("share", "text", "percentile")
    rows: list[list[Cell]] = [[f"{100 * (1 - 1 / value):.4f} %", seconds] for value, seconds in curve]
    data = Data((share, Column("reply_s", "s", "reply")), rows, [axes.x(value) for value, _ in curve])
    picture = plot(axes, marks, name=title, about=about, frame=SMALL)
    return Figure(f"instance-{index}", title, about, picture, data, notes=tuple(_notes(result, instance)))


def _notes(result: RunResult, instance: InstanceReport) -> list[str]:
    p50_s, p99_s = (reply.p50, reply.p99) if (reply := instance.reply_s) else (None, None)
    notes, cpu = [f"reply p50 {latency(p50_s)}, p99 {latency(p99_s)}"], instance.cpu_us_per_command
    notes.append(f"{count(instance.commands)} commands" + (f", CPU {cpu:.1f} µs each" if cpu is not None else ""))
    notes += [f"{number:,} × {kind.lower()}" for kind, number in instance.errors.items()]
    if instance.leaked_keys:
        notes.append(f"{count(instance.leaked_keys)} keys were left")
    wanted = f"instance:{instance.index}"
    for fault in result.faults:
        if fault.target == wanted and fault.begun_s is not None:
            until = f"{fault.ended_s:.1f}" if fault.ended_s is not None else "the end"
            notes.append(f"fault {fault.kind}, {fault.begun_s:.1f}–{until} s")
    return notes
