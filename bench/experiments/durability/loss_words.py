"""Writes the texts of `lockbench crash`: *a crash result → a page about lost locks and locks
granted twice*. Some losses must never happen, and the key figures show whether these losses
happened. Each key figure has one line. The tables show all other losses. Each table has at most 80
columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from bench.experiments.durability.loss_result import (
    CrashGroup,
    CrashResult,
    CrashRow,
    Losses,
)
from bench.experiments.durability.policies import AOF_POLICIES, KINDS, terms
from bench.measure.expectation import ROW_WORDS
from bench.report.figures import MISSING, count, counted, decimals, latency, percent
from bench.report.html.plot import Figure, Measure, Panel, harm, panels
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import (
    Columns,
    KeyFigure,
    Part,
    Sentence,
    Sheet,
    made,
    not_measured,
    sheet_of,
    table_of,
    to_do,
)

_TERMS = {
    "servers down": "number of servers that crashed at the same time",
    "power cut": "the server keeps only synced data. This is the worst case, because a real "
    "kernel also writes unsynced data after about 30 s",
    "torn": "the server also keeps a part of the unsynced data, up to the middle of a command",
    "slow": "every fsync takes 1.5 s. Under the policy always, every fsync takes 0.2 s, because "
    "an acquire waits for its fsync, and may wait for at most a quarter of its TTL",
    "lost": "locks that a crashed server acknowledged before the crash and no longer "
    "knows after the restart",
    "back": "time from the acknowledgement of the oldest lost lock to the crash",
    "fsync ran": "crashes during an fsync. Under everysec an fsync delays writes, and kill -9 may "
    "lose the delayed writes. The other columns do not include these crashes",
}
_MARGIN_TERMS = {
    "margin": "number of votes for the first lease, minus the quorum. The second client trusts "
    "restarted servers",
    **terms("clients abstain"),
    "no locks s, abstain s": "seconds from the crash to the next grant of a free lock, with the "
    "back-off of reconnecting clients. The first column is for clients that "
    "trust a restarted server, and the second column is for clients that "
    "abstain",
}
_CRASH = ("instances", "policy", "crash", "crashed")
_LOST: Columns[CrashGroup] = (
    *_CRASH,
    "cuts",
    "lost_per_cut.median",
    "lost_per_cut.max",
    ("lost\nshare", lambda row: MISSING if row.lost_share is None else f"{row.lost_share:.0%}"),
    "lost_window_s.median",
    "lost_window_s.max",
    ("fsync\nran", lambda row: f"{row.fsync_in_flight.cuts}/{row.cuts}{row.mark}"),
)
Rows = Sequence[CrashRow]
Crashes = Mapping[str, Rows]


def sheet(result: CrashResult, place: str = "") -> Sheet:
    """Return the summary of `result`. `place` is the result's folder, or "" if the result is not
    stored."""
    (*keys,) = _claims(result)
    return sheet_of(
        result,
        place,
        headline=_headline(result.groups),
        conditions=_conditions(result),
        parts=_parts(result),
        lines=(*_lines(result), *((claim.name, claim.text) for claim in keys[3:])),
        keys=keys[:3],
    )


def _headline(groups: Sequence[CrashGroup]) -> str:
    """Return one sentence about the losses. The sentence has no bounds, because the key figures
    show the bounds."""
    phrases = []
    if always := [row for row in groups if row.policy == "always"]:
        phrases.append(f"the policy always lost {_locks(always)}")
    if cut := _of_everysec(groups):
        window_s = _most(row.lost_window_s.max for row in cut)
        back = f"the locks of at most the last {decimals(window_s)} s" if window_s else "no lock"
        phrases.append(f"the policy everysec lost {back} in a power cut")
    if groups and not phrases:
        lost = sum(row.lost_total for row in groups)
        at_stake = sum(row.at_stake for row in groups)
        cuts = sum(row.cuts for row in groups)
        phrases.append(f"{lost:,} of {at_stake:,} locks lost in {cuts:,} crashes")
    return ", ".join(phrases) or "nothing finished"


def _locks(groups: Iterable[CrashGroup]) -> str:
    lost = sum(row.lost_total for row in groups)
    return counted(lost, "lock") if lost else "no acknowledged lock"


def _of_everysec(groups: Sequence[CrashGroup]) -> list[CrashGroup]:
    return [row for row in groups if row.policy == "everysec" and row.kind == "power-cut"]


def _claims(result: CrashResult) -> Iterator[KeyFigure]:
    """Yield one key figure for each claim. If a claim has a statistical bound, its key figure
    contains this bound. The first claims are about `always`, `everysec`, delayed restarts and
    clients that let restarted servers abstain. The last claims show how the number of double grants
    depends on the vote margin."""
    at_once = [row for row in result.rows if row.restart == "at-once" and not row.abstention]
    one_of_odd = [row for row in at_once if row.crashed == 1 and row.instances % 2]
    if always := [row for row in result.rows if row.policy == "always"]:
        lost = _locks(row for row in result.groups if row.policy == "always")
        yield _claim("always", f"{lost} lost, ", always)
    if cut := _of_everysec(result.groups):
        most = _most(row.lost_per_cut.max for row in cut)
        rate = f"in one power cut, at {result.conditions.locks_per_s} locks/s"
        yield KeyFigure("everysec", f"at most {count(most)} locks lost", rate)
    if delayed := [row for row in result.rows if row.restart == "delayed"]:
        yield _claim("delayed restart", "", delayed)
    if abstaining := [row for row in result.rows if row.abstention]:
        about = "the clients ignored a restarted server for the longest TTL: "
        yield _claim("clients abstain", about, abstaining)
    if above := [row for row in one_of_odd if row.margin]:
        yield _claim(
            "margin ≥ 1",
            "in fleets with an odd N, one server restarted at once, and the clients trusted it: ",
            above,
        )
    if doubled := [row for row in one_of_odd if not row.margin and row.policy == "none"]:
        about = (
            "in fleets with an odd N, one server without persistence restarted at once, and the "
            "clients trusted it: "
        )
        yield _claim("margin 0", about, doubled)


def _claim(name: str, about: str, rows: Sequence[CrashRow]) -> KeyFigure:
    losses = Losses.of(rows)
    is_kept = not any(row.lost_total for row in rows if row.expected_loss == "none")
    bound = f"; {losses.bound}" if losses.bound and is_kept else ""
    return KeyFigure(name, f"{about}{losses.twice}", f"{losses.cuts:,} crashes{bound}")


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
        about = (
            "number of acknowledged locks that a crashed server had forgotten after an immediate "
            "restart"
        )
        yield table_of(CrashGroup, "Locks lost", about, at_once, _LOST, terms=_TERMS)
    crashes: dict[str, list[CrashRow]] = {}
    for row in result.rows:
        crashes.setdefault(row.key, []).append(row)
    for restart, how in (("at-once", "at once"), ("delayed", "after the longest TTL")):
        of_way = {
            key: rows
            for key, rows in crashes.items()
            if rows[0].restart == restart and (restart == "delayed" or any(map(_tells, rows)))
        }
        if of_way:
            margins = 1 + max(row.margin for rows in of_way.values() for row in rows)
            columns: Columns[CrashRow] = (
                *_CRASH,
                *(
                    (f"margin\n{margin}", partial(_doubled, of_way, margin))
                    for margin in range(margins)
                ),
                ("clients\nabstain", partial(_doubled, of_way, None)),
                ("no locks\ns", partial(_waited, of_way, False)),
                ("abstain\ns", partial(_waited, of_way, True)),
            )
            yield table_of(
                CrashRow,
                f"Granted twice, restarted {how}",
                "x/y means that two clients held x of the y locks that a second client requested",
                (rows[0] for rows in of_way.values()),
                columns,
                terms=_MARGIN_TERMS,
            )


def _doubled(crashes: Crashes, margin: int | None, row: CrashRow) -> str:
    """Return a text with the number of double grants after the crash of this row. If `margin` is a
    number, the function counts only locks with this margin. It then counts only the grants to the
    second client that trusts restarted servers. If `margin` is None, the function counts locks of
    all margins. It then counts only the grants to the second client that lets restarted servers
    abstain."""
    chosen = [
        one
        for one in crashes[row.key]
        if one.abstention == (margin is None) and margin in (None, one.margin)
    ]
    if not chosen:
        return ""
    losses = Losses.of(chosen)
    return f"{losses.double_grants}/{losses.asked}{max(one.mark for one in chosen)}"


def _waited(crashes: Crashes, abstention: bool, row: CrashRow) -> str:
    rows = crashes[row.key]
    return decimals(_most(one.unavailable_s.max for one in rows if one.abstention is abstention))


def _tells(row: CrashRow) -> bool:
    """Return whether the table shows this row. There are three reasons to show a row. In the first
    case, the policy may lose locks. In the second case, locks were granted twice. In the third
    case, the row is not as expected."""
    may_lose = row.expected_loss not in ("none", "none-unless-in-flight")
    return may_lose or row.double_grants > 0 or bool(row.mark)


def _lines(result: CrashResult) -> Iterator[Sentence]:
    planner = (
        "run lockbench fsync --quick and then lockbench planner, which shows the cost of "
        "each policy beside these"
    )
    yield to_do(f"{planner} losses", "choose")
    scale = (
        "to estimate the loss at your rate, multiply your rate by the time in the column "
        f"`back`; lockbench measured at {result.conditions.locks_per_s} locks/s"
    )
    yield to_do(scale, "scale")
    yield from map(not_measured, _unmeasured(result))
    for row in result.groups:
        in_flight = row.fsync_in_flight
        if in_flight.apart and in_flight.cuts:
            most = in_flight.lost_per_cut_max
            lost = f"up to {counted(most, 'lock')}" if most else "nothing"
            text = (
                f"{row.key}: an fsync ran during {in_flight.cuts} of {row.cuts} crashes, and "
                f"these crashes lost {lost}"
            )
            yield Sentence("fsync ran", text)


def _unmeasured(result: CrashResult) -> Iterator[str]:
    disk = result.fleet.fdatasync_s
    conditions = result.conditions
    own = f" (fdatasync p50 {latency(disk.p50_s)})" if disk else ""
    added = f", {conditions.disk} added" if conditions.latency_ms else ""
    again = (
        "" if conditions.latency_ms else " (lockbench crash --latency 2ms simulates a slower disk)"
    )
    yield (
        f"a disk slower than this disk{own}{added}; a slower disk can lose more locks under "
        f"everysec{again}"
    )
    counts = ", ".join(map(str, conditions.instances))
    ttl_s = conditions.ttl_ms / 1000
    yield f"fleets of any size other than N={counts}, and any TTL other than {ttl_s:g} s"
    if conditions.quick:
        yield (
            "most crashes that hit several instances at once, and delayed restarts under some "
            "policies; lockbench crash without --quick measures both"
        )


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def suite(result: CrashResult) -> Suite:
    """Return one JUnit case per row."""
    cases = [
        Case(
            row.name,
            ROW_WORDS[row.verdict].status,
            row.reason
            or (
                f"{row.lost_total} locks were lost; {row.double_grants} of {row.asked} locks were "
                "granted twice"
            ),
        )
        for row in result.rows
    ]
    return suite_of(result, cases)


def figures(result: CrashResult) -> list[Figure]:
    """Return a picture of the losses. The picture shows the worst crash for each combination of a
    policy and a kind of crash."""
    groups = []
    for policy in AOF_POLICIES:
        of_policy = [
            (name, _worst(same, result.rows))
            for kind, name in KINDS.items()
            if (same := [group for group in result.groups if _is_drawn(group, policy, kind)])
        ]
        if of_policy:
            groups.append((policy, of_policy))
    if not groups:
        return []
    most = [measures[0].value or 0.0 for _, of_policy in groups for _, measures in of_policy]
    title = (
        f"{most.count(0.0)} of {len(most)} kinds of crash lost no acknowledged lock; the "
        f"worst crash lost {count(max(most))} locks"
    )
    about = (
        "Each row is for one policy and one kind of crash, and shows the worst crash over all N. "
        "Locks were granted twice by servers that restarted at once and that clients trusted. In "
        "the rows with the word slow, each fsync took 1.5 s, or 0.2 s under the policy always"
    )
    heads = [
        Panel("locks lost", "worst crash"),
        Panel("reached", "back, s"),
        Panel("granted", "twice, %"),
    ]
    return [panels("lost", title, about, heads=heads, groups=groups)]


def _is_drawn(group: CrashGroup, policy: str, kind: str) -> bool:
    return (group.policy, group.kind) == (policy, kind) and group.lost_per_cut.max is not None


def _worst(same: Sequence[CrashGroup], rows: Rows) -> list[Measure]:
    """Return three figures about the groups in `same`, which have one policy and one kind of crash.
    Each figure is the largest value among these groups. The first figure is the number of lost
    locks. The second figure is the age (s) of the oldest lost lock. The third figure is the share
    of locks that were granted twice after an immediate restart.
    """
    most = max(
        max(group.lost_per_cut.max or 0.0, group.fsync_in_flight.lost_per_cut_max) for group in same
    )
    back_s = _most(group.lost_window_s.max for group in same)
    if back_s is None and not most:
        back_s = 0.0
    way = (same[0].policy, same[0].kind, "at-once", False)
    trusted = [row for row in rows if (row.policy, row.kind, row.restart, row.abstention) == way]
    twice = _most(row.double_grants / row.asked if row.asked else None for row in trusted)
    return [
        _measure(most, count(most)),
        _measure(back_s, decimals(back_s)),
        _measure(twice, percent(twice, 0)),
    ]


def _measure(value: float | None, text: str) -> Measure:
    shown = "none" if value == 0 else text
    return harm(value, shown, some="lost, or granted twice", none="nothing lost")
