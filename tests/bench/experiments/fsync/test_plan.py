"""Which cells are visited, and in which order: by the seed alone, each once per repeat, policies interleaved."""

import itertools
from collections import Counter

import pytest
from msgspec.structs import replace

from bench.experiments.fsync.cell_servers import without_waitaof
from bench.experiments.fsync.plan import FsyncPlan, product_cells, quick_cells
from bench.experiments.fsync.result import POLICIES, FsyncCell


def plan(seed: int = 1) -> FsyncPlan:
    times = {"warmup_s": 0.15, "seconds": 0.5, "budget_s": 265.0}
    return FsyncPlan(cells=quick_cells(POLICIES[:4], 2), repeats=2, seed=seed, quick=True, **times)


def total_s(plan: FsyncPlan) -> float:
    return sum(plan.block_s(block) for _, block in plan.blocks())


def visits(plan: FsyncPlan) -> list[tuple[int, FsyncCell]]:
    return [(repeat, cell) for repeat, block in plan.blocks() for cell in block]


def test_every_repeat_visits_every_cell_once() -> None:
    made = visits(plan())
    assert Counter(repeat for repeat, _ in made) == dict.fromkeys((0, 1), len(plan().cells))
    assert len(set(made)) == len(made)


def test_the_order_is_the_seeds_and_differs_between_repeats() -> None:
    first, again, other = visits(plan()), visits(plan()), visits(plan(seed=2))
    assert first == again
    assert first != other
    size = len(plan().cells)
    assert [cell for _, cell in first[:size]] != [cell for _, cell in first[size:]]


def test_what_is_compared_is_visited_in_a_row_policies_interleaved() -> None:
    shapes = [(repeat, cell.instances, cell.clients, cell.pipeline) for repeat, cell in visits(plan())]
    assert 1 + sum(one != other for one, other in itertools.pairwise(shapes)) == len(set(shapes))
    for _, block in plan().blocks():
        assert len({replace(cell, policy="no") for cell in block}) == 1, "what takes turns differs in its policy only"
        assert {"none", "waitaof"}.isdisjoint(cell.policy for cell in block) or len(block) == 1
    trios = [block for _, block in plan().blocks() if len(block) == 3]
    assert len(trios) == 8, "1 caller on two disks, N = 1 and 3; twice"


def test_without_an_append_only_file_nothing_is_delayed_or_rewritten() -> None:
    cells = set(product_cells(["none"], [1], [(1, 1)], [0.5, 2.0], ["off", "on"]))
    assert [(cell.injected_ms, cell.rewrite) for cell in cells] == [(0.0, "off")]


def test_the_quick_matrix_has_the_extremes_and_the_planners_instances() -> None:
    cells = quick_cells(POLICIES[:4], 4)
    assert {cell.instances for cell in cells} == {1, 3, 5}
    assert {cell.instances for cell in quick_cells(POLICIES, 2)} == {1, 3}, "two cores do not drive five servers"
    assert all(cell.hold != "0" for cell in cells if cell.pipeline * cell.clients > 1), "or the load is the limit"
    assert {"on", "on-no-sync"} <= {cell.rewrite for cell in cells}
    for instances in (1, 3, 5):
        assert {cell.policy for cell in cells if cell.instances == instances} == set(POLICIES[:4])


def test_the_quick_matrix_is_planned_for_less_than_five_minutes() -> None:
    assert total_s(plan()) < 290
    once = replace(plan(), cells=quick_cells(POLICIES, 4), repeats=1)
    assert total_s(once) < 200, "with waitaof and five servers, too, every cell is visited"


@pytest.mark.parametrize(
    "name, version, has_it",
    [("redis", "7.2.4", True), ("redis", "8.4.0", True), ("valkey", "9.1.2", True), ("redis", "7.0.15", False),
     ("kvrocks", "9.0", False), (None, None, False)],
)  # fmt: skip
def test_waitaof_is_known_by_version(name: str, version: str, has_it: bool) -> None:
    assert (without_waitaof(name, version) is None) is has_it
