"""Waiters of one event loop: one of each name asks again often enough for all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import exceptions as errors

from django_redis_sync.engine import hub as hubs
from django_redis_sync.engine.hub import HEARTBEAT_INTERVAL, Hub
from django_redis_sync.protocol.scripts import CONSTANTS
from tests.test_engine_batching import PATIENCE, Radio, run


def test_a_sign_of_life_may_be_late_by_more_than_a_second() -> None:
    assert HEARTBEAT_INTERVAL + 1 < CONSTANTS["ALIVE"] / 1000


def test_one_waiter_of_each_name_asks_again_for_all() -> None:
    async def main() -> None:
        hub = Hub(None, "p")
        ours = [hub.wait(token, 60, "x") for token in "abc"]
        others = [hub.wait(token, 60, "y") for token in "de"]
        await asyncio.sleep(1.4 * HEARTBEAT_INTERVAL)
        assert [False, False, True] == [done.done() for done in ours]
        assert [False, True] == [done.done() for done in others]
        assert ours[2].result().reply is None

    asyncio.run(main())


def test_a_waiter_is_asked_for_signs_of_life_for_as_long_as_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs, "HEARTBEAT_INTERVAL", 0.02)

    async def main() -> None:
        hub = Hub(None, "p")
        for _ in range(3):
            answer = await asyncio.wait_for(hub.wait("a", 60, "x"), PATIENCE)
            assert answer.reply is None

    asyncio.run(main())


def test_who_has_an_answer_or_was_cancelled_is_woken_no_more() -> None:
    async def main() -> None:
        hub = Hub(None, "p")
        first, second = hub.wait("a", 60, "x"), hub.wait("b", 60, "x")
        second.cancel()
        for message in ("a 1", "a 2", "b 3"):
            hub._deliver(message)
        assert ("1", True) == (first.result().reply, second.cancelled())

    run(main())


def test_a_name_that_nobody_waits_for_is_forgotten() -> None:
    async def main() -> None:
        hub = Hub(None, "p")
        hub.wait("a", 0.01, "x")
        await asyncio.sleep(2.5 * HEARTBEAT_INTERVAL)
        assert {} == hub._by_name

    asyncio.run(main())


# Messages that come early


def test_of_too_many_early_messages_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "_MAX_EARLY", 2)

    async def main() -> None:
        hub = Hub(None, "p")
        for token in "abac":
            hub._deliver(f"{token} element")
        answered = {token: hub.wait(token, 60, "x").done() for token in "abc"}
        assert {"a": True, "b": False, "c": True} == answered

    run(main())


def test_an_early_message_is_kept_for_its_time_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(hubs, "clock", lambda: now[0])

    async def main() -> None:
        hub = Hub(None, "p")
        hub._deliver("old element")
        now[0] += hubs._EARLY / 2
        hub._deliver("new element")
        now[0] += hubs._EARLY / 2
        hub._expire()
        assert [False, True] == [hub.wait(token, 60, "x").done() for token in ("old", "new")]

    run(main())


# Subscribing


class Deaf(Radio):
    """Can't subscribe so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def subscribe(self, channel: str) -> None:
        if self.times:
            self.times -= 1
            raise errors.ConnectionError("refused")
        await super().subscribe(channel)


class Pauses(tuple[float, ...]):
    """Seconds between two tries, and which of them were asked for."""

    asked: list[int]

    def __getitem__(self, nth: Any) -> Any:
        self.asked.append(nth)
        return super().__getitem__(nth)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    made = Pauses((0.0, 0.0, 0.0))
    made.asked = []
    monkeypatch.setattr(hubs, "_BACKOFF", made)
    return made.asked


def test_who_waits_for_a_hub_that_cannot_subscribe_is_told_so(pauses: list[int]) -> None:
    async def main() -> None:
        hub = Hub(Deaf(10**9), "p")
        assert hub.channel == await asyncio.wait_for(hub.ready(10**6), PATIENCE)
        await hub.aclose()

    run(main())


def test_a_subscription_that_cannot_even_be_closed_is_tried_again(pauses: list[int]) -> None:
    class Stuck(Deaf):
        async def aclose(self) -> None:
            raise errors.ConnectionError("cut")

    async def main() -> None:
        radio = Stuck(2)
        hub = Hub(radio, "p")
        await hub.ready(PATIENCE)
        while radio.tuned < 1:
            assert hub._reader is not None and not hub._reader.done()
            await asyncio.sleep(0)
        await hub.aclose()

    run(main())


def test_the_pauses_between_tries_grow_and_begin_anew_once_it_went_well(pauses: list[int]) -> None:
    async def main() -> None:
        radio = Deaf(4)
        hub = Hub(radio, "p")
        await hub.ready(PATIENCE)
        while radio.tuned < 1:
            await asyncio.sleep(0)
        assert [0, 1, 2, 2] == pauses
        radio.said.put_nowait(errors.ConnectionError("cut"))
        while radio.tuned < 2:
            await asyncio.sleep(0)
        assert [0, 1, 2, 2, 0] == pauses
        await hub.aclose()

    run(main())


def test_a_hub_that_hears_nothing_is_not_waited_for_longer_than_was_said() -> None:
    class Silent(Radio):
        async def subscribe(self, channel: str) -> None:
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        hub = Hub(Silent(), "p")
        await asyncio.wait_for(hub.ready(0.01), PATIENCE)
        await hub.aclose()

    run(main())


# Rooms


def test_waits_end_in_the_order_of_their_times_whichever_came_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs, "HEARTBEAT_INTERVAL", 1e6)

    async def main() -> None:
        hub, ended = Hub(None, "p"), list[str]()
        times = {"c": 0.09, "a": 0.01, "d": 0.13, "b": 0.05}
        waits = {token: hub.wait(token, seconds, "x") for token, seconds in times.items()}
        for token, done in waits.items():
            done.add_done_callback(lambda _, token=token: ended.append(token))
        await asyncio.wait_for(asyncio.gather(*waits.values()), PATIENCE)
        assert ["a", "b", "c", "d"] == ended

    run(main())


class Parsed:
    """In the place of a connection, with what its parser has read."""

    def __init__(self, *read: Any) -> None:
        self._parser = self._reader = self
        self._read, self.heeded = list(read), list[Any]()

    def gets(self) -> Any:
        return self._read.pop(0) if self._read else None

    async def handle_push_response(self, push: Any) -> None:
        self.heeded.append(push)


@pytest.mark.parametrize("words", [lambda word: word, str.encode], ids=["text", "bytes"])
def test_what_was_read_along_with_a_message_is_heard_at_once(words: Any) -> None:
    async def main() -> None:
        radio = Radio()
        hub = Hub(radio, "p")
        await hub.ready(PATIENCE)
        waiting = {token: hub.wait(token, 60, "x") for token in "abc"}
        radio.connection = Parsed(
            [words("message"), words("p"), words("b 2")],
            [words("MOVING"), 7],
            [words("message"), words("p"), words("c 3")],
        )
        radio.say("a 1")
        answers = await asyncio.wait_for(asyncio.gather(*waiting.values()), PATIENCE)
        assert ["1", "2", "3"] == [answer.reply for answer in answers]
        assert [[words("MOVING"), 7]] == radio.connection.heeded
        await hub.aclose()

    run(main())


@pytest.mark.parametrize(
    ("read", "subscriptions"),
    [(errors.ConnectionError("cut"), 2), ([b"subscribe", b"p", 1], 1)],
    ids=["an error", "a subscription"],
)
def test_all_ask_again_after_what_was_read_along_with_a_message(
    read: Any, subscriptions: int, pauses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "HEARTBEAT_INTERVAL", 1e6)  # no sign of life is due

    async def main() -> None:
        radio = Radio()
        hub = Hub(radio, "p")
        await hub.ready(PATIENCE)
        waiting = hub.wait("a", 1e6, "x")
        radio.connection = Parsed(read)
        radio.say("b 2")
        assert (await asyncio.wait_for(waiting, PATIENCE)).reply is None
        assert subscriptions == radio.tuned
        await hub.aclose()

    run(main())
