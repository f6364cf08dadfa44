"""The verdict of a comparison: *run entries, judged metrics, exact costs, thresholds → one word and its reasons*.

Rules
- The words and their order are those of `bench.measure.verdict`: a figure that certainly got worse stays bad beside an
  unclear one, a limit that certainly fails beside one that cannot be answered.
- With an INVALID run no figure of a run is judged: nothing passes, and only violations and counted costs fail.
- Without a finished pair, or without a figure to judge, nothing passes.
- A comparison is inconclusive only if none of its metrics says anything.
- Pairs that were ordered and not run, as something stood in the way, leave it undecided.
- `only_noise`: nothing but the spread of the figures left it undecided, so that a quieter machine or more pairs may
  decide it. All that may be forgiven.

Source: README's exit codes (130 > 2 > 3 > 5 > 1 > 4 > 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.gates.threshold import value_of
from bench.measure.generator import IN_DOUBT
from bench.measure.verdict import (
    COMPARED,
    FAIL,
    INCONCLUSIVE,
    INTERRUPTED,
    INVALID,
    PASS,
    VIOLATED,
    Evidence,
    conclude,
)

Entry = Mapping[str, Any]
GOOD = {"gate": PASS, "compare": COMPARED}


def judge_comparison(
    kind: str,
    runs: Sequence[Entry],
    metrics: Sequence[Entry],
    *,
    labels: Sequence[str],
    exact: Entry | None = None,
    thresholds: Sequence[Entry] = (),
    stopped: str = "",
    interrupted: bool = False,
) -> dict[str, Any]:
    """Return the section `verdict`, with `only_noise`.

    `kind`: gate or compare; `metrics`: those that count, as `Judged.to_json` returns them; `stopped`: why not all pairs
    were run; `interrupted`: by Ctrl-C.
    """
    invalid = _first(runs, labels, "invalid")
    worse = [_worse(entry) for entry in metrics if entry["verdict"] == "fail"]
    worse += [f"{one['expression']} does not hold" for one in thresholds if _is(one, "fail")]
    open_ones = [f"{one['expression']}: {one['reason']}" for one in thresholds if _is(one, "inconclusive")]
    open_ones += [f"not all pairs were run: {stopped}"] if stopped else []
    undecided = _undecided(kind, runs, metrics)
    found = {
        VIOLATED: _first(runs, labels, "violated"),
        FAIL: [*([] if invalid else worse), *(exact or {}).get("failures", ())],
        INTERRUPTED: ["not all pairs were run: interrupted"] if interrupted else [],
        INVALID: invalid,
        INCONCLUSIVE: [*open_ones, *undecided],
    }
    pairs = max((entry["pairs"] for entry in metrics), default=0)
    evidence = [Evidence("figures judged", len(metrics)), Evidence("runs of each side with figures", pairs)]
    verdict = conclude(GOOD[kind], evidence, found, thin=INCONCLUSIVE)
    only_these = list(verdict.reasons) == list(dict.fromkeys(undecided))
    noise = bool(runs and undecided and only_these) and all(entry["noisy"] for entry in metrics if _is_open(entry))
    return {**verdict.to_json(), "only_noise": noise}


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
