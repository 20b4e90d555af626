"""A plan that is cancelled while it is carried out, with no server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from django_redis_sync.engine import drivers, loops
from django_redis_sync.protocol.plans import Answer, Failure, Plan, Run

PATIENCE = 20.0
WORK, UNDO = (Run(verb, (), (), 1.0) for verb in ("work", "undo"))


class Desk:
    """In the place of an AsyncServer: the test answers its steps."""

    def __init__(self) -> None:
        self.plans, self.asked = 0, list[Run]()
        self.doing: asyncio.Future[Answer] | None = None

    def perform(self, step: Run) -> asyncio.Future[Answer]:
        self.asked.append(step)
        self.doing = asyncio.get_running_loop().create_future()
        return self.doing

    def left(self) -> None:
        self.plans -= 1

    async def answer(self, reply: Any) -> None:
        while self.doing is None:
            await asyncio.sleep(0)
        doing, self.doing = self.doing, None
        doing.set_result(Answer(reply, 0.0, 0.0))


def two_steps(told: list[Any]) -> Plan:
    told.append((yield WORK).reply)
    told.append((yield WORK).reply)
    return "done"


def undone_when_cancelled(told: list[Any]) -> Plan:
    try:
        told.append((yield WORK).reply)
    except BaseException:
        told.append((yield UNDO).reply)
        raise
    return "done"


async def a_little() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(body: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(body, PATIENCE))


@pytest.mark.parametrize("times", [1, 3])
def test_to_the_end_a_cancellation_waits_and_then_goes_on(times: int) -> None:
    async def main() -> None:
        desk, told = Desk(), list[Any]()
        task = asyncio.ensure_future(drivers.adrive(two_steps(told), desk, to_the_end=True))
        await a_little()
        for _ in range(times):
            task.cancel()
            await a_little()
        assert not task.done()
        await desk.answer("first")
        await a_little()
        await desk.answer("second")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (["first", "second"], 0) == (told, desk.plans)

    run(main())


def test_to_the_end_a_cancellation_in_the_last_moment_goes_on() -> None:
    """The answer is there, and the task has not seen it yet."""

    async def main() -> None:
        desk, told = Desk(), list[Any]()
        task = asyncio.ensure_future(drivers.adrive(two_steps(told), desk, to_the_end=True))
        await a_little()
        await desk.answer("first")
        await a_little()
        await desk.answer("second")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ["first", "second"] == told

    run(main())


def test_to_the_end_a_cancelled_task_waits_no_longer_than_for_an_undo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "UNDO_BUDGET", 0.05)

    async def main() -> None:
        desk = Desk()
        task = asyncio.ensure_future(drivers.adrive(two_steps([]), desk, to_the_end=True))
        await a_little()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ([WORK], 0) == (desk.asked, desk.plans)

    run(main())


def test_cancelled_a_plan_undoes_what_it_did_before_the_cancellation_goes_on() -> None:
    async def main() -> None:
        desk, told = Desk(), list[Any]()
        task = asyncio.ensure_future(drivers.adrive(undone_when_cancelled(told), desk))
        await a_little()
        task.cancel()
        await a_little()
        task.cancel()  # again, while it undoes
        await a_little()
        assert ([WORK, UNDO], False) == (desk.asked, task.done())
        await desk.answer("undone")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (["undone"], 0) == (told, desk.plans)

    run(main())


def test_an_answer_that_was_cancelled_with_its_loop_is_a_failure_to_the_plan() -> None:
    def plan(told: list[Any]) -> Plan:
        try:
            yield WORK
        except Failure as failure:
            told.append(failure.why)
        return "done"

    async def main() -> None:
        desk, told = Desk(), list[Any]()
        task = asyncio.ensure_future(drivers.adrive(plan(told), desk, to_the_end=True))
        await a_little()
        assert desk.doing is not None
        desk.doing.cancel()
        assert ("done", ["final"]) == (await task, told)

    run(main())


def test_what_was_not_cancelled_returns_its_result() -> None:
    async def main() -> None:
        desk = Desk()
        task = asyncio.ensure_future(drivers.adrive(two_steps([]), desk, to_the_end=True))
        await desk.answer(1)
        await a_little()
        await desk.answer(2)
        assert "done" == await task

    run(main())


# Errands of a loop


def outcome(of: asyncio.Future[Any]) -> Any:
    return "cancelled" if of.cancelled() else of.exception() or of.result()


def test_the_outcome_of_an_errand_is_that_of_its_future() -> None:
    odd = RuntimeError("odd")

    async def well() -> str:
        return "well"

    async def badly() -> None:
        raise odd

    async def cut_off() -> None:
        raise asyncio.CancelledError

    async def main() -> list[Any]:
        errands, loop = loops.Errands(), asyncio.get_running_loop()
        given = [loop.create_future() for _ in range(4)]
        given[3].set_result("before")
        for body, done in zip((well, badly, cut_off, badly), given, strict=True):
            errands.start(body(), done)
        errands.start(badly(), None)  # its error is nobody's, and asyncio complains of none
        await a_little()
        assert not errands._tasks
        return [outcome(one) for one in given]

    assert ["well", odd, "cancelled", "before"] == asyncio.run(main())
