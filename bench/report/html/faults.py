"""Faults as a page shows them: *the section `faults` → bands over time, and sentences*.

Rules: faults of one kind that began and ended together are one band; what never began has no band but a sentence.
Source: result.json's `faults`.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.measure.run_result import InjectedFault, RunResult
from bench.report.html.plot import Band

_TOGETHER_S = 0.3


def fault_bands(result: RunResult, end_s: float) -> list[Band]:
    """One band for each group of faults, in seconds of the measured window; `end_s`: where one without an end stops."""
    groups: list[tuple[float, float, str, list[str]]] = []
    for fault in result.faults:
        if fault.begun_s is None:
            continue
        start, stop = fault.begun_s, end_s if fault.ended_s is None else fault.ended_s
        known = next((g for g in groups if g[2] == fault.kind and _together(g, start, stop)), None)
        if known is None:
            groups.append((start, stop, fault.kind, [_target(fault)]))
        else:
            known[3].append(_target(fault))
    return [Band(start, min(stop, end_s), f"{kind} {_listed(targets)}") for start, stop, kind, targets in groups]


def warmup_band(starts_s: Sequence[float]) -> list[Band]:
    """The time before the measured window, if the slices show it."""
    return [Band(starts_s[0], 0.0, "warm-up", "warmup")] if starts_s and starts_s[0] < 0 else []


def fault_at(bands: Sequence[Band], at_s: float) -> str:
    """`, during <fault>` for a moment of the run, "" when there was none."""
    names = [band.text for band in bands if band.start <= at_s <= band.stop]
    return f", during {' and '.join(names)}" if names else ""


def fault_rows(result: RunResult) -> tuple[tuple[str, ...], ...]:
    """One row per fault: what, on what, from when to when, and what became of it."""
    return tuple(_row(fault) for fault in result.faults)


def _row(fault: InjectedFault) -> tuple[str, ...]:
    times = [f"{at_s:.3f} s" if at_s is not None else "–" for at_s in (fault.begun_s, fault.ended_s)]
    params = ", ".join(f"{name} {value}" for name, value in fault.params.items())
    said = [f"skipped: {fault.skipped}" if fault.skipped else "", fault.failed or "", params]
    return (fault.kind, fault.target, *times, "; ".join(part for part in said if part))


def _together(group: tuple[float, float, str, list[str]], start: float, stop: float) -> bool:
    return abs(group[0] - start) < _TOGETHER_S and abs(group[1] - stop) < _TOGETHER_S


def _target(fault: InjectedFault) -> str:
    noun, _, index = fault.target.partition(":")
    return f"#{index}" if noun == "instance" else f"{noun} {index}".strip()


def _listed(targets: Sequence[str]) -> str:
    return ", ".join(targets) if len(targets) < 4 else f"{targets[0]}…{targets[-1]}"
