"""From figures to one word and one exit code: *sections of a result → verdict → exit code*.

Rules: violated before invalid before inconclusive before failed before pass; a service fault always violates. UNKNOWN
safety is a warning of a plain run, not a failure. Source: README's exit codes (130 > 2 > 3 > 5 > 4 > 1 > 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EXIT_CODES = {"pass": 0, "fail": 1, "inconclusive": 4, "invalid": 4, "violated": 5}
INTERRUPTED = 130


def judge_run(
    sections: Mapping[str, Any],
    safety: Mapping[str, Any],
    deaths: Sequence[str],
    thresholds: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the section `verdict`: `status` and the sentences that explain it.

    `deaths`: workers that ended early; `thresholds`: as `Threshold.judge` returns them.
    """
    violated = [str(safety["reason"])] if safety["verdict"] == "VIOLATED" else []
    invalid = [*deaths, *_invalidities(sections)]
    inconclusive = [] if sections["outcomes"]["acquired"] else ["no lease was granted in the measured window"]
    inconclusive += [f"{one['expression']}: {one['reason']}" for one in thresholds if one["status"] == "inconclusive"]
    failed = [f"{one['expression']} does not hold" for one in thresholds if one["status"] == "fail"]
    found = {"violated": violated, "invalid": invalid, "inconclusive": inconclusive, "fail": failed}
    status = next((name for name, reasons in found.items() if reasons), "pass")
    return {"status": status, "reasons": [reason for reasons in found.values() for reason in reasons]}


def exit_code(verdict: Mapping[str, Any], *, interrupted: bool) -> int:
    """Return the exit code of a run with this verdict."""
    return INTERRUPTED if interrupted else EXIT_CODES[verdict["status"]]


def _invalidities(sections: Mapping[str, Any]) -> list[str]:
    generator = sections["generator"]
    return [f"the load was not what it claims: {generator['reason']}"] if generator["verdict"] == "INVALID" else []
