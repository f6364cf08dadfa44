"""From figures to one word and one exit code: *sections of a result → verdict → exit code*.

Rules
- Violated before invalid before failed before inconclusive before pass; a service fault always violates.
- Of an invalid run nothing is judged but violations, which are certain: its figures mean nothing.
- What certainly failed stays failed beside what is not known. UNKNOWN safety is a warning of a plain run.

Source: README's exit codes (130 > 2 > 3 > 5 > 1 > 4 > 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.gates.threshold import sentence
from bench.measure.verdict import TESTED_LEAST, Evidence

EXIT_CODES = {"pass": 0, "fail": 1, "inconclusive": 4, "invalid": 4, "violated": 5}
INTERRUPTED = 130


def judge_run(
    sections: Mapping[str, Any],
    safety: Mapping[str, Any],
    deaths: Sequence[str],
    thresholds: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the section `verdict`: `status`, the `word` for it, its `evidence` and the sentences that explain it.

    `deaths`: workers that ended early; `thresholds`: as `Threshold.judge` returns them.
    """
    violated = [str(safety["reason"])] if safety["verdict"] == "VIOLATED" else []
    invalid = invalidities(sections, deaths)
    inconclusive = [] if invalid else _nothing_granted(sections)
    inconclusive += [] if invalid else [sentence(one) for one in thresholds if one["status"] == "inconclusive"]
    failed = [sentence(one) for one in thresholds if one["status"] == "fail"]
    found = {"violated": violated, "invalid": invalid, "fail": failed, "inconclusive": inconclusive}
    status = next((name for name, reasons in found.items() if reasons), "pass")
    return {
        "status": status,
        "word": str(safety["verdict"]) if status == "pass" else status.upper(),
        "exit_code": EXIT_CODES[status],
        "evidence": [asdict(Evidence.none_in("tested leases", safety["tested_leases"], TESTED_LEAST))],
        "reasons": [reason for reasons in found.values() for reason in reasons],
    }


def exit_code(verdict: Mapping[str, Any], *, interrupted: bool) -> int:
    """Return the exit code of a run with this verdict."""
    return INTERRUPTED if interrupted else int(verdict.get("exit_code", EXIT_CODES[verdict["status"]]))


def invalidities(sections: Mapping[str, Any], deaths: Sequence[str]) -> list[str]:
    """Why no figure of this run means anything; nothing when they do. `deaths`: workers that ended early."""
    generator = sections["generator"]
    claim = [f"the load was not what it claims: {generator['reason']}"] if generator["verdict"] == "INVALID" else []
    return [*deaths, *claim]


def _nothing_granted(sections: Mapping[str, Any]) -> list[str]:
    """Outcomes count what was due in the window, the rate what was granted in it: in a long queue these are others."""
    if sections["outcomes"]["acquired"]:
        return []
    if sections["rate"]["achieved_per_s"]:
        return ["no acquire that was due in the measured window got its lease; those granted in it were due before"]
    return ["no lease was granted in the measured window"]
