"""What a task awaits: stepped from the I/O callback, in its own context, and cancelled like a future's."""

import asyncio
from contextvars import ContextVar

import pytest

from lockcore.shells.tasks import later, step

NAME: ContextVar[str] = ContextVar("NAME", default="nobody")


async def wait(future: asyncio.Future[None], seen: list[str]) -> None:
    NAME.set("the task")
    await future
    seen.append(NAME.get())


def test_its_task_is_stepped_at_once_and_in_its_own_context() -> None:
    loop, seen = asyncio.new_event_loop(), []  # type: ignore[var-annotated]
    future = loop.create_future()
    task = loop.create_task(wait(future, seen))

    def readable() -> None:  # as a socket's callback
        loop.call_soon(seen.append, "next turn")
        step(future)
        step(future)  # once is enough

    loop.call_later(0.001, readable)
    loop.run_until_complete(task)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert seen == ["the task", "next turn"]


def test_inside_another_tasks_step_the_loop_steps_it() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        future = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(wait(future, seen))
        await asyncio.sleep(0)
        later(future)
        seen.append("this task")
        await task
        return seen

    assert asyncio.run(main()) == ["this task", "the task"]


def test_a_cancelled_task_hears_of_it_with_its_message_and_a_settled_one_too() -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(wait(future, []))
        await asyncio.sleep(0)
        task.cancel("enough")
        step(future)  # too late: nobody is stepped twice
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        settled = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(wait(settled, []))
        await asyncio.sleep(0)
        later(settled)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(asyncio.get_running_loop().create_future(), []), 0.01)

    asyncio.run(main())


def test_what_is_settled_already_is_not_waited_for() -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        step(future)
        await future

    asyncio.run(main())
