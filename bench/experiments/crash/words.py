"""What `lockbench crash` says: *its result → what was lost and who got a lock twice, on a page*. What nobody may lose
stands in one line, what is lost in tables that fit 80 columns."""

from collections.abc import Iterable, Iterator, Sequence

from bench.experiments.crash.result import CrashGroup, CrashResult, CrashRow
from bench.measure.expectation import AS_EXPECTED, ROW_WORDS
from bench.report.figures import MISSING, count, decimals
from bench.report.html.plot import Bar, Column, Figure, forest
from bench.report.html.scale import logarithmic, number_tick
from bench.report.sheet import Case, Columns, Part, Sheet, Suite, made, sheet_of, table

_KINDS = {
    "shutdown": "SHUTDOWN",
    "kill": "kill -9",
    "kill-slow-fsync": "kill -9, slow",
    "power-cut": "power cut",
    "power-cut-torn": "power cut, torn",
}
_CRASH: Columns[CrashGroup] = (
    ("N", lambda row: str(row.instances)),
    ("policy", lambda row: row.policy),
    ("crash", lambda row: _KINDS[row.kind]),
    ("of", lambda row: str(row.crashed)),
)
_LOST: Columns[CrashGroup] = (
    *_CRASH,
    ("cuts", lambda row: count(row.cuts)),
    ("lost/cut\nmedian", lambda row: decimals(row.lost_per_cut.median, 0)),
    ("\nmax", lambda row: decimals(row.lost_per_cut.max, 0)),
    ("of all\nat stake", lambda row: MISSING if row.lost_share is None else f"{row.lost_share:.0%}"),
    ("window s\nmedian", lambda row: decimals(row.lost_window_s.median)),
    ("\nmax", lambda row: decimals(row.lost_window_s.max)),
    ("fsync in\nflight", lambda row: f"{row.fsync_in_flight.cuts}/{row.cuts}{_mark(row)}"),
)
_WORDS = frozenset({1, 2})
_LEGEND = (
    ("power cut", "the shim's worst case: exactly what was synced is kept; a kernel writes back after some 30 s"),
    ("slow", "every fsync takes 1.5 s; under `always` 0.2 s, as an acquire may wait a quarter of its TTL"),
    ("in flight", "everysec puts writes off while an fsync runs: kill -9 may lose them then; such cuts stand apart"),
    ("no lock", "seconds from the crash to the next grant of a free lock, with the back-off of reconnecting clients"),
)


def sheet(result: CrashResult, place: str = "") -> Sheet:
    """Return the summary of `result`, stored at `place` ("" = nowhere)."""
    return sheet_of(
        result, place, kind="crash", headline=_headline(result), conditions=_conditions(result),
        parts=_parts(result), lines=_lines(result),
    )  # fmt: skip


def _headline(result: CrashResult) -> str:
    def lost(groups: Sequence[CrashGroup], of: str = "") -> str:
        return f"{_total(row.lost_total for row in groups)}{of} in {_total(row.cuts for row in groups)} cuts"

    groups, told = result.groups, []
    if always := [row for row in groups if row.policy == "always"]:
        told.append(f"always lost {lost(always)}")
    if cut := [row for row in groups if row.policy == "everysec" and row.kind == "power-cut"]:
        most, window = _most(row.lost_per_cut.max for row in cut), _most(row.lost_window_s.max for row in cut)
        told.append(f"everysec up to {count(most)} locks, {decimals(window)} s, at a power cut")
    if delayed := [row for row in groups if row.restart == "delayed"]:
        twice = _total(row.double_grants for row in result.rows if row.restart == "delayed")
        told.append(f"delayed restart: {twice} double grants in {_total(row.cuts for row in delayed)} cuts")
    if groups and not told:
        told.append(lost(groups, f" of {_total(row.at_stake for row in groups)} locks lost"))
    return " · ".join(told) or "nothing finished"


def _conditions(result: CrashResult) -> Sequence[str]:
    conditions, server = result.conditions, result.fleet.server
    return (
        "quick" if conditions.quick else "full",
        f"{count(conditions.finished_cuts)} cuts, {conditions.cuts_per_cell} per cell, at random phases",
        f"TTL {conditions.ttl_ms / 1000:g} s",
        f"{conditions.locks_per_s} locks/s per fleet",
        f"{server.name} {server.version}",
        *made(result),
    )


def _parts(result: CrashResult) -> Iterator[Part]:
    if at_once := [row for row in result.groups if row.restart == "at-once"]:
        about = "acknowledged locks that a crashed instance, back at once, did not know"
        yield table("lost", about, _LOST, at_once, _WORDS)
    crashes: dict[str, list[CrashRow]] = {}
    for row in result.rows:
        crashes.setdefault(row.key, []).append(row)
    delayed = [rows for rows in crashes.values() if rows[0].restart == "delayed"]
    back = [rows for rows in crashes.values() if rows[0].restart == "at-once" and any(map(_tells, rows))]
    for name, restarted, told in (("granted twice", "at once", back), ("delayed", "after the longest TTL", delayed)):
        if told:
            margins = 1 + max(row.margin for rows in told for row in rows)
            trusted = ("trusted,\nmargin 0", *(f"\n{margin}" for margin in range(1, margins)))
            head = (*(name for name, _ in _CRASH), *trusted, "abstain-\ning", "no lock s\ntrusted", "\nabstain.")
            about = f"restarted {restarted}: leases that two clients held, of those asked for"
            yield Part(name, about, head, tuple(_twice(rows, margins) for rows in told), _WORDS)


def _tells(row: CrashRow) -> bool:
    """Whether there is more to say of a row than that nothing may be lost, and was not."""
    may_lose = row.expected_loss not in ("none", "none-unless-in-flight")
    return may_lose or row.double_grants > 0 or bool(_mark(row))


def _twice(rows: Sequence[CrashRow], margins: int) -> tuple[str, ...]:
    held = [_doubled([row for row in rows if row.margin == margin and not row.abstention]) for margin in range(margins)]
    waits = (_most(row.unavailable_s.max for row in rows if row.abstention is way) for way in (False, True))
    abstaining = _doubled([row for row in rows if row.abstention])
    return (*(shown(rows[0]) for _, shown in _CRASH), *held, abstaining, *map(decimals, waits))


def _doubled(rows: Sequence[CrashRow]) -> str:
    if not rows:
        return ""
    return f"{sum(row.double_grants for row in rows)}/{sum(row.asked for row in rows)}" + _mark(*rows)


def _mark(*rows: CrashGroup) -> str:
    return "" if all(row.verdict == AS_EXPECTED for row in rows) else " !"


def _lines(result: CrashResult) -> Iterator[tuple[str, str]]:
    yield from _findings(result.rows)
    for row in result.groups:
        seen = row.fsync_in_flight
        if seen.apart and seen.cuts:
            lost = f"up to {count(seen.lost_per_cut_max)} locks" if seen.lost_per_cut_max else "nothing"
            yield "apart", f"{row.key}: {seen.cuts} of {row.cuts} cuts had a sync in flight and lost {lost}"
    yield from _LEGEND
    yield "lost", f"at L locks/s a crash loses about L × window; here L = {result.conditions.locks_per_s}"


def _findings(rows: Sequence[CrashRow]) -> Iterator[tuple[str, str]]:
    """What must not happen, over all rows in which it must not, with its bound; and what the margin is worth."""
    trusted = [row for row in rows if row.restart == "at-once" and not row.abstention]
    one_of_odd = [row for row in trusted if row.crashed == 1 and row.instances % 2]
    always = [row for row in rows if row.policy == "always"]
    lost = _total(row.lost_total for row in always if not row.abstention)
    abstain = "the clients let a restarted instance abstain for the longest TTL: "
    for name, about, chosen in (
        ("always", f"{lost} locks lost, ", always),
        ("delayed", "restarted after the longest TTL: ", [row for row in rows if row.restart == "delayed"]),
        ("abstaining", abstain, [row for row in rows if row.abstention]),
        ("margin ≥ 1", "one restart, odd N, trusted at once: ", [row for row in one_of_odd if row.margin]),
    ):
        if chosen:
            cuts = sum({row.key: row.cuts for row in chosen}.values())
            safe = cuts >= 6 and not any(row.double_grants for row in chosen)
            bound = f" (95 % sure: fewer than 1 cut in {cuts // 3:,})" if safe else ""
            yield name, f"{about}{_granted_twice(chosen)} in {count(cuts)} cuts{bound}"
    if doubled := [row for row in one_of_odd if not row.margin and row.policy == "none"]:
        about = "one restart without persistence, odd N, trusted at once"
        yield "margin 0", f"{about}: {_granted_twice(doubled)}"


def _granted_twice(rows: Sequence[CrashRow]) -> str:
    twice, asked = _total(row.double_grants for row in rows), _total(row.asked for row in rows)
    return f"{twice} of {asked} locks granted twice"


def _total(numbers: Iterable[int]) -> str:
    return count(sum(numbers))


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def suite(result: CrashResult) -> Suite:
    """Every cell as a JUnit case."""
    cases = [
        Case(
            row.name,
            ROW_WORDS[row.verdict].status,
            row.reason or f"lost {row.lost_total}, granted twice {row.double_grants} of {row.asked}",
        )
        for row in result.rows
    ]
    return Suite("crash", result.started_at, result.duration_s, cases, {"id": result.id})


def figures(result: CrashResult) -> list[Figure]:
    """Median and most of the locks lost per crash: the worst group of every policy and kind."""
    known: dict[str, tuple[float, float]] = {}
    for row in result.groups:
        if row.lost_per_cut.max is not None:
            name = f"{row.policy} × {_KINDS[row.kind]}"
            median, most = known.get(name, (0.0, 0.0))
            most = max(most, row.lost_per_cut.max, row.fsync_in_flight.lost_per_cut_max)
            known[name] = max(median, row.lost_per_cut.median or 0.0), most
    if not known:
        return []
    worst = max(most for _, most in known.values())
    bars = [
        Bar(
            name, median or 0.5, median or 0.5, most or 0.5, f"{count(round(median))}, most {count(most)}",
            *(("bad", "some lost: median to most") if most else ("good", "none lost")),
        )
        for name, (median, most) in known.items()
    ]  # fmt: skip
    lossless = sum(not most for _, most in known.values())
    title = f"{lossless} of {len(known)} cases lost no acknowledged lock; the worst crash lost {count(worst)}"
    about = "Acknowledged locks lost per crash, median and most of the worst N; log scale, 0.5 stands for none"
    x = logarithmic([0.5, 1.0, worst], "locks lost per crash (log scale)", number_tick)
    columns = (Column("case", "text"), Column("median", "count"), Column("most", "count"))
    return [
        forest("lost", title, about, bars=bars, x=x, columns=columns, rows=[[name, *known[name]] for name in known])
    ]
