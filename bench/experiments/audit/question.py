"""Defines the question of `audit`: *Which lock libraries hold?*"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.experiments.audit.command import audit
from bench.frame.question import Question

if TYPE_CHECKING:
    from bench.experiments.audit.result import AuditResult
    from bench.report.answer import Answer


def _answer() -> Answer[AuditResult]:
    from bench.experiments.audit.judge import earned
    from bench.experiments.audit.result import AuditResult
    from bench.experiments.audit.words import evidence, figures, sheet, suite
    from bench.report.answer import Answer

    return Answer("audit", AuditResult, earned, sheet, suite, figures, evidence)


AUDIT = Question(
    "audit",
    audit,
    _answer,
    examples=(
        "lockbench audit --quick",
        "lockbench audit --library redis-py --schedule body-without-lock",
    ),
    note="lockbench installs each library in an environment of its own below .peers. The "
    "first installation takes minutes. lockbench starts servers on loopback and stops "
    "these servers at the end. With --quick, an audit takes at least five minutes.",
)
