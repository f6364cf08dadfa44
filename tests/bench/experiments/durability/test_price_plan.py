"""Which cells are visited, and in which order: by the seed alone, each once, policies in turns."""

import itertools
from collections import Counter

import pytest
from msgspec.structs import replace

from bench.experiments.durability.policies import AOF_POLICIES
from bench.experiments.durability.price_plan import (
    MANY,
    FsyncPlan,
    full_cells,
    product_cells,
    quick_cells,
)
from bench.experiments.durability.price_result import FsyncCell
from bench.experiments.durability.servers import without_waitaof


def without_waiting(cells: list[FsyncCell]) -> tuple[FsyncCell, ...]:
    return tuple(cell for cell in cells if cell.policy != "waitaof")


def plan(seed: int = 1) -> FsyncPlan:
    return FsyncPlan(
        cells=without_waiting(quick_cells(2)),
        repeats=8,
        seed=seed,
        quick=True,
        warmup_s=0.15,
        seconds=0.5,
    )


def total_s(plan: FsyncPlan) -> float:
    return sum(plan.block_s(block) for block in plan.blocks())


def visits(plan: FsyncPlan) -> list[FsyncCell]:
    return [cell for block in plan.blocks() for cell in block]


def test_every_cell_is_in_one_block() -> None:
    assert Counter(visits(plan())) == dict.fromkeys(plan().cells, 1)


def test_the_order_is_the_seeds() -> None:
    assert visits(plan()) == visits(plan())
    assert visits(plan()) != visits(plan(seed=2))


def test_what_is_compared_is_visited_in_a_row_policies_interleaved() -> None:
    shapes = [(cell.instances, cell.clients, cell.pipeline) for cell in visits(plan())]
    assert 1 + sum(one != other for one, other in itertools.pairwise(shapes)) == len(set(shapes))
    for block in plan().blocks():
        assert len({replace(cell, policy="no") for cell in block}) == 1, (
            "what takes turns differs in its policy only"
        )
        assert {"none", "waitaof"}.isdisjoint(cell.policy for cell in block) or len(block) == 1
    trios = [block for block in plan().blocks() if len(block) == 3]
    assert len(trios) == 4, "1 caller on two disks, N = 1 and 3"


def test_without_an_append_only_file_nothing_is_delayed() -> None:
    cells = product_cells(["none"], [1], [(1, 1, "0")], [0.5, 2.0])
    assert [cell.injected_ms for cell in cells] == [0.0]


def test_the_quick_matrix_has_the_extremes_and_the_planners_instances() -> None:
    cells = without_waiting(quick_cells(4))
    assert {cell.instances for cell in cells} == {1, 3, 5}
    assert {cell.instances for cell in quick_cells(2)} == {1, 3}, (
        "two cores do not drive five servers"
    )
    assert all(cell.hold != "0" for cell in cells if cell.pipeline * cell.clients > 1), (
        "or the load is the limit"
    )
    for instances in (1, 3, 5):
        assert {cell.policy for cell in cells if cell.instances == instances} == set(AOF_POLICIES)


def test_the_quick_matrix_is_planned_for_less_than_five_minutes() -> None:
    assert total_s(plan()) < 150, "half of the time, for machines that do something else, too"
    assert total_s(replace(plan(), cells=tuple(quick_cells(4)))) < 290, (
        "with waitaof and five servers, too"
    )


def test_the_full_matrix_fits_the_cores_and_twenty_minutes() -> None:
    for cores, of_one_caller in ((2, {1, 3}), (4, {1, 3, 5})):
        cells = full_cells(cores)
        assert len(set(cells)) == len(cells)
        assert {cell.instances for cell in cells if cell.clients == 1} == of_one_caller
        many = [cell for cell in cells if (cell.clients, cell.pipeline, cell.hold) == MANY]
        assert {cell.instances for cell in many} == {1, 3, 5}
        assert {cell.injected_ms for cell in many if cell.policy == "always"} == {
            0.0,
            0.5,
            2.0,
            10.0,
        }
        assert set(quick_cells(cores)) <= set(cells), (
            "a glance shows nothing that the whole does not"
        )
        assert total_s(replace(plan(), cells=tuple(cells), repeats=6)) < 1200


@pytest.mark.parametrize(
    "name, version, has_it",
    [
        ("redis", "7.2.4", True),
        ("redis", "8.4.0", True),
        ("valkey", "9.1.2", True),
        ("redis", "7.0.15", False),
        ("kvrocks", "9.0", False),
        (None, None, False),
    ],
)
def test_waitaof_is_known_by_version(name: str, version: str, has_it: bool) -> None:
    assert (without_waitaof(name, version) is None) is has_it
