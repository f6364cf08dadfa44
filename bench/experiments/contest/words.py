"""What `make peers` says: *its result → one sheet, and the table that stands in README*.

Rules: bars first, then a table per section; nothing is computed here; a contestant that is absent is named with its
reason. Source: bench.experiments.contest.peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report.figures import MISSING, count, decimals, milliseconds, percent, share
from bench.report.junit import Case, Suite
from bench.report.readme import put_between_marks
from bench.report.sheet import Part, Sheet, part_markdown, sheet_of

Result = Mapping[str, Any]
Row = Mapping[str, Any]

IN_README = 5  # instances; the other tables stand in the result
_CYCLES = (
    *("N={}", "1 caller\ncycles/s", "p50\nµs", "p99\nµs", "64 callers\ncycles/s", "p50\nms", "p99\nms"),
    *("client\nµs", "server\nµs", "errors"),
)
_HOT = ("hot key, N={}", "leases\n/s", "wait p50\nms", "p99\nms", "Jain", "commands\nper lease", "gave up", "errors")
_STOPPED = ("one of 3 stopped", "before\n/s", "stopped\n/s", "after\n/s", "kept", "keys\nleft", "errors")


def sheet(result: Result, place: str = "") -> Sheet:
    """Return the summary of `result`, stored at `place`."""
    missed = [bar for bar in result["bars"] if not bar["reached"]]
    reached = len(result["bars"]) - len(missed)
    return sheet_of(
        result, place, kind="peers", headline=f"{reached} of {len(result['bars'])} bars reached",
        conditions=conditions(result), parts=_parts(result), lines=_lines(result),
    )  # fmt: skip


def suite(result: Result) -> Suite:
    """One JUnit case per bar."""
    cases = [Case(bar["name"], "pass" if bar["reached"] else "fail", _bar(bar)) for bar in result["bars"]]
    return Suite("peers", result["started_at"], result["duration_s"], cases, {"id": result["id"]})


def conditions(result: Result) -> str:
    """Under which conditions everything in `result` was measured."""
    about, environment = result["conditions"], result["environment"]
    server = about["server"]
    return " · ".join(
        (
            result["started_at"][:10],
            f"{about['rounds']} rounds of {about['seconds']:g} s (hot key {about['hot_seconds']:g} s), medians",
            f"{environment['cpu_model']}, {about['cores']} of {environment['cores']} cores for clients and servers",
            f"{server['name']} {server['version']} in memory",
            environment["python"],
            *(["cut short"] if result["interrupted"] else []),
        )
    )


def readme_section(result: Result) -> str:
    """The tables for five instances and the bars, as Markdown."""
    five = {**result, "cycles": _of_five(result["cycles"]), "hot": _of_five(result["hot"])}
    tables = [part_markdown(part) for part in _parts(five)]
    bars = "\n".join(f"- {'reached' if bar['reached'] else '**missed**'}: {_bar(bar)}" for bar in result["bars"])
    absent = "".join(f"\nNot there: {one['name']} ({one['reason']})." for one in result["absent"])
    versions = sorted({package for one in result["contestants"] for package in one["packages"]})
    return "\n\n".join(
        (
            *tables,
            bars,
            f"Measured {conditions(result)}. µs are CPU per cycle at 64 callers; {', '.join(versions)}.{absent}",
        )
    )


def _of_five(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["instances"] == IN_README]


def write_readme(path: Path, result: Result) -> None:
    """Replace what stands between the marks in `path`. Raises EnvironmentNotReadyError when they are not there."""
    put_between_marks(path, "peers", readme_section(result))


def _lines(result: Result) -> Iterator[tuple[str, str]]:
    for bar in result["bars"]:
        yield ("reached" if bar["reached"] else "missed"), _bar(bar)
    for one in result["absent"]:
        yield "not there", f"{one['name']}: {one['reason']}"


def _bar(bar: Row) -> str:
    wanted = f"{'≥' if bar['at_least'] else '<'} {bar['bar']:g}"
    who = f"{bar['ours']}" + (f" beside {bar['theirs']}" if bar["theirs"] else "")
    value, low, high = ("∞" if bar[name] is None else f"{bar[name]:.2f}" for name in ("value", "low", "high"))
    return f"{bar['name']}: {value} ({low}–{high}), wanted {wanted}; {who}"


def _parts(result: Result) -> Iterator[Part]:
    for instances in sorted({row["instances"] for row in result["cycles"]}):
        rows = [row for row in result["cycles"] if row["instances"] == instances]
        yield _part(_CYCLES, instances, tuple(_cycles(rows)))
    for instances in sorted({row["instances"] for row in result["hot"]}):
        rows = [row for row in result["hot"] if row["instances"] == instances]
        rows.sort(key=lambda row: -row["cycles_per_s"])
        yield _part(_HOT, instances, tuple(map(_hot, rows)))
    if result["stopped"]:
        rows = sorted(result["stopped"], key=lambda row: -row["before_per_s"])
        yield _part(_STOPPED, 3, tuple(map(_stopped, rows)))


def _part(head: Sequence[str], instances: int, rows: tuple[tuple[str, ...], ...]) -> Part:
    return Part("", "", tuple(cell.format(instances) for cell in head), rows)


def _cycles(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    by_name: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_name.setdefault(row["name"], {})[row["callers"]] = row
    empty: Row = dict.fromkeys(("cycles_per_s", "p50_us", "p99_us", "client_us", "server_us"))
    for name, both in sorted(by_name.items(), key=lambda item: -max(row["cycles_per_s"] for row in item[1].values())):
        one, many = both.get(1, empty), both.get(64, empty)
        errors = [error for row in both.values() for error in row["errors"].items()]
        yield (
            name,
            _count(one["cycles_per_s"]), _wait(one, "p50_us", _count), _wait(one, "p99_us", _count),
            _count(many["cycles_per_s"]), _wait(many, "p50_us"), _wait(many, "p99_us"),
            _count(many["client_us"], 1), _count(many["server_us"], 1),
            count(sum(number for _, number in errors)),
        )  # fmt: skip


def _hot(row: Row) -> tuple[str, ...]:
    jain, commands = row["jain"], row["commands_per_lease"]
    return (
        row["name"],
        _count(row["cycles_per_s"]),
        _wait(row, "p50_us"),
        _wait(row, "p99_us"),
        decimals(jain),
        decimals(commands, 1),
        share(row["gave_up"], row["gave_up"] + row["leases"]),
        count(sum(row["errors"].values())),
    )


def _stopped(row: Row) -> tuple[str, ...]:
    return (
        row["name"],
        _count(row["before_per_s"]),
        _count(row["stopped_per_s"]),
        _count(row["after_per_s"]),
        percent(row["kept_ratio"], 0),
        count(row["keys_left"]),
        count(sum(row["errors"].values())),
    )


def _ms(us: float | None) -> str:
    return milliseconds(None if us is None else us / 1e6)


def _wait(row: Row, name: str, shown: Callable[[float | None], str] = _ms) -> str:
    """A percentile of the waits; ∞ where so many acquires were never granted."""
    return "∞" if row[name] is None and row.get("failed") else shown(row[name])


def _count(value: float | None, digits: int = 0) -> str:
    if value is None:
        return MISSING
    return f"{value:.{digits}f}" if value < 100 and digits else count(round(value))
