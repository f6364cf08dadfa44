"""What adds up: *numbers by section and name, rows of a figure per slice, histograms → the sum over parts of a run*.

Rules: ints only, so that a state can travel and sums are exact. Names of a section that begins empty are whole numbers
(a margin, a caller); all other names are known beforehand, and a state with others is refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from bench.measure.histogram import Histogram, Samples
from bench.measure.timeline import Integers


@dataclass(frozen=True, slots=True)
class SumsState:
    """All of a `Sums`, to be added to another."""

    numbers: dict[str, dict[str, int]]
    rows: dict[str, tuple[int, ...]]
    histograms: dict[str, Samples]
    longest_ns: int


class Sums:
    """Numbers by section and name, rows of `slices` figures by name and key, histograms by name, the longest wait."""

    def __init__(
        self, sections: Mapping[str, Iterable[object]], histograms: Iterable[str] = (), slices: int = 0
    ) -> None:
        self.numbers = {section: dict.fromkeys(map(str, names), 0) for section, names in sections.items()}
        self.rows: dict[str, Integers] = {}
        self.histograms = {name: Histogram() for name in histograms}
        self.longest_ns = 0
        self._free, self._slices = [name for name, numbers in self.numbers.items() if not numbers], slices

    def add(self, section: str, counts: Mapping[str, int] | Mapping[int, int]) -> None:
        """Add numbers by name."""
        numbers = self.numbers[section]
        for name, number in counts.items():
            numbers[str(name)] = numbers.get(str(name), 0) + number

    def add_row(self, name: str, row: Integers) -> None:
        """Add a figure for each slice."""
        self.rows[name] = self.rows.get(name, 0) + row

    def row(self, name: str) -> tuple[int, ...]:
        """The figures of a row."""
        return tuple(self.rows[name].tolist()) if name in self.rows else (0,) * self._slices

    def keyed(self, name: str) -> dict[str, tuple[int, ...]]:
        """The rows called `name` and a number, by that number, ascending."""
        found = (row.removeprefix(f"{name} ") for row in self.rows if row.startswith(f"{name} "))
        return {key: self.row(f"{name} {key}") for key in sorted(found, key=int)}

    @property
    def state(self) -> SumsState:
        """What `merge` adds."""
        numbers = {section: dict(counts) for section, counts in self.numbers.items()}
        samples = {name: histogram.samples for name, histogram in self.histograms.items()}
        return SumsState(numbers, {name: self.row(name) for name in self.rows}, samples, self.longest_ns)

    def merge(self, state: SumsState) -> None:
        """Add what another one has added up. Raises ValueError when it is not one of the same form."""
        if state.numbers.keys() != self.numbers.keys() or state.histograms.keys() != self.histograms.keys():
            raise ValueError("not a fold of this lockbench")
        for section, counts in state.numbers.items():
            if counts.keys() != self.numbers[section].keys() and not (section in self._free and _are_whole(counts)):
                raise ValueError(f"not a fold of this lockbench, by its {section}")
        keys = [name.partition(" ")[2] for name in state.rows if " " in name]
        if any(len(row) != self._slices for row in state.rows.values()) or not _are_whole(keys):
            raise ValueError("a fold of other slices")
        for section, counts in state.numbers.items():
            self.add(section, counts)
        for name, row in state.rows.items():
            self.add_row(name, np.array(row, np.int64))
        for name, samples in state.histograms.items():
            self.histograms[name].merge_samples(samples)
        self.longest_ns = max(self.longest_ns, state.longest_ns)


def _are_whole(names: Iterable[str]) -> bool:
    return all(name.removeprefix("-").isdecimal() for name in names)
