"""Batches, wake-ups, and time limits of an event loop. Without a server."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from redis import exceptions as errors

from django_redis_sync.engine import batching, loops
from django_redis_sync.engine.batching import Batcher
from django_redis_sync.engine.hub import Hub
from django_redis_sync.engine.loops import LoopTimeout
from django_redis_sync.protocol.plans import Answer, Failure, Run

PATIENCE = 20.0

Command = list[str]


class Line:
    """Stand-in for a client, its pool, and its connection. It records the batches.

    `answer` returns the reply to a command; the reply may be an exception. While `silent` is true,
    replies wait for `speak()`.
    """

    socket_timeout: float | None = None

    def __init__(self, answer: Callable[[Command], Any] | None = None) -> None:
        self.connection_pool = self
        self.sent: list[list[Command]] = []
        self._unanswered: list[Command] = []
        self.broken, self.lent = 0, 0
        self._answer = answer or (lambda command: ["ok", token_of(command)])
        self._replies: asyncio.Queue[Any] = asyncio.Queue()
        self.silent, self.timeouts = False, set[float]()

    async def get_connection(self) -> Line:
        self.lent += 1
        return self

    async def release(self, connection: Any) -> None:
        self.lent -= 1

    async def disconnect(self, nowait: bool = False) -> None:
        self.broken += nowait  # without `nowait`, it would wait for the server
        self._replies = asyncio.Queue()

    async def gets(self, batches: int) -> None:
        """Wait until this number of batches was sent."""
        while len(self.sent) < batches:
            await asyncio.sleep(0)

    async def send_packed_command(self, packed: list[bytes]) -> None:
        commands = parsed(packed[0])
        self.sent.append(commands)
        self._unanswered += commands
        if not self.silent:
            self.speak()

    def speak(self) -> None:
        """Reply to all commands that have no reply yet."""
        while self._unanswered:
            self._replies.put_nowait(self._answer(self._unanswered.pop(0)))

    async def read_response(self, timeout: float = 0.0) -> Any:
        self.timeouts.add(timeout)
        reply = await self._replies.get()
        if isinstance(reply, Exception):
            raise reply
        return reply


def step(token: str, timeout: float = 5.0) -> Run:
    keys = ("k0", "k1", "k2", "k3", f"wake:{token}", "k5", "k6")
    return Run("release", keys, (token, "0", "undo", 0, 0, 360), timeout)


def parsed(packed: bytes) -> list[Command]:
    """Return commands in Redis's wire format as lists of words."""
    commands: list[Command] = []
    while packed:
        head, _, packed = packed.partition(b"\r\n")
        words = []
        for _ in range(int(head[1:])):
            length, _, packed = packed.partition(b"\r\n")
            size = int(length[1:])
            words.append(packed[:size].decode())
            packed = packed[size + 2 :]
        commands.append(words)
    return commands


def token_of(command: Command) -> str:
    return next(word for word in command if word.startswith("wake:"))[5:]


def tokens(batch: list[Command]) -> list[str]:
    return [token_of(command) for command in batch]


def is_whole(command: Command) -> bool:
    return command[0] == "EVAL"


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Return an async test as a function that runs it with `run()`."""

    @functools.wraps(test)
    def in_sync(**fixtures: Any) -> None:
        run(test(**fixtures))

    return in_sync


def run(body: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of `body`. Fail after PATIENCE seconds, without cancelling `body`: a
    cancellation could end it as if it had not hung."""

    async def main() -> Any:
        task = asyncio.ensure_future(body)
        done, _ = await asyncio.wait([task], timeout=PATIENCE)
        assert done, "it hangs"
        return task.result()

    return asyncio.run(main())


async def run_callbacks() -> None:
    """Let the loop run the callbacks that are due."""
    for _ in range(5):
        await asyncio.sleep(0)


# Batches


@on_loop
async def test_batcher_sends_steps_submitted_together_in_one_batch_in_order() -> None:
    line = Line()
    batcher = Batcher(line)
    futures = [batcher.submit(step(f"t{n}")) for n in range(5)]
    answers = [await future for future in futures]
    assert [["ok", f"t{n}"] for n in range(5)] == [answer.reply for answer in answers]
    assert [[f"t{n}" for n in range(5)]] == [tokens(batch) for batch in line.sent]


@on_loop
async def test_answer_is_timed_from_before_its_batch_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(Line):
        async def send_packed_command(self, packed: list[bytes]) -> None:
            now[0] += 1
            await super().send_packed_command(packed)

        async def read_response(self, timeout: float = 0.0) -> Any:
            now[0] += 1
            return await super().read_response(timeout)

    now = [100.0]
    monkeypatch.setattr(batching, "clock", lambda: now[0])
    assert Answer(["ok", "a"], 100.0, 102.0) == await Batcher(Slow()).submit(step("a"))


@on_loop
async def test_steps_submitted_while_a_batch_is_in_flight_form_the_next_batch() -> None:
    line = Line()
    line.silent = True
    batcher = Batcher(line)
    first = batcher.submit(step("first"))
    await line.gets(1)
    later = [batcher.submit(step(f"t{n}")) for n in range(3)]
    await asyncio.sleep(0.01)
    assert [["first"]] == [tokens(batch) for batch in line.sent]
    line.silent = False
    line.speak()
    await asyncio.gather(first, *later)
    assert [["first"], ["t0", "t1", "t2"]] == [tokens(batch) for batch in line.sent]


@on_loop
async def test_shortest_timeout_of_a_batch_applies_to_all_its_steps() -> None:
    """A step with a longer timeout can be retried."""

    line = Line()
    line.silent = True
    batcher, began = Batcher(line), time.monotonic()
    futures = [batcher.submit(step("long", 15.0)), batcher.submit(step("short", 0.1))]
    for future in futures:
        with pytest.raises(Failure, match="no reply in time") as caught:
            await future
        assert "unanswered" == caught.value.why
    assert 0.1 <= time.monotonic() - began < 10
    assert (1, 0) == (line.broken, line.lent)


@on_loop
async def test_source_of_an_unknown_script_is_sent_before_steps_submitted_meanwhile() -> None:
    """One of the later steps may be the undo of the first."""

    line = Line(lambda c: ["ok"] if is_whole(c) else errors.NoScriptError("no script"))
    line.silent = True
    batcher = Batcher(line)
    both = [batcher.submit(step("acquire"))]
    await line.gets(1)
    both.append(batcher.submit(step("undo")))
    both.append(batcher.submit(step("other")))
    line.silent = False
    line.speak()
    assert [["ok"]] * 3 == [answer.reply for answer in await asyncio.gather(*both)]
    whole = [token_of(one) for batch in line.sent for one in batch if is_whole(one)]
    assert ["acquire", "undo", "other"] == whole


@on_loop
async def test_step_submitted_while_the_connection_is_released_is_sent() -> None:
    class Slow(Line):
        async def release(self, connection: Any) -> None:
            if not self.later:
                self.later.append(batcher.submit(step("meanwhile")))
            await asyncio.sleep(0.01)
            await super().release(connection)

        later: list[Any] = []

    line = Slow()
    batcher = Batcher(line)
    await batcher.submit(step("first"))
    while not line.later:
        await asyncio.sleep(0)
    assert ["ok", "meanwhile"] == (await line.later[0]).reply


@on_loop
async def test_batcher_continues_when_releasing_a_broken_connection_fails() -> None:
    class Torn(Line):
        async def release(self, connection: Any) -> None:
            await super().release(connection)
            raise errors.ConnectionError("cut")

    line = Torn(lambda c: OSError("cut") if token_of(c) == "cut" else ["ok"])
    line.silent = True
    batcher = Batcher(line)
    cut = batcher.submit(step("cut"))
    await line.gets(1)
    queued = batcher.submit(step("next"))
    line.silent = False
    line.speak()
    await asyncio.wait([cut])
    assert isinstance(cut.exception(), Failure)
    assert ["ok"] == (await queued).reply


@on_loop
async def test_unexpected_exception_fails_its_step_and_drops_the_connection() -> None:
    class Odd(Line):
        async def read_response(self, timeout: float = 0.0) -> Any:
            if "odd" in tokens(self.sent[-1]):
                raise RuntimeError("odd")
            return await super().read_response(timeout)

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    line = Odd()
    batcher = Batcher(line)
    with pytest.raises(Failure) as caught:
        await batcher.submit(step("odd"))
    assert ("unanswered", "RuntimeError('odd')") == (caught.value.why, str(caught.value))
    assert ["ok", "even"] == (await batcher.submit(step("even"))).reply
    await batcher.aclose()
    assert (1, 0) == (line.broken, line.lent)


@pytest.mark.parametrize("reply", [["ok"], errors.ResponseError("WRONGTYPE"), OSError("cut")])
@on_loop
async def test_reply_to_a_cancelled_step_goes_to_no_other_step(reply: Any) -> None:
    line = Line(lambda c: reply if token_of(c) == "cancelled" else ["ok"])
    batcher = Batcher(line)
    cancelled, other = batcher.submit(step("cancelled")), batcher.submit(step("other"))
    cancelled.cancel()
    if isinstance(reply, OSError):
        with pytest.raises(Failure, match="cut"):
            await other
    else:
        assert ["ok"] == (await other).reply
    assert ["ok"] == (await batcher.submit(step("next"))).reply


class Read(Line):
    """A connection that parses each item of `batches` at once with hiredis, as redis-py's do."""

    def __init__(self, *batches: bytes) -> None:
        super().__init__()
        hiredis = pytest.importorskip("hiredis")
        self._reader = hiredis.Reader(
            replyError=lambda text: kinds.get(text.split()[0], errors.ResponseError)(text),
            notEnoughData=NOTHING,
        )
        self._parser, self._batches = self, list(batches)
        self.pushed, self.asked = list[Any](), 0

    async def read_response(self, timeout: float = 0.0) -> Any:
        self.asked += 1
        reply = self._reader.gets()
        while reply is NOTHING:
            self._reader.feed(self._batches.pop(0))
            reply = self._reader.gets()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def handle_push_response(self, push: Any) -> None:
        self.pushed.append([*push])


NOTHING = object()
kinds = {"NOSCRIPT": errors.NoScriptError, "LOADING": errors.BusyLoadingError}


def outcomes(line: Line, count: int) -> list[Any]:
    """Submit `count` steps together. Return the reply of each, or the reason of its failure."""

    async def main() -> list[Any]:
        batcher = Batcher(line)
        waiting = [batcher.submit(step(f"t{n}")) for n in range(count)]
        found = await asyncio.gather(*waiting, return_exceptions=True)
        return [one.why if isinstance(one, Failure) else one.reply for one in found]

    return cast(list[Any], run(main()))


def test_error_among_buffered_replies_fails_only_its_step() -> None:
    line = Read(b"*1\r\n:0\r\n-ERR no\r\n*1\r\n:2\r\n-WRONGTYPE no\r\n")
    assert [[0], "final", [2], "final"] == outcomes(line, 4)
    assert 1 == line.asked


def test_unknown_script_among_buffered_replies_is_sent_as_source() -> None:
    line = Read(b"*1\r\n:0\r\n-NOSCRIPT no\r\n*1\r\n:2\r\n", b"*1\r\n:1\r\n")
    assert [[0], [1], [2]] == outcomes(line, 3)
    assert [[False] * 3, [True]] == [[is_whole(c) for c in batch] for batch in line.sent]


def test_loading_error_among_buffered_replies_fails_the_following_steps() -> None:
    line = Read(b"*1\r\n:0\r\n-LOADING soon\r\n")
    assert ["busy", "busy"] == outcomes(line, 2)
    assert 1 == line.broken


def test_push_message_among_buffered_replies_is_passed_to_redis_py() -> None:
    line = Read(b"*1\r\n:0\r\n>2\r\n$6\r\nMOVING\r\n:7\r\n*1\r\n:1\r\n")
    assert [[0], [1]] == outcomes(line, 2)
    assert [[b"MOVING", 7]] == line.pushed


@pytest.mark.parametrize(
    ("where", "why"), [("get_connection", "unreachable"), ("send_packed_command", "unanswered")]
)
@on_loop
async def test_failure_says_whether_the_step_may_have_been_sent(where: str, why: str) -> None:
    async def fail(*_: Any) -> None:
        raise errors.ConnectionError("refused")

    line = Line()
    setattr(line, where, fail)
    with pytest.raises(Failure) as caught:
        await Batcher(line).submit(step("first"))
    assert why == caught.value.why


@on_loop
async def test_step_submitted_while_connecting_fails_uses_the_next_connection() -> None:
    class Failing(Line):
        tries = 0

        async def get_connection(self) -> Line:
            self.tries += 1
            if self.tries == 1:
                await asyncio.sleep(0.01)
                raise errors.ConnectionError("refused")
            return await super().get_connection()

    batcher = Batcher(Failing())
    first = batcher.submit(step("first"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = batcher.submit(step("second"))
    await asyncio.wait([first])
    assert isinstance(first.exception(), Failure)
    assert ["ok", "second"] == (await second).reply


@on_loop
async def test_shorter_socket_timeout_of_the_project_applies() -> None:
    line = Line()
    line.silent, line.socket_timeout = True, 0.05
    with pytest.raises(Failure) as caught:
        await Batcher(line).submit(step("first", 10**6))
    assert ("unanswered", 1) == (caught.value.why, line.broken)


@on_loop
async def test_source_that_is_rejected_as_unknown_is_not_sent_again() -> None:
    line = Line(lambda c: errors.NoScriptError("no script"))
    with pytest.raises(Failure):
        await Batcher(line).submit(step("first"))
    assert [False, True] == [is_whole(one) for batch in line.sent for one in batch]


@on_loop
async def test_aclose_waits_for_the_replies_in_flight() -> None:
    line = Line()
    line.silent = True
    batcher = Batcher(line)
    first = batcher.submit(step("first"))
    await line.gets(1)
    closing = asyncio.ensure_future(batcher.aclose())
    await asyncio.sleep(0.01)
    assert not closing.done()
    line.speak()
    await closing
    assert ["ok", "first"] == first.result().reply


@on_loop
async def test_aclose_fails_steps_that_get_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "END", 0.02)
    line = Line()
    line.silent = True
    batcher = Batcher(line)
    first = batcher.submit(step("first", 10**6))
    await line.gets(1)
    second = batcher.submit(step("second", 10**6))
    await batcher.aclose()
    for future in (first, second):
        with pytest.raises(Failure) as caught:
            await future
        assert "unanswered" == caught.value.why
    assert (1, 0) == (line.broken, line.lent)


# Time limits


async def seconds_until_timeout(seconds: float) -> float:
    began = time.monotonic()
    limit = LoopTimeout(seconds)
    with pytest.raises(asyncio.TimeoutError), limit:
        await asyncio.get_running_loop().create_future()
    return time.monotonic() - began


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.3])
@on_loop
async def test_loop_timeout_raises_after_its_time(seconds: float) -> None:
    assert seconds <= await seconds_until_timeout(seconds) < seconds + 5


@on_loop
async def test_loop_timeout_does_not_count_time_in_which_the_loop_was_blocked() -> None:
    waiting = asyncio.ensure_future(seconds_until_timeout(0.3))
    for _ in range(3):
        await asyncio.sleep(0.01)
        time.sleep(0.5)
    assert await waiting >= 3 * 0.5 + 0.3 - 3 * loops.TICK - 0.05


@on_loop
async def test_loop_timeout_ends_on_a_loop_that_is_always_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "MAX_LATE", 0.5)
    waiting = asyncio.ensure_future(seconds_until_timeout(0.2))
    while not waiting.done():
        time.sleep(0.1)
        await asyncio.sleep(0)
    assert 0.2 <= await waiting < 10


@on_loop
async def test_cancellation_wins_over_an_expired_loop_timeout() -> None:
    limit = LoopTimeout(0.0)
    await seconds_until_timeout(0.1)  # so `limit` has expired too
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError), limit:
        await asyncio.get_running_loop().create_future()


@on_loop
async def test_loop_timeout_that_expired_outside_its_block_ends_the_next_block() -> None:
    errors_of_the_loop: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors_of_the_loop.append(context))
    limit = LoopTimeout(0.02)
    await asyncio.sleep(0.1)
    with pytest.raises(asyncio.TimeoutError), limit:
        await loop.create_future()
    assert [] == errors_of_the_loop


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Task.cancelling() is new in Python 3.11")
@on_loop
async def test_loop_timeout_leaves_no_cancellation_in_the_task() -> None:
    with pytest.raises(asyncio.TimeoutError), LoopTimeout(0.01):
        await asyncio.sleep(PATIENCE)
    task = asyncio.current_task()
    assert task is not None and 0 == task.cancelling()  # type: ignore[attr-defined]


@on_loop
async def test_stopped_loop_timeout_cancels_nothing() -> None:
    limit = LoopTimeout(0.02)
    with limit:
        await asyncio.sleep(0)
    limit.stop()
    await asyncio.sleep(0.1)
    with limit:
        await asyncio.sleep(0.1)


# Wake-ups


class Radio:
    """Stand-in for a client and its Pub/Sub connection. It receives the messages of `say()`.

    `tuned`: the number of subscriptions.
    """

    def __init__(self) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.tuned, self.is_open = 0, False

    def pubsub(self, **options: Any) -> Radio:
        return self

    subscribed, connection = True, None

    async def subscribe(self, channel: str) -> None:
        self.tuned += 1
        self.is_open = True
        self.said.put_nowait({"type": "subscribe"})

    async def get_message(self, timeout: float | None = 0.0) -> Any:
        assert timeout is None, "a timeout would wake the loop again and again"
        message = await self.said.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def aclose(self) -> None:
        self.is_open = False

    def say(self, text: str) -> None:
        self.said.put_nowait({"type": "message", "data": text.encode()})


async def receive(radio: Radio, *messages: str) -> None:
    """Say `messages`, and wait until the hub has read all that was said."""
    for message in messages:
        radio.say(message)
    while not radio.said.empty():
        await asyncio.sleep(0)
    await run_callbacks()


async def listening() -> tuple[Radio, Hub]:
    """Return a hub that has subscribed, and its connection."""
    radio = Radio()
    hub = Hub(radio, "test")
    await hub.ready(PATIENCE)
    return radio, hub


@on_loop
async def test_hub_keeps_a_message_that_arrives_before_its_waiter() -> None:
    radio, hub = await listening()
    await receive(radio, "mine 7 8 9")
    waiting = hub.wait("mine", PATIENCE, "name")
    assert waiting.done() and "7 8 9" == waiting.result().reply
    assert not hub.wait("mine", PATIENCE, "name").done()  # only once
    await hub.aclose()
