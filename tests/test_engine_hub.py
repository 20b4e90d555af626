"""Waiters of one event loop: one of each name asks again often enough for all of them."""

from __future__ import annotations

import asyncio

from django_redis_sync.engine.hub import PULSE, Hub
from django_redis_sync.protocol.scripts import CONSTANTS


def test_a_sign_of_life_may_be_late_by_more_than_a_second() -> None:
    assert PULSE + 1 < CONSTANTS["ALIVE"] / 1000


def test_one_waiter_of_each_name_asks_again_for_all() -> None:
    async def main() -> None:
        hub = Hub(None, "p")
        ours = [hub.wait(token, 60, "x") for token in "abc"]
        others = [hub.wait(token, 60, "y") for token in "de"]
        await asyncio.sleep(1.4 * PULSE)
        assert [False, False, True] == [done.done() for done in ours]
        assert [False, True] == [done.done() for done in others]
        assert ours[2].result().reply is None

    asyncio.run(main())


def test_nobody_is_woken_while_some_waiter_of_the_name_asks_anyway() -> None:
    async def main() -> None:
        hub = Hub(None, "p")
        first = hub.wait("a", 60, "x")
        for number in range(6):
            await asyncio.sleep(PULSE / 3)
            hub.wait(f"b{number}", 60, "x")
        assert not first.done()

    asyncio.run(main())


def test_a_name_that_nobody_waits_for_is_forgotten() -> None:
    async def main() -> None:
        hub = Hub(None, "p")
        hub.wait("a", 0.01, "x")
        await asyncio.sleep(2.5 * PULSE)
        assert {} == hub._rooms

    asyncio.run(main())
