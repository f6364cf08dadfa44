"""What `lockbench crash` says: *its result → what was lost and who got a lock twice, on a page*.
What nobody may lose stands in one line, what is lost in tables that fit 80 columns."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from bench.experiments.durability.loss_result import (
    KINDS,
    POLICIES,
    CrashGroup,
    CrashResult,
    CrashRow,
)
from bench.measure.expectation import AS_EXPECTED, ROW_WORDS
from bench.report.figures import MISSING, count, counted, decimals, latency, percent
from bench.report.html.plot import Cell, Column, Figure, Measure, Panel, panels
from bench.report.junit import Case, Suite
from bench.report.sheet import (
    NOT_MEASURED,
    TO_DO,
    Columns,
    KeyFigure,
    Part,
    Sentence,
    Sheet,
    made,
    sheet_of,
    table,
)

# Fewer crashes give no bound that is worth a sentence.
_LEAST_CUTS = 6
_KINDS = {
    "shutdown": "SHUTDOWN",
    "kill": "kill -9",
    "kill-slow-fsync": "kill -9, slow",
    "power-cut": "power cut",
    "power-cut-torn": "power cut, torn",
}
_TERMS = {
    "ended": "how many servers of the fleet crashed at once",
    "power cut": "exactly what was synced is kept, the worst case: a kernel writes back by itself "
    "after some 30 s",
    "torn": "some of what was not synced is kept, too, and ends in the middle of a command",
    "slow": "every fsync takes 1.5 s; under always 0.2 s, as an acquire may wait a quarter of "
    "its TTL",
    "lost": "locks that a crashed server had acknowledged and does not know when it is back",
    "back": "how long before the crash the oldest lost lock had been acknowledged, in s",
    "fsync ran": "crashes with an fsync running at the end. Under everysec "
    "writes are postponed then, "
    "and kill -9 may "
    "lose them; the other columns leave those crashes out",
}
_MARGIN_TERMS = {
    "margin": "votes of the first lease beyond a quorum; the second client "
    "trusts restarted servers",
    "clients abstain": "the second client does not count a restarted server before "
    "the longest TTL is over",
    "no locks s, abstain s": "seconds from the crash to the next grant of a free lock, "
    "with the back-off of "
    "clients "
    "that reconnect; of clients that trust, and of those that let the server abstain",
}
_CRASH: Columns[CrashGroup] = (
    ("N", lambda row: str(row.instances)),
    ("policy", lambda row: row.policy),
    ("crash", lambda row: _KINDS[row.kind]),
    ("ended", lambda row: str(row.crashed)),
)
_LOST: Columns[CrashGroup] = (
    *_CRASH,
    ("times", lambda row: count(row.cuts)),
    ("lost\nmedian", lambda row: decimals(row.lost_per_cut.median, 0)),
    ("lost\nmost", lambda row: decimals(row.lost_per_cut.max, 0)),
    ("lost\nshare", lambda row: MISSING if row.lost_share is None else f"{row.lost_share:.0%}"),
    ("back s\nmedian", lambda row: decimals(row.lost_window_s.median)),
    ("back s\nmost", lambda row: decimals(row.lost_window_s.max)),
    ("fsync\nran", lambda row: f"{row.fsync_in_flight.cuts}/{row.cuts}{_mark(row)}"),
)
_WORDS = frozenset({1, 2})


def sheet(result: CrashResult, place: str = "") -> Sheet:
    """Return the summary of `result`, stored at `place` ("" = nowhere)."""
    return sheet_of(
        result,
        place,
        kind="crash",
        headline=_headline(result),
        conditions=_conditions(result),
        parts=_parts(result),
        lines=_lines(result),
        keys=_keys(result),
    )


def _headline(result: CrashResult) -> str:
    """What was lost, in one sentence; the bounds are the key figures'."""
    groups = result.groups
    phrases = []
    if always := [row for row in groups if row.policy == "always"]:
        phrases.append(f"always lost {_locks(sum(row.lost_total for row in always))}")
    if cut := _of_everysec(groups):
        most = _most(row.lost_per_cut.max for row in cut)
        window_s = _most(row.lost_window_s.max for row in cut)
        back = f"up to the last {decimals(window_s)} s of locks" if most else "no lock"
        phrases.append(f"everysec lost {back} at a power cut")
    if groups and not phrases:
        lost = _total(row.lost_total for row in groups)
        stake = _total(row.at_stake for row in groups)
        phrases.append(
            f"{lost} of {stake} locks lost in {_total(row.cuts for row in groups)} crashes"
        )
    return ", ".join(phrases) or "nothing finished"


def _locks(number: int) -> str:
    return counted(number, "lock") if number else "no acknowledged lock"


def _of_everysec(groups: Sequence[CrashGroup]) -> list[CrashGroup]:
    return [row for row in groups if row.policy == "everysec" and row.kind == "power-cut"]


def _keys(result: CrashResult) -> Iterator[KeyFigure]:
    groups = result.groups
    if always := [row for row in groups if row.policy == "always"]:
        lost = sum(row.lost_total for row in always)
        cuts = sum(row.cuts for row in always)
        yield KeyFigure("always", f"{_locks(lost)} lost", _bound(cuts, is_safe=not lost))
    if cut := _of_everysec(groups):
        most = _most(row.lost_per_cut.max for row in cut)
        rate = f"of one power cut, at {result.conditions.locks_per_s} locks/s"
        yield KeyFigure("everysec", f"at most {count(most)} locks lost", rate)
    if delayed := [row for row in result.rows if row.restart == "delayed"]:
        is_safe = not any(row.double_grants for row in delayed)
        yield KeyFigure(
            "delayed restart", _granted_twice(delayed), _bound(_cuts_of(delayed), is_safe=is_safe)
        )


def _bound(cuts: int, *, is_safe: bool) -> str:
    """Of how many crashes; 95 % sure (rule of three), where nothing happened in six or more."""
    sure = f"; 95 % sure: fewer than 1 in {cuts // 3:,}" if is_safe and cuts >= _LEAST_CUTS else ""
    return f"{count(cuts)} crashes{sure}"


def _cuts_of(rows: Sequence[CrashRow]) -> int:
    """The rows of a group share its cuts."""
    return sum({row.key: row.cuts for row in rows}.values())


def _conditions(result: CrashResult) -> Sequence[str]:
    conditions = result.conditions
    server = result.fleet.server
    disk = [f"fsync {conditions.disk}"] if conditions.latency_ms else []
    return (
        "quick" if conditions.quick else "full",
        f"{count(conditions.finished_cuts)} crashes, {conditions.cuts_per_cell} of each "
        "kind, at random moments",
        f"TTL {conditions.ttl_ms / 1000:g} s",
        f"{conditions.locks_per_s} locks/s per fleet",
        *disk,
        f"{server.name} {server.version}",
        *made(result),
    )


def _parts(result: CrashResult) -> Iterator[Part]:
    if at_once := [row for row in result.groups if row.restart == "at-once"]:
        about = "acknowledged locks that a crashed server, back at once, did not know"
        yield table("Locks lost", about, _LOST, at_once, _WORDS, terms=_TERMS)
    crashes: dict[str, list[CrashRow]] = {}
    for row in result.rows:
        crashes.setdefault(row.key, []).append(row)
    delayed = [rows for rows in crashes.values() if rows[0].restart == "delayed"]
    back = [
        rows for rows in crashes.values() if rows[0].restart == "at-once" and any(map(_tells, rows))
    ]
    for how, row_groups in (("at once", back), ("after the longest TTL", delayed)):
        if row_groups:
            margins = 1 + max(row.margin for rows in row_groups for row in rows)
            trusted = (f"margin\n{margin}" for margin in range(margins))
            waits = ("no locks\ns", "abstain\ns")
            head = (*(name for name, _ in _CRASH), *trusted, "clients\nabstain", *waits)
            cells = tuple(_twice(rows, margins) for rows in row_groups)
            about = "leases that two clients held, of those asked for"
            yield Part(
                f"Granted twice, restarted {how}", about, head, cells, _WORDS, terms=_MARGIN_TERMS
            )


def _tells(row: CrashRow) -> bool:
    """Whether there is more to say of a row than that nothing may be lost, and was not."""
    may_lose = row.expected_loss not in ("none", "none-unless-in-flight")
    return may_lose or row.double_grants > 0 or bool(_mark(row))


def _twice(rows: Sequence[CrashRow], margins: int) -> tuple[str, ...]:
    held = [
        _doubled([row for row in rows if row.margin == margin and not row.abstention])
        for margin in range(margins)
    ]
    waits = (
        _most(row.unavailable_s.max for row in rows if row.abstention is way)
        for way in (False, True)
    )
    abstaining = _doubled([row for row in rows if row.abstention])
    return (*(shown(rows[0]) for _, shown in _CRASH), *held, abstaining, *map(decimals, waits))


def _doubled(rows: Sequence[CrashRow]) -> str:
    if not rows:
        return ""
    return f"{sum(row.double_grants for row in rows)}/{sum(row.asked for row in rows)}" + _mark(
        *rows
    )


def _mark(*rows: CrashGroup) -> str:
    return "" if all(row.verdict == AS_EXPECTED for row in rows) else " !"


def _lines(result: CrashResult) -> Iterator[tuple[str, str] | Sentence]:
    rate = result.conditions.locks_per_s
    planner = (
        "lockbench fsync --quick, then lockbench planner: what each policy costs beside "
        "these losses"
    )
    yield Sentence("choose", planner, "", TO_DO)
    scale = (
        "at your rate a crash loses about rate × the seconds it reaches back; these figures "
        f"are of {rate} locks/s"
    )
    yield Sentence("scale", scale, "", TO_DO)
    for text in _unmeasured(result):
        yield Sentence("not measured", text, "", NOT_MEASURED)
    yield from _findings(result.rows)
    for row in result.groups:
        in_flight = row.fsync_in_flight
        if in_flight.apart and in_flight.cuts:
            lost = (
                f"up to {count(in_flight.lost_per_cut_max)} locks"
                if in_flight.lost_per_cut_max
                else "nothing"
            )
            yield (
                "fsync ran",
                f"{row.key}: in {in_flight.cuts} of {row.cuts} crashes, which lost {lost}",
            )


def _unmeasured(result: CrashResult) -> Iterator[str]:
    disk = result.fleet.fdatasync_s
    conditions = result.conditions
    own = f" (fdatasync p50 {latency(disk.p50_s)})" if disk else ""
    added = f", {conditions.disk} added" if conditions.latency_ms else ""
    again = "" if conditions.latency_ms else " (lockbench crash --latency 2ms imitates one)"
    yield f"a slower disk than this one{own}{added}: it can lose more under everysec{again}"
    counts = ", ".join(map(str, conditions.instances))
    yield (
        f"fleets of other sizes than N={counts}, and a TTL other than "
        f"{conditions.ttl_ms / 1000:g} s"
    )
    if conditions.quick:
        yield (
            "most crashes of all instances, and delayed restarts under every policy: "
            "lockbench crash without --quick"
        )


def _findings(rows: Sequence[CrashRow]) -> Iterator[tuple[str, str]]:
    """What must not happen, over all rows in which it must not, with its bound; and what the margin
    is worth."""
    trusted = [row for row in rows if row.restart == "at-once" and not row.abstention]
    one_of_odd = [row for row in trusted if row.crashed == 1 and row.instances % 2]
    always = [row for row in rows if row.policy == "always"]
    lost = _total(row.lost_total for row in always if not row.abstention)
    abstain = "the clients let a restarted server abstain for the longest TTL: "
    for name, about, chosen in (
        ("always", f"{lost} locks lost, ", always),
        (
            "delayed",
            "restarted after the longest TTL: ",
            [row for row in rows if row.restart == "delayed"],
        ),
        ("clients abstain", abstain, [row for row in rows if row.abstention]),
        (
            "margin ≥ 1",
            "one restart, odd N, trusted at once: ",
            [row for row in one_of_odd if row.margin],
        ),
    ):
        if chosen:
            is_safe = not any(row.double_grants for row in chosen)
            yield (
                name,
                f"{about}{_granted_twice(chosen)} in {_bound(_cuts_of(chosen), is_safe=is_safe)}",
            )
    if doubled := [row for row in one_of_odd if not row.margin and row.policy == "none"]:
        about = "one restart without persistence, odd N, trusted at once"
        yield "margin 0", f"{about}: {_granted_twice(doubled)}"


def _granted_twice(rows: Sequence[CrashRow]) -> str:
    twice = _total(row.double_grants for row in rows)
    requests = _total(row.asked for row in rows)
    return f"{twice} of {requests} locks granted twice"


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
            row.reason
            or f"lost {row.lost_total}, granted twice {row.double_grants} of {row.asked}",
        )
        for row in result.rows
    ]
    return Suite("crash", result.started_at, result.duration_s, cases, {"id": result.id})


def figures(result: CrashResult) -> list[Figure]:
    """What the worst crash of every policy and kind lost, grouped by policy."""
    measured = [group for group in result.groups if group.lost_per_cut.max is not None]
    if not measured:
        return []
    groups = []
    rows = []
    for policy, of_policy in groupby(sorted(measured, key=_place_of), attrgetter("policy")):
        named = []
        for kind, same in groupby(of_policy, attrgetter("kind")):
            most, back_s, twice = _worst(list(same), result.rows)
            measures = [
                _measure(most, count(most)),
                _measure(back_s, decimals(back_s)),
                _measure(twice, percent(twice, 0)),
            ]
            named.append((_KINDS[kind], measures))
            rows.append([policy, kind, most, back_s, twice])
        groups.append((policy, named))
    lossless = sum(not row[2] for row in rows)
    title = (
        f"{lossless} of {len(rows)} kinds of crash lost no acknowledged lock; the worst "
        f"crash lost {_most_of(rows)}"
    )
    about = (
        "The worst crash of each policy and kind, over every N; granted twice: by servers "
        "back at once and trusted; "
    )
    about += "slow: with fsyncs of 1.5 s (always: 0.2 s)"
    heads = [
        Panel("locks lost", "worst crash"),
        Panel("reached", "back, s"),
        Panel("granted", "twice, %"),
    ]
    columns = [
        Column(name, "text")
        for name in ("policy", "crash", "locks_lost", "reached_back_s", "granted_twice")
    ]
    return [panels("lost", title, about, heads=heads, groups=groups, columns=columns, rows=rows)]


def _place_of(group: CrashGroup) -> tuple[int, int]:
    return POLICIES.index(group.policy), KINDS.index(group.kind)


def _most_of(rows: Sequence[Sequence[Cell]]) -> str:
    return count(max(float(row[2] or 0) for row in rows))


def _worst(
    same: Sequence[CrashGroup], rows: Sequence[CrashRow]
) -> tuple[float, float | None, float | None]:
    """Of groups of one policy and kind: most locks lost, seconds they reached back, share granted
    twice at once."""
    most = max(
        max(group.lost_per_cut.max or 0.0, group.fsync_in_flight.lost_per_cut_max) for group in same
    )
    back_s = _most(group.lost_window_s.max for group in same)
    if back_s is None and not most:
        back_s = 0.0
    kind = same[0].kind
    policy = same[0].policy
    of_kind = [
        row for row in rows if (row.policy, row.kind, row.restart) == (policy, kind, "at-once")
    ]
    shares = [row.double_grants / row.asked for row in of_kind if row.asked and not row.abstention]
    return most, back_s, max(shares, default=None)


def _measure(value: float | None, text: str) -> Measure:
    if value:
        return Measure(value, text, "bad", "lost, or granted twice")
    return Measure(value, MISSING if value is None else "none", "good", "nothing lost")
