"""Real processes that contend for one lock: *blocks of trials → every attempt of every contender, by trial*.

Rules: one process per contender, made once for all blocks; they start together through shared memory in a private
folder. However this process ends, they end; a contender that fails takes the experiment with it, by its own last words.
Source: bench.topology.child; contender_process.py, starting_gate.py, plan.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from bench.errors import EnvironmentNotReadyError
from bench.experiments.split_votes.judge import Attempt
from bench.experiments.split_votes.plan import Block, Enrolment
from bench.experiments.split_votes.starting_gate import STOP, StartingGate
from bench.topology.child import END_S, Child

LEAD_NS = 1_500_000  # between naming a start and the start
PATIENCE_S = 30.0  # for a crew to answer, beyond what a block itself may take
_LOOK_S = 0.0002
_CHECK_EVERY = 256  # looks


class Crew:
    """`seats` contenders. A context manager: at its end they are gone."""

    def __init__(self, urls: Sequence[str], seats: int, folder: Path, key_prefix: str, seed: int) -> None:
        """Start them; `folder` is private and outlives them. Raises EnvironmentNotReadyError when one does not."""
        path = folder / "starting-gate"
        self._members: list[Child] = []
        self._gate = StartingGate(path, seats, create=True)
        try:
            for seat in range(seats):
                self._members.append(Child(f"contender {seat}", "bench.experiments.split_votes.contender_process"))
                self._members[seat].tell(Enrolment(urls, key_prefix, str(path), seats, seat, seed))
            for member in self._members:
                member.hear(str)
        except BaseException:
            self.close()
            raise

    def run(self, block: Block) -> Mapping[int, list[Attempt]]:
        """Run the block's trials; every attempt by its trial's number. Raises EnvironmentNotReadyError."""
        seated = self._members[: block.contenders]
        for member in seated:
            member.tell(block)
        for trial in block.trials:
            self._wait(lambda trial=trial: self._gate.are_ready(block.contenders, trial), block)  # type: ignore[misc]
            self._gate.open(time.monotonic_ns() + LEAD_NS)
        found: dict[int, list[Attempt]] = {trial: [] for trial in block.trials}
        for member in seated:
            for trial, attempt in member.hear(list[tuple[int, Attempt]]):
                found[trial].append(attempt)
        return found

    def close(self) -> None:
        """Have them give back what they hold and end; whoever does not is killed. More than once is fine."""
        members, self._members = self._members, []
        if not members:
            return
        self._gate.open(STOP)
        for member in members:
            member.leave()
        deadline_s = time.monotonic() + END_S
        for member in members:
            member.finish(max(0.0, deadline_s - time.monotonic()))
            member.close()
        self._gate.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _wait(self, ready: Callable[[], bool], block: Block) -> None:
        deadline_s = time.monotonic() + PATIENCE_S + block.patience_ms / 1000
        looks = 0
        while not ready():
            looks += 1
            if looks % _CHECK_EVERY == 0:
                for member in self._members:
                    if member.ended:
                        raise member.failure()
                if time.monotonic() > deadline_s:
                    raise EnvironmentNotReadyError(
                        f"the {block.contenders} contenders were not ready within {PATIENCE_S:g} s; use fewer of them"
                    )
            time.sleep(_LOOK_S)
