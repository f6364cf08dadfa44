"""Did the policies behave as they must: *rows of cells → findings, each expected, seen, judged*.

    order            a policy that does more is not faster than one that does less: an order that cannot be is noise
    always-slowest   with one caller `always` grants fewer locks than every other policy
    group-commit     what `always` costs against `everysec` moves by more than 5 between one caller and a thousand
    rewrite-no-sync  under no-appendfsync-on-rewrite even `always` hardly syncs while a rewrite runs
    waitaof-counts   WAITAOF's counts were checked; a vote without a confirmed fsync is none
    waitaof-truth    what WAITAOF confirmed was on the disk, by the shim's ledger; else a fault of the server, not ours
    no-refusal       nobody contends, so nothing may be refused

Rules: pure. Only what the matrix holds is judged, and nothing is known where most figures are bounds (≥), of a queue or
of a late load, or a quarter of the visits was left out. On a disk that syncs for nearly nothing `always` cannot be
slower, so that is not judged there. A refusal without a holder is a violation, unless a release failed before it.
Source: Redis's aof.c: one fdatasync per event loop turn under `always`, before the replies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

from bench.experiments.fsync.figures_of import Row, costs_of_pair, find_rows, rate_of
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED, conclude_rows
from bench.measure.verdict import Evidence

NOT_JUDGED, SERVER_FAULT = "not judged", "server fault"
WORK = ("none", "no", "everysec", "always")  # each does what the one before it does, and more
NOISE = 0.15  # twice the deviation of interleaved pairs of the same code (7.5 %)
MADE_SHARE = 0.75  # of the visits: with fewer, half of all pairs of policies lack one (0.75² = 0.56)
MOVES = 5.0
MANY_CALLERS, SLOW_FSYNC_MS = 1000, 2.0
CHEAP_SYNC = 1.0  # two fsyncs ÷ a whole cycle of the fastest: below, noise may hide what always costs
SYNCED_SHARE = 0.5


def findings_of(rows: Sequence[Row]) -> list[Row]:
    """Every finding that the rows can say something about."""
    orders = list(_orders(rows))
    costs = [*_always_slowest(rows), *_group_commit(rows)]
    if orders:  # then noise hides what a policy costs, too
        costs = [{**one, "verdict": NOT_KNOWN} if one["verdict"] == NOT_SHOWN else one for one in costs]
    return [*orders, *costs, *_rewrites(rows), *_waitaof(rows), *_refusals(rows)]


def judge_fsync(findings: Sequence[Row], rows: Sequence[Row], conditions: Row, *, interrupted: bool) -> Row:
    """The section `verdict`. `conditions`: `visits_planned`, `visits_done`; `rows`: what the findings are of."""
    maxima = [row for row in rows if row["load"] == "max"]
    loads = [row for row in rows if row["load"] != "max"]
    planned, done = conditions["visits_planned"], conditions["visits_done"]
    evidence = [
        _evidence("maxima that are no bound", maxima),
        _evidence("loads that were neither late nor a queue", loads),
        Evidence("visits made", done, ceil(planned * MADE_SHARE)),
    ]
    told = [(finding["verdict"], finding["text"]) for finding in findings]
    cut = f"interrupted after {done} of {planned} visits" if interrupted else ""
    return conclude_rows(told, tested="findings as expected", also=evidence, interrupted=cut).to_json()


def _evidence(tested: str, rows: Sequence[Row]) -> Evidence:
    """How many of these rows hold a figure of the servers; half of them must."""
    return Evidence(tested, sum(map(_is_figure, rows)), max(1, ceil(len(rows) / 2)))


def _is_figure(row: Row) -> bool:
    """Whether what is shown of it is what the servers did, and not what limited or delayed the load."""
    generator = row["generator"]
    return not (generator["reason"] or row["sustained"] is False or (row["load"] == "max" and generator["bound"]))


def _orders(rows: Sequence[Row]) -> Iterator[Row]:
    """Policies that do more must not be faster than those that do less, by more than noise: else noise was measured."""
    for cheap, dear in _comparable(rows):
        if rate_of(cheap) >= (1 - NOISE) * rate_of(dear):
            continue
        where = f"N={dear['instances']} {dear['clients']}×{dear['pipeline']}, {_disk_of(dear)}"
        text = (
            f"{where}: {cheap['policy']} {rate_of(cheap):,.0f}/s, {dear['policy']} {rate_of(dear):,.0f}/s: an order "
            "that cannot be, so the machine's noise is larger than what the policies cost"
        )
        yield _finding("order", where, text, NOT_KNOWN, cheap=rate_of(cheap), dear=rate_of(dear))


def _comparable(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Pairs of one cell, the policy that does less first. Without persistence there is no disk to be slow."""
    for dear in find_rows(rows):
        less = WORK[: WORK.index(dear["policy"])] if dear["policy"] in WORK else ()
        cell = {key: dear[key] for key in ("instances", "clients", "pipeline")}
        for policy in less:
            disk = {} if policy == "none" else {"injected_ms": dear["injected_ms"]}
            yield from ((cheap, dear) for cheap in find_rows(rows, policy=policy, **cell, **disk))


def _finding(name: str, cell: str, text: str, verdict: str, **figures: Any) -> Row:
    return {"name": name, "cell": cell, "text": text, "verdict": verdict, "figures": figures}


def _disk_of(row: Row) -> str:
    return f"+{row['injected_ms']:g} ms" if row["injected_ms"] else "raw disk"


def _always_slowest(rows: Sequence[Row]) -> Iterator[Row]:
    for slow in find_rows(rows, policy="always", callers=1):
        others = [
            row
            for row in find_rows(rows, instances=slow["instances"], callers=1)
            if (row["policy"] in ("no", "everysec") and row["injected_ms"] == slow["injected_ms"])
            or row["policy"] == "none"
        ]
        if not others:
            continue
        fastest = max(rate_of(row) for row in others)
        least = min(others, key=rate_of)
        where = f"N={slow['instances']}, 1 caller, {_disk_of(slow)}"
        text = f"{where}: always {rate_of(slow):,.0f}/s, {least['policy']} {rate_of(least):,.0f}/s (the next slowest)"
        verdict = AS_EXPECTED if rate_of(slow) < rate_of(least) else NOT_SHOWN
        if verdict == AS_EXPECTED and slow["generator"]["bound"]:
            verdict, text = NOT_JUDGED, f"{text}: the load process was the limit"
        if verdict == NOT_SHOWN and _syncs_for_nothing(slow, fastest):
            verdict, text = NOT_JUDGED, f"{text}: this disk syncs for nearly nothing"
        yield _finding("always-slowest", where, text, verdict, always=rate_of(slow), next=rate_of(least))


def _syncs_for_nothing(row: Row, fastest_per_s: float) -> bool:
    disk = row["disk_fdatasync_s"]
    return not row["injected_ms"] and (disk is None or 2 * disk["p50"] * fastest_per_s < CHEAP_SYNC)


def _group_commit(rows: Sequence[Row]) -> Iterator[Row]:
    costs = costs_of_pair(rows, "everysec", "always")
    for few in (cost for cost in costs if cost["callers"] == 1 and cost["injected_ms"] >= SLOW_FSYNC_MS):
        same = [c for c in costs if all(c[key] == few[key] for key in ("instances", "injected_ms"))]
        many = max(same, key=lambda cost: int(cost["callers"]))
        if many["callers"] < MANY_CALLERS:
            continue
        moved = few["ratio"] / many["ratio"]
        where = f"N={few['instances']}, +{few['injected_ms']:g} ms"
        text = (
            f"{where}: everysec ÷ always is {few['ratio']:.1f} with 1 caller, {many['ratio']:.1f} with "
            f"{many['clients']}×{many['pipeline']}: it moves by {moved:.1f}×"
        )
        verdict = AS_EXPECTED if moved > MOVES else NOT_SHOWN
        if verdict == AS_EXPECTED and many["generator_bound"]:
            verdict, text = NOT_JUDGED, f"{text}, at least: the load process was the limit"
        yield _finding("group-commit", where, text, verdict, few=few["ratio"], many=many["ratio"], moved=moved)


def _rewrites(rows: Sequence[Row]) -> Iterator[Row]:
    for without in find_rows(rows, rewrite="on-no-sync", policy="always"):
        cell = {key: without[key] for key in ("instances", "clients", "pipeline", "injected_ms", "policy")}
        for synced in find_rows(rows, rewrite="on", **cell):
            rates = [row["rewrite_fsyncs_per_s"] for row in (without, synced)]
            if None in rates:
                continue
            few, many = (rate["median"] for rate in rates)
            where = f"N={cell['instances']} always {cell['clients']}×{cell['pipeline']}, {_disk_of(without)}"
            text = (
                f"{where}: {many:,.0f} fsyncs/s while the AOF is rewritten, {few:,.0f}/s under "
                "no-appendfsync-on-rewrite yes: what is acknowledged then is not on the disk"
            )
            verdict = AS_EXPECTED if few < SYNCED_SHARE * many else NOT_SHOWN
            yield _finding("rewrite-no-sync", where, text, verdict, synced=many, unsynced=few)


def _waitaof(rows: Sequence[Row]) -> Iterator[Row]:
    counts = [row["waitaof"] for row in rows if row["waitaof"]]
    if not counts:
        return
    asked, confirmed, unconfirmed = (
        sum(count.get(name, 0) for count in counts) for name in ("asked", "confirmed", "unconfirmed")
    )
    text = f"WAITAOF: {asked:,} replies, {confirmed:,} with the local fsync, {unconfirmed:,} without: not votes"
    verdict = AS_EXPECTED if confirmed and asked == confirmed + unconfirmed else NOT_SHOWN
    yield _finding("waitaof-counts", "all", text, verdict, asked=asked, confirmed=confirmed, unconfirmed=unconfirmed)
    probes, untrue = (sum(count.get(name, 0) for count in counts) for name in ("probes", "untrue"))
    if probes:
        text = f"WAITAOF under everysec: {probes} locks confirmed one by one, on the disk {probes - untrue}"
        if untrue:
            text += "; this server confirms too early, so its rate here buys nothing (redis/redis#13793)"
        verdict = SERVER_FAULT if untrue else AS_EXPECTED
        yield _finding("waitaof-truth", "all", text, verdict, probes=probes, untrue=untrue)


def _refusals(rows: Sequence[Row]) -> Iterator[Row]:
    refused = [row for row in rows if row["denied"].get("contended") or row["denied"].get("split_vote")]
    count = sum(row["denied"].get("contended", 0) + row["denied"].get("split_vote", 0) for row in refused)
    unexplained = any(not row["release_failures"] for row in refused)
    leases = sum(row["leases"] for row in rows)
    text = f"{leases:,} leases, {count:,} refused though nobody else wanted them"
    yield _finding("no-refusal", "all", text, VIOLATED if unexplained else AS_EXPECTED, leases=leases, refused=count)
