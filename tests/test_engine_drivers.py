"""A plan that is cancelled while it is carried out, with no server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from django_redis_sync.engine import drivers, loops
from django_redis_sync.engine.server import AsyncServer
from django_redis_sync.exceptions import Unavailable
from django_redis_sync.protocol.plans import Answer, Failure, Plan, Run
from tests.test_engine_batching import run

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


class Scripted:
    """In the place of a Server: each step comes to what the test says, raised if it is an error."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.asked = [*outcomes], list[Run]()

    def run(self, step: Run) -> Answer:
        self.asked.append(step)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return Answer(outcome, 0.0, 0.0)

    perform = run


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


def test_a_cancelled_task_waits_no_longer_for_its_undo_than_that_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drivers, "UNDO_BUDGET", 0.05)

    async def main() -> None:
        desk = Desk()
        task = asyncio.ensure_future(drivers.adrive(undone_when_cancelled([]), desk))
        await a_little()
        task.cancel()
        await asyncio.wait([task], timeout=10)
        if not task.done():
            await desk.answer("at last")  # else nothing ends it
        with pytest.raises(Unavailable, match="cancelled, and no answer in time"):
            await task
        assert ([WORK, UNDO], 0) == (desk.asked, desk.plans)

    run(main())


def test_background_that_take_too_long_for_the_end_of_a_loop_are_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "END", 0.01)

    async def main() -> None:
        errands, done = loops.BackgroundTasks(), asyncio.get_running_loop().create_future()
        errands.start(asyncio.sleep(60), done)
        await errands.aclose()
        await a_little()
        assert done.cancelled()

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
        assert ("done", ["unanswered"]) == (await task, told)

    run(main())


# Errands of a loop


def test_what_is_used_once_more_while_its_loop_ends_is_closed_once_more() -> None:
    closed: list[str] = []

    class LoopResource(AsyncServer):
        def __init__(self) -> None: ...

        async def aclose(self) -> None:
            closed.append("closed")

    async def main() -> None:
        made = loops.resources_of(asyncio.get_running_loop())
        made.by_alias["a"] = mine = LoopResource()
        await made.aclose()
        assert ["closed"] == closed
        mine.plans += 1
        mine.left()
        await a_little()
        assert ["closed"] * 2 == closed

    run(main())


def test_a_loop_that_ends_lets_what_its_generators_hold_be_given_back() -> None:
    happened: list[str] = []

    class LoopResource:
        plans, retired = 0, False

        async def aclose(self) -> None:
            happened.append("closed")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        made, mine = loops.LoopResources(), LoopResource()
        made.by_alias["a"] = mine

        def give_back() -> None:
            mine.plans = 1
            loop.call_later(0.02, given_back)

        def given_back() -> None:
            mine.plans = 0
            happened.append("given back")

        loop.call_soon(give_back)
        await made.aclose()

    asyncio.run(main())
    assert ["given back", "closed"] == happened[:2]


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

    complaints: list[Any] = []

    async def main() -> list[Any]:
        errands, loop = loops.BackgroundTasks(), asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        given = [loop.create_future() for _ in range(4)]
        given[3].set_result("before")
        for body, done in zip((well, badly, cut_off, badly), given, strict=True):
            errands.start(body(), done)
        errands.start(badly(), None)  # its error is nobody's, and asyncio complains of none
        await a_little()
        assert not errands._tasks
        return [outcome(one) for one in given]

    assert ["well", odd, "cancelled", "before"] == asyncio.run(main())
    assert [] == complaints


# A first step without a plan


def attempted(plan: Any, *outcomes: Any, known: Any = None) -> tuple[Any, list[Any], list[Run]]:
    """The result, the replies that the plan was told, and the steps that were made."""
    told: list[Any] = []
    server: Any = Scripted(*outcomes)

    def knows(answer: Answer, *_: Any) -> Any:
        if isinstance(known, BaseException):
            raise known
        return known if answer.reply == "all" else None

    try:
        return drivers.attempt(server, WORK, knows, plan, told), told, server.asked
    except BaseException as error:
        return error, told, server.asked


def test_where_the_first_answer_says_all_there_is_no_plan() -> None:
    assert ("known", [], [WORK]) == attempted(two_steps, "all", known="known")


def test_else_the_plan_is_told_the_first_answer_and_goes_on() -> None:
    assert ("done", ["one", "two"], [WORK, WORK]) == attempted(two_steps, "one", "two")


def test_an_interrupted_first_step_is_undone_by_the_plan() -> None:
    stop = KeyboardInterrupt()
    assert (stop, ["undone"], [WORK, UNDO]) == attempted(undone_when_cancelled, stop, "undone")


def test_what_was_interrupted_after_its_answer_is_undone_too() -> None:
    stop = KeyboardInterrupt()
    found = attempted(undone_when_cancelled, "all", "undone", known=stop)
    assert (stop, ["undone"], [WORK, UNDO]) == found


def test_second_cancellation_does_not_extend_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "UNDO_BUDGET", 0.2)

    async def main() -> None:
        desk = Desk()
        task = asyncio.ensure_future(drivers.adrive(two_steps([]), desk, to_the_end=True))
        until = time.monotonic() + 10
        while not task.done() and time.monotonic() < until:
            await asyncio.sleep(0.02)
            task.cancel()
        assert task.cancelled(), "it outlasts its budget while it is cancelled again"

    run(main())
