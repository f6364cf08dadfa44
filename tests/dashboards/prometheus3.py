"""Prometheus 3 beside the one on PATH: *LOCKBENCH_PROMETHEUS, a way to keep histograms → a program
to start*.

The folder is that of `.ci/prometheus3` or `dashboards/prometheus/build`. Ways: `classic`, as
scraped; `converted` to native ones at the scrape; `exponential`, which a run sends by OTLP. Each
way is real load for half a minute, so the suite takes one, on the newest Prometheus that it has;
the others are slow.
"""

import os
from pathlib import Path

import pytest

FOLDER = os.environ.get("LOCKBENCH_PROMETHEUS", "")
MISSING = (
    "not shown here: no Prometheus 3 (.ci/prometheus3 prints a folder with one; "
    "LOCKBENCH_PROMETHEUS names it)"
)
ON_PATH = "prometheus"
EXPONENTIAL = "exponential"
NATIVE = ("converted", EXPONENTIAL)
_OTHERS = (ON_PATH, *NATIVE) if FOLDER else ()
WAYS = (
    "classic" if FOLDER else ON_PATH,
    *(pytest.param(way, marks=pytest.mark.slow) for way in _OTHERS),
)
_SCRIPT = """#!/bin/sh
for word in "$@"; do case "$word" in --config.file=*) file="${{word#--config.file=}}";; esac; done
sed -i -E '{edit}' "$file"
exec '{program}' {options} "$@"
"""
_EDITS = {
    "classic": "",
    "converted": 's/"?global"?: [{]/&"convert_classic_histograms_to_nhcb": true, /',
    EXPONENTIAL: 's/^[{]/{"otlp": {"promote_resource_attributes": ["redlock.run.id"]}, /',
}
needs_prometheus_3 = pytest.mark.skipif(not FOLDER, reason=MISSING)


def program_of(way: str, folder: Path) -> str:
    """The Prometheus to start, made in `folder` where it has to be told of its way."""
    if way == ON_PATH:
        return ON_PATH
    script = folder / f"prometheus-{way}"
    options = "--web.enable-otlp-receiver" if way == EXPONENTIAL else ""
    script.write_text(
        _SCRIPT.format(
            edit=_EDITS[way], program=Path(FOLDER, "prometheus").resolve(), options=options
        )
    )
    script.chmod(0o700)
    return str(script)
