"""The verdict of a comparison: *run entries, judged metrics, exact costs, thresholds → one word and its reasons*.

Rules
- Violated before invalid before fail before inconclusive: that one metric got worse, or one limit was broken, stays
  proven when another one is unclear.
- Without a finished pair, and with an INVALID run, nothing passes; nor do latencies of an open loop that was late, as
  what the generator adds to both sides hides what differs between them.
- A comparison is inconclusive only if none of its metrics says anything.
- Pairs that were ordered and not run, as something stood in the way, leave it undecided.
- `only_noise`: nothing but the spread of the figures left it undecided, so that a quieter machine or more pairs may
  decide it. All that may be forgiven.

Source: README's exit codes (130 > 2 > 3 > 5 > 1 > 4 > 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.gates.threshold import sentence, value_of
from bench.measure.generator import IN_DOUBT

Entry = Mapping[str, Any]
ORDER = ("violated", "invalid", "fail", "inconclusive")


def judge_comparison(
    kind: str,
    runs: Sequence[Entry],
    metrics: Sequence[Entry],
    *,
    labels: Sequence[str],
    exact: Entry | None = None,
    thresholds: Sequence[Entry] = (),
    stopped: str = "",
) -> dict[str, Any]:
    """Return the section `verdict`: `status` (pass, fail, inconclusive, invalid, violated), `reasons`, `only_noise`.

    `kind`: gate or compare; `metrics`: those that count, as `Judged.to_json` returns them; `stopped`: why not all pairs
    were run.
    """
    found = {
        "violated": _first(runs, labels, "violated"),
        "invalid": _first(runs, labels, "invalid"),
        "inconclusive": [
            *map(sentence, (one for one in thresholds if _is(one, "inconclusive"))),
            *([f"not all pairs were run: {stopped}"] if stopped else []),
        ],
        "fail": [
            *(_worse(entry) for entry in metrics if entry["verdict"] == "fail"),
            *(exact or {}).get("failures", ()),
            *map(sentence, (one for one in thresholds if _is(one, "fail"))),
        ],
    }
    undecided = _undecided(kind, runs, metrics)
    status = next((name for name in ORDER if found[name]), "inconclusive" if undecided else "pass")
    others = [reason for name in ORDER for reason in found[name]]
    noise = bool(runs and undecided and not others) and all(entry["noisy"] for entry in metrics if _is_open(entry))
    return {"status": status, "reasons": others + undecided, "only_noise": noise}


def combine_thresholds(runs: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return one entry for each threshold over all runs of one side: the run in the middle speaks, of safety the
    worst."""
    combined = []
    for entries in zip(*(run["thresholds"] for run in runs), strict=True):
        known = sorted((one for one in entries if not _is(one, "inconclusive")), key=value_of)
        failed = [one for one in known if _is(one, "fail")]
        if len(known) * 2 < len(entries):
            chosen = next(one for one in entries if _is(one, "inconclusive"))
        elif failed and entries[0]["path"].startswith("safety."):
            chosen = failed[-1]
        else:
            chosen = known[(len(known) - 1) // 2]
        combined.append(dict(chosen))
    return combined


def is_late(run: Entry) -> bool:
    """Whether the latencies of an open loop's run are upper bounds only."""
    return run.get("generator") in IN_DOUBT


def _undecided(kind: str, runs: Sequence[Entry], metrics: Sequence[Entry]) -> list[str]:
    if not runs:
        return ["there is no finished pair"]
    unclear = [f"{entry['metric']}: {entry['reason']}" for entry in metrics if _is_open(entry)]
    late = sum(map(is_late, runs))
    if late and any(entry.get("unit") == "s" for entry in metrics):
        return [*unclear, f"in {late} of {len(runs)} runs the generator was late: their latencies are upper bounds"]
    some_say_something = kind == "compare" and len(unclear) < len(metrics)
    return [] if some_say_something else unclear


def _first(runs: Sequence[Entry], labels: Sequence[str], status: str) -> list[str]:
    """One sentence about the runs with this status, if there are any."""
    bad = [run for run in runs if run["status"] == status]
    if not bad:
        return []
    why = "; ".join(bad[0]["reasons"])
    return [f"{len(bad)} of {len(runs)} runs {status}, first one of {labels[bad[0]['side']]}: {why}"]


def _worse(entry: Entry) -> str:
    change = entry["ratio"] - 1
    return f"{entry['metric']} got worse: {change:+.1%} ({entry['label']})"


def _is_open(entry: Entry) -> bool:
    return bool(entry["verdict"] == "inconclusive")


def _is(entry: Entry, status: str) -> bool:
    return bool(entry["status"] == status)
