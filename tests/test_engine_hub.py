"""The hub: wake-ups, heartbeats, and the subscription of an event loop's waiters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import exceptions as errors

from django_redis_sync.engine import hub as hubs
from django_redis_sync.engine.hub import HEARTBEAT_INTERVAL, Hub
from django_redis_sync.protocol.scripts import CONSTANTS
from tests.test_engine_batching import PATIENCE, Radio, listening, on_loop, receive


def test_heartbeat_may_be_late_by_more_than_a_second() -> None:
    assert HEARTBEAT_INTERVAL + 1 < CONSTANTS["ALIVE"] / 1000


@on_loop
async def test_hub_wakes_one_waiter_per_name_for_the_heartbeat() -> None:
    hub = Hub(None, "p")
    ours = [hub.wait(token, 60, "x") for token in "abc"]
    others = [hub.wait(token, 60, "y") for token in "de"]
    await asyncio.sleep(1.4 * HEARTBEAT_INTERVAL)
    assert [False, False, True] == [done.done() for done in ours]
    assert [False, True] == [done.done() for done in others]
    assert ours[2].result().reply is None


@on_loop
async def test_hub_wakes_a_waiter_for_each_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs, "HEARTBEAT_INTERVAL", 0.02)
    hub = Hub(None, "p")
    for _ in range(3):
        answer = await asyncio.wait_for(hub.wait("a", 60, "x"), PATIENCE)
        assert answer.reply is None


@on_loop
async def test_hub_schedules_no_heartbeat_for_a_name_without_waiters() -> None:
    hub = Hub(None, "p")
    hub.wait("a", 0.01, "x")
    await asyncio.sleep(2.5 * HEARTBEAT_INTERVAL)
    assert {} == hub._by_name


# Messages that come early


@on_loop
async def test_hub_drops_the_oldest_of_too_many_early_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs, "_MAX_EARLY", 2)
    radio, hub = await listening()
    await receive(radio, *(f"{token} element" for token in "abac"))
    answered = {token: hub.wait(token, 60, "x").done() for token in "abc"}
    assert {"a": True, "b": False, "c": True} == answered
    await hub.aclose()


@on_loop
async def test_hub_drops_an_early_message_after_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(hubs, "clock", lambda: now[0])
    monkeypatch.setattr(hubs, "_EARLY", 0.0625)
    radio, hub = await listening()
    for token in ("old", "new"):
        await receive(radio, f"{token} element")
        now[0] += 0.0625 / 2
    await asyncio.sleep(2 * 0.0625)
    assert [False, True] == [hub.wait(token, 60, "x").done() for token in ("old", "new")]
    await hub.aclose()


# Subscribing


class Deaf(Radio):
    """Fails to subscribe `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def subscribe(self, channel: str) -> None:
        if self.times:
            self.times -= 1
            raise errors.ConnectionError("refused")
        await super().subscribe(channel)


class Pauses(tuple[float, ...]):
    """Seconds between two attempts. It records the indexes that were read."""

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


@on_loop
async def test_ready_returns_when_the_hub_cannot_subscribe(pauses: list[int]) -> None:
    hub = Hub(Deaf(10**9), "p")
    assert hub.channel == await asyncio.wait_for(hub.ready(10**6), PATIENCE)
    await hub.aclose()


@on_loop
async def test_hub_ignores_messages_for_answered_and_cancelled_waiters(pauses: list[int]) -> None:
    radio, hub = await listening()
    first, second = hub.wait("a", 60, "x"), hub.wait("b", 60, "x")
    for message in ("a 1", "a 2", "b 3"):
        radio.say(message)
    second.cancel()  # the hub reads its message before the callbacks of this future run
    await receive(radio)
    assert ("1", True, []) == (first.result().reply, second.cancelled(), pauses)
    await hub.aclose()


@on_loop
async def test_hub_subscribes_again_when_closing_the_subscription_fails(pauses: list[int]) -> None:
    class Stuck(Deaf):
        async def aclose(self) -> None:
            raise errors.ConnectionError("cut")

    radio = Stuck(2)
    hub = Hub(radio, "p")
    await hub.ready(PATIENCE)
    while radio.tuned < 1:
        await asyncio.sleep(0)
    await hub.aclose()


@on_loop
async def test_hub_backoff_grows_and_is_reset_by_a_subscription(pauses: list[int]) -> None:
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


@on_loop
async def test_ready_returns_after_its_timeout() -> None:
    class Silent(Radio):
        async def subscribe(self, channel: str) -> None:
            await asyncio.get_running_loop().create_future()

    hub = Hub(Silent(), "p")
    await asyncio.wait_for(hub.ready(0.01), PATIENCE)
    await hub.aclose()


# Deadlines, and messages that were read together


@on_loop
async def test_waits_end_in_the_order_of_their_deadlines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs, "HEARTBEAT_INTERVAL", 1e6)
    hub, ended = Hub(None, "p"), list[str]()
    times = {"c": 0.09, "a": 0.01, "d": 0.13, "b": 0.05}
    waits = {token: hub.wait(token, seconds, "x") for token, seconds in times.items()}
    for token, done in waits.items():
        done.add_done_callback(lambda _, token=token: ended.append(token))
    await asyncio.wait_for(asyncio.gather(*waits.values()), PATIENCE)
    assert ["a", "b", "c", "d"] == ended


class Parsed:
    """Stand-in for a connection whose parser has read more messages."""

    def __init__(self, *read: Any) -> None:
        self._parser = self._reader = self
        self._read, self.handled = list(read), list[Any]()

    def gets(self) -> Any:
        return self._read.pop(0) if self._read else None

    async def handle_push_response(self, push: Any) -> None:
        self.handled.append(push)


@pytest.mark.parametrize("words", [lambda word: word, str.encode], ids=["text", "bytes"])
@on_loop
async def test_hub_delivers_messages_that_were_read_together(words: Any) -> None:
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
    assert [[words("MOVING"), 7]] == radio.connection.handled
    await hub.aclose()


@pytest.mark.parametrize(
    ("read", "subscriptions"),
    [(errors.ConnectionError("cut"), 2), ([b"subscribe", b"p", 1], 1)],
    ids=["an error", "a subscription"],
)
@on_loop
async def test_hub_wakes_all_waiters_when_the_connection_was_lost_or_subscribed_again(
    read: Any, subscriptions: int, pauses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "HEARTBEAT_INTERVAL", 1e6)
    radio = Radio()
    hub = Hub(radio, "p")
    await hub.ready(PATIENCE)
    waiting = hub.wait("a", 1e6, "x")
    radio.connection = Parsed(read)
    radio.say("b 2")
    assert (await asyncio.wait_for(waiting, PATIENCE)).reply is None
    assert subscriptions == radio.tuned
    await hub.aclose()
