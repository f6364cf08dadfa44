"""Extensions from the load process to the exporter: each once, with its outcome, counted by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.telemetry.attempts import checksum
from bench.telemetry.counts import Extensions
from bench.telemetry.extensions import ExtensionLog, ExtensionTail
from lockcore import Lease


def test_an_extension_comes_out_as_it_went_in_and_counts_by_its_outcome(tmp_path: Path) -> None:
    log, tail, extended = ExtensionLog(tmp_path, 3), ExtensionTail(tmp_path), Extensions()
    assert list(extended.points()) == []
    lease = Lease("r5", b"t", 1_000, 70, 80, 990, None, 1, 0)
    for ours in (True, True, False, None):
        log.note(lease, 100, 2_100, ours)
    assert list(tail.new_extensions()) == []  # not before it is told to write
    log.flush()
    found = list(tail.new_extensions())
    assert [one.outcome for one in found] == ["extended", "extended", "gone", "unreachable"]
    assert {(one.resource, one.attempt_ns, one.sent_ns, one.replied_ns) for one in found} == {
        (checksum("r5"), 70, 100, 2_100)
    }
    extended.add(found)
    values = {one.attributes[0][1]: (one.value.count, one.value.sum) for one in extended.points()}
    assert values == {"extended": (2, pytest.approx(4e-6)), "gone": (1, 2e-6), "unreachable": (1, 2e-6)}
