"""What a task awaits: stepped from the I/O callback, in its own context, cancelled like a future,
and used again."""

import asyncio
import gc
import weakref
from contextvars import ContextVar
from functools import partial

import pytest

from lockcore.shells.tasks import fast
from lockcore.shells.tasks.fast import Seat, Seats, step_all
from tests.lockcore.rounds.test_awaited import of

NAME: ContextVar[str] = ContextVar("NAME", default="nobody")


async def wait(seat: Seat, seen: list[str]) -> None:
    NAME.set("the task")
    await seat
    seen.append(NAME.get())


def test_its_task_is_stepped_at_once_and_in_its_own_context() -> None:
    loop = asyncio.new_event_loop()
    seen = []  # type: ignore[var-annotated]
    seat = Seats(loop).take()
    task = loop.create_task(wait(seat, seen))

    # as a socket's callback
    def readable() -> None:
        loop.call_soon(seen.append, "next turn")
        seat.step()
        # once is enough
        seat.step()

    loop.call_later(0.001, readable)
    loop.run_until_complete(task)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert seen == ["the task", "next turn"]


def test_inside_another_tasks_step_the_loop_steps_it() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        seat = Seats(asyncio.get_running_loop()).take()
        task = asyncio.create_task(wait(seat, seen))
        await asyncio.sleep(0)
        seat.later()
        seen.append("this task")
        await task
        return seen

    assert asyncio.run(main()) == ["this task", "the task"]


def test_a_cancelled_task_hears_of_it_with_its_message_and_a_settled_one_too() -> None:
    async def main() -> None:
        seats = Seats(asyncio.get_running_loop())
        seat = seats.take()
        task = asyncio.create_task(wait(seat, []))
        await asyncio.sleep(0)
        task.cancel("enough")
        # too late: nobody is stepped twice
        seat.step()
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        settled = seats.take()
        task = asyncio.create_task(wait(settled, []))
        await asyncio.sleep(0)
        settled.later()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(seats.take(), []), 0.01)
        assert seats.free == [], "a seat whose future has ended was kept for the next task"

    asyncio.run(main())


def test_what_is_settled_already_is_not_waited_for() -> None:
    async def main() -> list[object]:
        seats = Seats(asyncio.get_running_loop())
        seat = seats.take()
        seat.step()
        await seat
        return seats.free

    assert asyncio.run(main()) == []


@pytest.mark.parametrize("remembers", [False, True])
def test_the_next_task_waits_where_one_has_been_stepped(
    remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fast.__file__.endswith(".py"):
        monkeypatch.setattr(fast, "REMEMBERS_WHO_AWAITS", remembers)
    elif remembers != fast.REMEMBERS_WHO_AWAITS:
        pytest.skip("machine code: the Python it was compiled for decides")

    async def main() -> tuple[list[str], bool]:
        loop = asyncio.get_running_loop()
        seen = []  # type: ignore[var-annotated]
        seats = Seats(loop)
        seat = seats.take()
        for _ in range(2):
            task = asyncio.create_task(wait(seat, seen))
            await asyncio.sleep(0)
            assert not task.done(), (
                "it did not wait, or was stepped by what the one before had waited for"
            )
            loop.call_soon(seat.step)
            await task
            if remembers:
                assert seats.free == []
                seat = seats.take()
            else:
                assert seats.free.pop() is seat
        return seen, seat in seats.free

    assert asyncio.run(main()) == (["the task", "the task"], False)


def test_who_waits_again_at_once_has_the_same_seat_and_one_that_is_free_keeps_no_task() -> None:
    """A future of Python 3.14 remembers who awaited it, so there each wait has another seat."""

    async def main() -> tuple[list[str], list[Seat], object]:
        loop = asyncio.get_running_loop()
        seen = []  # type: ignore[var-annotated]
        seats = Seats(loop)

        async def twice() -> None:
            first = seats.take()
            loop.call_soon(first.step)
            await first
            again = seats.take()
            loop.call_soon(again.step)
            await again
            seen.append("the same" if again is first else "another")

        task = asyncio.create_task(twice())
        gone = weakref.ref(task)
        await task
        del task
        # what told of its end has it until then
        await asyncio.sleep(0)
        gc.collect()
        return seen, seats.free, gone()

    seen, free, left = asyncio.run(main())
    remembers = fast.REMEMBERS_WHO_AWAITS
    assert seen == ["another" if remembers else "the same"]
    assert len(free) == (0 if remembers else 1)
    assert left is None, "a seat nobody waits at keeps a task alive"


def test_whoever_comes_behind_an_interrupted_task_is_stepped_by_the_next_call() -> None:
    loop = asyncio.new_event_loop()
    seen = []  # type: ignore[var-annotated]
    seats = Seats(loop)
    first, second, third = (seats.take() for _ in range(3))

    async def interrupted() -> None:
        await first
        raise KeyboardInterrupt

    tasks_ = [
        loop.create_task(one) for one in (interrupted(), wait(second, seen), wait(third, seen))
    ]
    loop.run_until_complete(asyncio.sleep(0))
    engine = of(first, second)

    def passes() -> None:
        """The loop steps them in a pass of its own, as it does for a socket."""
        loop.call_soon(partial(step_all, engine, at_once=True))
        loop.run_until_complete(asyncio.sleep(0))

    with pytest.raises(KeyboardInterrupt):
        passes()
    assert ([one.waiter for one in engine.ready], engine.woken, seen) == ([second], 0, [])
    passes()
    assert (engine.ready, seen) == ([], ["the task"])
    step_all(of(third), at_once=False)
    assert seen == ["the task"], "stepped inside of another task's step"
    loop.run_until_complete(tasks_[2])
    loop.close()
    assert seen == ["the task", "the task"]
    assert isinstance(tasks_[0].exception(), KeyboardInterrupt)


def test_another_task_may_take_the_seat_of_the_one_that_is_stepped() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        seen = []  # type: ignore[var-annotated]
        seats = Seats(loop)

        async def first() -> None:
            seat = seats.take()
            loop.call_soon(seat.step)
            await seat
            # not for itself
            other = seats.take()
            others.append(asyncio.create_task(wait(other, seen)))
            await asyncio.sleep(0)
            loop.call_soon(other.step)

        others: list[asyncio.Task[None]] = []
        await asyncio.create_task(first())
        await asyncio.wait_for(others[0], 30)
        return seen

    assert asyncio.run(main()) == ["the task"]


def test_a_task_cancelled_in_the_middle_of_its_step_hears_of_it_and_its_place_is_given_up() -> None:
    class Cancelling(asyncio.futures._PyFuture):  # type: ignore[name-defined,misc]
        """A signal's handler cancels its task between two calls of a step: `asyncio.run`'s, at
        Ctrl-C."""

        def remove_done_callback(self, callback: object) -> int:
            removed: int = super().remove_done_callback(callback)
            self.task.cancel()
            return removed

    async def main() -> tuple[bool, list[Seat]]:
        loop = asyncio.get_running_loop()
        seats = Seats(loop)
        future = Cancelling(loop=loop)
        seat = Seat(seats, future)
        future.task = asyncio.create_task(wait(seat, []))
        await asyncio.sleep(0)
        loop.call_soon(seat.step)
        await asyncio.wait([future.task], timeout=30)
        return future.task.cancelled(), seats.free

    assert asyncio.run(main()) == (True, [])
