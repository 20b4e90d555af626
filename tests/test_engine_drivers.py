"""Drivers: plans that are cancelled or interrupted, and the end of a loop. Without a server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from django_redis_sync.engine import drivers, loops
from django_redis_sync.engine.server import AsyncServer
from django_redis_sync.exceptions import Unavailable
from django_redis_sync.protocol.plans import Answer, Failure, Plan, Run
from tests.test_engine_batching import on_loop, run_callbacks

WORK, UNDO = (Run(verb, (), (), 1.0) for verb in ("work", "undo"))


class StandInServer:
    """Stand-in for an AsyncServer. Its steps wait for `answer()`."""

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


class Scripted:
    """Stand-in for a Server. Each step returns the next of `outcomes`, or raises it."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.asked = [*outcomes], list[Run]()

    def run(self, step: Run) -> Answer:
        self.asked.append(step)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return Answer(outcome, 0.0, 0.0)

    perform = run


def two_steps(replies: list[Any]) -> Plan:
    replies.append((yield WORK).reply)
    replies.append((yield WORK).reply)
    return "done"


def undone_when_cancelled(replies: list[Any]) -> Plan:
    try:
        replies.append((yield WORK).reply)
    except BaseException:
        replies.append((yield UNDO).reply)
        raise
    return "done"


@pytest.mark.parametrize("times", [1, 3])
@on_loop
async def test_cancellation_takes_effect_after_a_plan_that_runs_to_the_end(times: int) -> None:
    server, replies = StandInServer(), list[Any]()
    task = asyncio.ensure_future(drivers.adrive(two_steps(replies), server, to_the_end=True))
    await run_callbacks()
    for _ in range(times):
        task.cancel()
        await run_callbacks()
    assert not task.done()
    await server.answer("first")
    await run_callbacks()
    await server.answer("second")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (["first", "second"], 0) == (replies, server.plans)


@on_loop
async def test_cancellation_after_the_last_answer_takes_effect() -> None:
    """The future has the answer, but the task has not run since."""

    server, replies = StandInServer(), list[Any]()
    task = asyncio.ensure_future(drivers.adrive(two_steps(replies), server, to_the_end=True))
    await run_callbacks()
    await server.answer("first")
    await run_callbacks()
    await server.answer("second")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ["first", "second"] == replies


@on_loop
async def test_cancelled_plan_that_runs_to_the_end_has_the_time_of_an_undo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "UNDO_BUDGET", 0.05)
    server = StandInServer()
    task = asyncio.ensure_future(drivers.adrive(two_steps([]), server, to_the_end=True))
    await run_callbacks()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ([WORK], 0) == (server.asked, server.plans)


@on_loop
async def test_undo_of_a_cancelled_plan_has_a_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drivers, "UNDO_BUDGET", 0.05)
    server = StandInServer()
    task = asyncio.ensure_future(drivers.adrive(undone_when_cancelled([]), server))
    await run_callbacks()
    task.cancel()
    await asyncio.wait([task], timeout=10)
    if not task.done():
        await server.answer("late")  # ends a task that would hang
    with pytest.raises(Unavailable, match="cancelled, and no answer in time"):
        await task
    assert ([WORK, UNDO], 0) == (server.asked, server.plans)


@on_loop
async def test_aclose_cancels_background_tasks_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "END", 0.01)
    tasks, done = loops.BackgroundTasks(), asyncio.get_running_loop().create_future()
    tasks.start(asyncio.sleep(60), done)
    await tasks.aclose()
    await run_callbacks()
    assert done.cancelled()


@on_loop
async def test_cancellation_takes_effect_after_the_undo_of_the_plan() -> None:
    server, replies = StandInServer(), list[Any]()
    task = asyncio.ensure_future(drivers.adrive(undone_when_cancelled(replies), server))
    await run_callbacks()
    task.cancel()
    await run_callbacks()
    task.cancel()  # during the undo
    await run_callbacks()
    assert ([WORK, UNDO], False) == (server.asked, task.done())
    await server.answer("undone")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (["undone"], 0) == (replies, server.plans)


@on_loop
async def test_cancelled_answer_is_a_failure_to_the_plan() -> None:
    def plan(replies: list[Any]) -> Plan:
        try:
            yield WORK
        except Failure as failure:
            replies.append(failure.why)
        return "done"

    server, replies = StandInServer(), list[Any]()
    task = asyncio.ensure_future(drivers.adrive(plan(replies), server, to_the_end=True))
    await run_callbacks()
    assert server.doing is not None
    server.doing.cancel()
    assert ("done", ["unanswered"]) == (await task, replies)


# The end of a loop


@on_loop
async def test_resource_used_again_during_aclose_is_closed_again() -> None:
    closed: list[str] = []

    class LoopResource(AsyncServer):
        def __init__(self) -> None: ...

        async def aclose(self) -> None:
            closed.append("closed")

    made = loops.resources_of(asyncio.get_running_loop())
    made.by_alias["a"] = mine = LoopResource()
    await made.aclose()
    assert ["closed"] == closed
    mine.plans += 1
    mine.left()
    await run_callbacks()
    assert ["closed"] * 2 == closed


def test_aclose_waits_for_plans_of_asynchronous_generators() -> None:
    happened: list[str] = []

    class LoopResource:
        plans, retired = 0, False

        async def aclose(self) -> None:
            happened.append("closed")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        made, mine = loops.LoopResources(), LoopResource()
        made.by_alias["a"] = mine

        def begin() -> None:
            mine.plans = 1
            loop.call_later(0.02, end)

        def end() -> None:
            mine.plans = 0
            happened.append("plan ended")

        loop.call_soon(begin)
        await made.aclose()

    asyncio.run(main())
    assert ["plan ended", "closed"] == happened[:2]


def outcome(of: asyncio.Future[Any]) -> Any:
    return "cancelled" if of.cancelled() else of.exception() or of.result()


def test_future_gets_the_outcome_of_its_background_task() -> None:
    odd = RuntimeError("odd")

    async def succeed() -> str:
        return "done"

    async def fail() -> None:
        raise odd

    async def be_cancelled() -> None:
        raise asyncio.CancelledError

    complaints: list[Any] = []

    async def main() -> list[Any]:
        tasks, loop = loops.BackgroundTasks(), asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        given = [loop.create_future() for _ in range(4)]
        given[3].set_result("before")
        for body, done in zip((succeed, fail, be_cancelled, fail), given, strict=True):
            tasks.start(body(), done)
        tasks.start(fail(), None)
        await run_callbacks()
        assert not tasks._tasks
        return [outcome(one) for one in given]

    assert ["done", odd, "cancelled", "before"] == asyncio.run(main())
    assert [] == complaints


# A first step without a plan


def attempted(plan: Any, *outcomes: Any, known: Any = None) -> tuple[Any, list[Any], list[Run]]:
    """Return the result, the replies that the plan got, and the steps that were sent."""
    replies: list[Any] = []
    server: Any = Scripted(*outcomes)

    def knows(answer: Answer, *_: Any) -> Any:
        if isinstance(known, BaseException):
            raise known
        return known if answer.reply == "all" else None

    try:
        return drivers.attempt(server, WORK, knows, plan, replies), replies, server.asked
    except BaseException as error:
        return error, replies, server.asked


def test_attempt_runs_no_plan_if_the_first_answer_is_enough() -> None:
    assert ("known", [], [WORK]) == attempted(two_steps, "all", known="known")


def test_attempt_passes_the_first_answer_to_the_plan() -> None:
    assert ("done", ["one", "two"], [WORK, WORK]) == attempted(two_steps, "one", "two")


def test_plan_undoes_an_interrupted_first_step() -> None:
    stop = KeyboardInterrupt()
    assert (stop, ["undone"], [WORK, UNDO]) == attempted(undone_when_cancelled, stop, "undone")


def test_plan_undoes_a_first_step_interrupted_after_its_answer() -> None:
    stop = KeyboardInterrupt()
    found = attempted(undone_when_cancelled, "all", "undone", known=stop)
    assert (stop, ["undone"], [WORK, UNDO]) == found


@on_loop
async def test_second_cancellation_does_not_extend_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drivers, "UNDO_BUDGET", 0.2)
    server = StandInServer()
    task = asyncio.ensure_future(drivers.adrive(two_steps([]), server, to_the_end=True))
    until = time.monotonic() + 10
    while not task.done() and time.monotonic() < until:
        await asyncio.sleep(0.02)
        task.cancel()
    assert task.cancelled(), "each cancellation extended the time limit"
