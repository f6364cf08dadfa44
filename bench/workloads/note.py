"""What a worker says about itself: *counts and histograms → worker-<index>-<pid>.json, whole at any moment*.

Rules: written to a temporary name and renamed, so a reader never sees half a note; keys as in the run's folder
protocol. A histogram's encoding costs 0.4 ms, so while users run only the scheduler lag is renewed, and seldom.
Source: the protocol.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import msgspec

from bench.measure.run_result import InstanceReport
from bench.measure.workers import WorkerNote
from bench.workloads.plan import FAILURE_FILE, planned
from lockcore import InstanceStatus

_FIELDS = tuple(field.name for field in fields(InstanceStatus))  # asdict would copy deeply, for 17 µs each


def note_path(workdir: Path, worker_index: int) -> Path:
    """Where the worker of this process leaves its note."""
    return workdir / f"worker-{worker_index}-{os.getpid()}.json"


def write_note(path: Path, note: WorkerNote | Mapping[str, object]) -> None:
    """Put `note` at `path` in one step; nowhere if its folder is gone, for then so is its reader. Raises OSError."""
    draft = path.with_suffix(".tmp")
    with suppress(FileNotFoundError):
        draft.write_bytes(msgspec.json.encode(note))
        draft.replace(path)


def note_failure(sentence: str, exit_code: int) -> None:
    """Tell `lockbench run`, if it started this Locust, why the run ends. The first fault stays."""
    plan = planned(os.environ)
    if plan is not None and not (path := plan.with_name(FAILURE_FILE)).exists():
        write_note(path, {"sentence": sentence, "exit_code": exit_code})


def instance_report(status: InstanceStatus) -> InstanceReport:
    """One instance as this process sees it."""
    return InstanceReport(**{**{name: getattr(status, name) for name in _FIELDS}, "errors": dict(status.errors)})
