"""Real processes that contend for one lock: *blocks of trials → every attempt of every contender, by trial*.

Rules: one process per contender, made once for all blocks; they start together through shared memory in a private
folder. However this process ends, they end: the kernel tells them (die_with_parent); a contender that fails takes the
experiment with it, by its own last words. Source: contender_process.py, starting_gate.py, plan.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from bench.errors import EnvironmentNotReadyError
from bench.experiments.split_votes.judge import Attempt
from bench.experiments.split_votes.plan import Block, Enrolment
from bench.experiments.split_votes.starting_gate import STOP, StartingGate

LEAD_NS = 1_500_000  # between naming a start and the start
PATIENCE_S = 30.0  # for a crew to answer, beyond what a block itself may take
_LOOK_S = 0.0002
_CHECK_EVERY = 256  # looks
_END_S = 2.0


class Crew:
    """`seats` contenders. A context manager: at its end they are gone."""

    def __init__(self, urls: Sequence[str], seats: int, folder: Path, key_prefix: str, seed: int) -> None:
        """Start them; `folder` is private and outlives them. Raises EnvironmentNotReadyError when one does not."""
        path = folder / "starting-gate"
        self._folder = folder
        self._members: list[subprocess.Popen[bytes]] = []
        self._gate = StartingGate(path, seats, create=True)
        try:
            for seat in range(seats):
                self._members.append(self._start(seat))
                self._tell(seat, Enrolment(urls, key_prefix, str(path), seats, seat, seed, os.getpid()))
            for seat in range(seats):
                self._answer(seat)
        except BaseException:
            self.close()
            raise

    def run(self, block: Block) -> Mapping[int, list[Attempt]]:
        """Run the block's trials; every attempt by its trial's number. Raises EnvironmentNotReadyError."""
        seats = range(block.contenders)
        for seat in seats:
            self._tell(seat, block)
        for trial in block.trials:
            self._wait(lambda trial=trial: self._gate.are_ready(block.contenders, trial), block)  # type: ignore[misc]
            self._gate.open(time.monotonic_ns() + LEAD_NS)
        found: dict[int, list[Attempt]] = {trial: [] for trial in block.trials}
        for seat in seats:
            for trial, attempt in self._answer(seat):
                found[trial].append(attempt)
        return found

    def close(self) -> None:
        """Have them give back what they hold and end; whoever does not is killed. More than once is fine."""
        members, self._members = self._members, []
        if not members:
            return
        self._gate.open(STOP)
        for member in members:
            assert member.stdin is not None
            with suppress(OSError):
                member.stdin.close()
        deadline_s = time.monotonic() + _END_S
        for member in members:
            try:
                member.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()
            assert member.stdout is not None
            member.stdout.close()
        self._gate.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _start(self, seat: int) -> subprocess.Popen[bytes]:
        with self._log(seat).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "bench.experiments.split_votes.contender_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def _log(self, seat: int) -> Path:
        return self._folder / f"contender-{seat}.log"

    def _tell(self, seat: int, message: Enrolment | Block) -> None:
        stdin = self._members[seat].stdin
        assert stdin is not None
        try:
            stdin.write(msgspec.json.encode(message) + b"\n")
            stdin.flush()
        except OSError:
            raise self._failure(seat) from None

    def _answer(self, seat: int) -> list[tuple[int, Attempt]]:
        stdout = self._members[seat].stdout
        assert stdout is not None
        try:
            return msgspec.json.decode(stdout.readline(), type=list[tuple[int, Attempt]])
        except msgspec.MsgspecError:
            raise self._failure(seat) from None

    def _wait(self, ready: Callable[[], bool], block: Block) -> None:
        deadline_s = time.monotonic() + PATIENCE_S + block.patience_ms / 1000
        looks = 0
        while not ready():
            looks += 1
            if looks % _CHECK_EVERY == 0:
                for seat, member in enumerate(self._members):
                    if member.poll() is not None:
                        raise self._failure(seat)
                if time.monotonic() > deadline_s:
                    raise EnvironmentNotReadyError(
                        f"the {block.contenders} contenders were not ready within {PATIENCE_S:g} s; use fewer of them"
                    )
            time.sleep(_LOOK_S)

    def _failure(self, seat: int) -> EnvironmentNotReadyError:
        with suppress(subprocess.TimeoutExpired):
            self._members[seat].wait(_END_S)
        lines = self._log(seat).read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing"]
        return EnvironmentNotReadyError(f"contender {seat} ended early; it said: {lines[-1]}")
