"""The progress: whole at every width, sensible when nobody watches a terminal, silent when told to
be."""

import io
from pathlib import Path
from typing import Any

import pytest

from bench.frame.progress_line import PLAIN_EVERY_S, ProgressLine, block, progress_line
from bench.run.follower import RunProgress
from bench.safety.judge import LiveVerdict


def progress(phase: str = "measuring", elapsed_s: float = 4.0, **changes: Any) -> RunProgress:
    values: dict[str, Any] = {
        "phase": phase,
        "elapsed_s": elapsed_s,
        "remaining_s": 20.0 - elapsed_s,
        "acquires_per_s": 11_482.3,
        "p50_s": 0.00041,
        "p99_s": 0.0029,
        "outcomes": {"acquired": 45_000, "contended": 500},
        "troubles": {},
        "cpu_ratio": 0.61,
        "lag_p99_s": 0.0008,
        "late_starts": 0,
    }
    return RunProgress(**(values | changes))


GOLDEN = Path(__file__).parents[1] / "report" / "golden"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_tells_time_rate_latency_outcomes_and_health() -> None:
    assert progress_line(progress()) == (
        "measuring 4 s, 16 s left  11,482 acquires/s  p50 0.41 ms  p99 2.90 ms  acquired "
        "45,000  contended 500"
        "  generator CPU 61 %  lag p99 0.80 ms"
    )


def test_the_line_tells_what_the_live_oracle_knows() -> None:
    assert "  safety" not in progress_line(progress())
    none = LiveVerdict(12_345, {"service_fault": 0})
    assert "  0 violations in 12,345 leases  " in progress_line(progress(safety=none))
    counts = {"service_fault": 3, "foreign_delete": 1, "granted_invalid": 0, "client_overstay": 9}
    assert "  VIOLATED 3 × service fault, 1 × foreign delete  " in progress_line(
        progress(safety=LiveVerdict(500, counts))
    )
    unknown = LiveVerdict(500, {}, "ZeroDivisionError: division by zero")
    assert "safety is known only at the end" in progress_line(progress(safety=unknown))


def test_the_line_names_the_faults_that_are_there() -> None:
    faults = ("stop instance:1", "drop instance:2")
    assert "  fault stop instance:1  fault drop instance:2  " in progress_line(
        progress(faults=faults)
    )


TROUBLED: dict[str, Any] = {
    "outcomes": {
        "acquired": 1_045_000,
        "contended": 500,
        "split_vote": 31,
        "unreachable": 1_200,
        "too_late": 4,
    },
    "troubles": {1: ("down", 1_204), 3: ("down", 1_198), 4: ("voting", 2)},
    "late_starts": 12_800,
}


@pytest.mark.parametrize("width", [80, 100])
def test_the_block_is_the_agreed_one(width: int) -> None:
    shown = block(progress(**TROUBLED), width) + "\n"
    assert shown == (GOLDEN / f"progress-{width}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [0, 20, 40, 80, 100, 400])
def test_nothing_is_lost_at_any_width(width: int) -> None:
    for look in (
        progress(),
        progress(**TROUBLED),
        progress("starting", 0.0),
        progress(cpu_ratio=None, lag_p99_s=None),
    ):
        shown = block(look, width)
        assert shown.split() == progress_line(look).split()
        assert max(map(len, shown.splitlines())) <= max(width, len("measuring 4 s, 16 s left"))


def test_off_a_terminal_a_line_comes_with_each_phase_and_then_every_few_seconds() -> None:
    stream = io.StringIO()
    with ProgressLine(stream=stream) as show:
        show(progress("starting", 0.0))
        show(progress("starting", 0.0))
        for tenth in range(0, 120, 5):
            show(progress("measuring", tenth / 10))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "starting users"
    assert [line.split()[1] for line in lines[1:]] == [
        "0",
        f"{PLAIN_EVERY_S:.0f}",
        f"{2 * PLAIN_EVERY_S:.0f}",
    ]
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_the_lines_are_redrawn_and_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    with ProgressLine(stream=stream) as show:
        for second in range(5):
            show(progress(elapsed_s=float(second)))
    written = stream.getvalue()
    assert "\x1b[?25h" in written, "the cursor is shown again"
    assert "4 s, 16 s left" in written
    assert written.rstrip().endswith("\x1b[2K"), "the lines are cleared"
    assert written.count("\n") >= 2, "more than one line"
    assert "lag p99 0.80 ms" in written
    assert "…" not in written


def test_off_a_terminal_words_come_once_per_part() -> None:
    stream = io.StringIO()
    with ProgressLine(stream=stream) as show:
        for words in (
            "plan: 9 cuts",
            "N=3 kill: cut 1 of 9",
            "N=3 kill: cut 2 of 9",
            "N=5 kill: cut 3 of 9",
        ):
            show(words)
    assert stream.getvalue().splitlines() == [
        "plan: 9 cuts",
        "N=3 kill: cut 1 of 9",
        "N=5 kill: cut 3 of 9",
    ]


def test_quiet_says_nothing() -> None:
    for stream in (io.StringIO(), Terminal()):
        with ProgressLine(quiet=True, stream=stream) as show:
            show(progress())
        assert stream.getvalue() == ""


def test_words_that_are_too_long_for_a_terminal_are_shown_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    long = (
        "pair 23 of 24: rate +3.8 %, p50 -6.3 %, success -1.0 %, client cpu µs -2.1 %, at "
        "most 290 s left"
    )
    with ProgressLine(stream=stream) as show:
        show(long)
    assert long in " ".join(stream.getvalue().split())
