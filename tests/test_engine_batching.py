"""Batches, wake-ups and time limits of an event loop, with no server."""

from __future__ import annotations

import asyncio
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
    """In the place of a connection and of its pool: keeps what was sent, answers when told to.

    `answer`: what is replied to a command; an exception in its place is a reply too.
    """

    socket_timeout: float | None = None

    def __init__(self, answer: Callable[[Command], Any] | None = None) -> None:
        self.connection_pool = self  # it is its own client as well
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
        self.broken += nowait  # else it would wait for the other side
        self._replies = asyncio.Queue()

    async def gets(self, batches: int) -> None:
        """Wait until so many were sent."""
        while len(self.sent) < batches:
            await asyncio.sleep(0)

    async def send_packed_command(self, packed: list[bytes]) -> None:
        commands = parsed(packed[0])
        self.sent.append(commands)
        self._unanswered += commands
        if not self.silent:
            self.speak()

    def speak(self) -> None:
        """Answer what was not answered yet."""
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
    """Commands in Redis's wire format as lists of words."""
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


def run(body: Coroutine[Any, Any, Any]) -> Any:
    """What comes of it. Whatever hangs fails by that: cancelled, it might seem to have ended."""

    async def main() -> Any:
        task = asyncio.ensure_future(body)
        done, _ = await asyncio.wait([task], timeout=PATIENCE)
        assert done, "it hangs"
        return task.result()

    return asyncio.run(main())


# Batches


def test_what_is_submitted_together_leaves_together_and_in_order() -> None:
    async def main() -> None:
        line = Line()
        batcher = Batcher(line)
        futures = [batcher.submit(step(f"t{n}")) for n in range(5)]
        answers = [await future for future in futures]
        assert [["ok", f"t{n}"] for n in range(5)] == [answer.reply for answer in answers]
        assert [[f"t{n}" for n in range(5)]] == [tokens(batch) for batch in line.sent]

    run(main())


def test_an_answer_counts_from_before_its_batch_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Line):
        async def send_packed_command(self, packed: list[bytes]) -> None:
            now[0] += 1
            await super().send_packed_command(packed)

        async def read_response(self, timeout: float = 0.0) -> Any:
            now[0] += 1
            return await super().read_response(timeout)

    now = [100.0]
    monkeypatch.setattr(batching, "clock", lambda: now[0])

    async def main() -> Answer:
        return await Batcher(Slow()).submit(step("a"))

    assert Answer(["ok", "a"], 100.0, 102.0) == run(main())


def test_what_comes_while_a_batch_is_in_flight_leaves_in_the_next() -> None:
    async def main() -> None:
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

    run(main())


def test_the_least_patient_of_a_batch_rules() -> None:
    """Whoever can wait may ask again; whoever can't must not be kept."""

    async def main() -> None:
        line = Line()
        line.silent = True
        batcher, began = Batcher(line), time.monotonic()
        futures = [batcher.submit(step("patient", 15.0)), batcher.submit(step("hurried", 0.1))]
        for future in futures:
            with pytest.raises(Failure, match="no reply in time") as caught:
                await future
            assert "unanswered" == caught.value.why
        assert 0.1 <= time.monotonic() - began < 10
        assert (1, 0) == (line.broken, line.lent)

    run(main())


def test_a_script_the_server_does_not_know_is_sent_whole_before_what_came_meanwhile() -> None:
    """What came meanwhile may be its undo."""

    async def main() -> None:
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

    run(main())


def test_a_step_submitted_while_the_connection_goes_back_is_sent() -> None:
    class Slow(Line):
        async def release(self, connection: Any) -> None:
            if not self.later:
                self.later.append(batcher.submit(step("meanwhile")))
            await asyncio.sleep(0.01)
            await super().release(connection)

        later: list[Any] = []

    async def main() -> None:
        nonlocal batcher
        line = Slow()
        batcher = Batcher(line)
        await batcher.submit(step("first"))
        while not line.later:
            await asyncio.sleep(0)
        assert ["ok", "meanwhile"] == (await line.later[0]).reply

    batcher: Any = None
    run(main())


def test_a_connection_that_cannot_even_go_back_keeps_nothing_from_the_next() -> None:
    class Torn(Line):
        async def release(self, connection: Any) -> None:
            await super().release(connection)
            raise errors.ConnectionError("cut")

    async def main() -> None:
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

    run(main())


def test_a_mistake_of_our_own_leaves_nobody_waiting_and_no_reply_for_the_next() -> None:
    class Odd(Line):
        async def read_response(self, timeout: float = 0.0) -> Any:
            if "odd" in tokens(self.sent[-1]):
                raise RuntimeError("odd")
            return await super().read_response(timeout)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        line = Odd()
        batcher = Batcher(line)
        with pytest.raises(Failure) as caught:
            await batcher.submit(step("odd"))
        assert ("unanswered", "RuntimeError('odd')") == (caught.value.why, str(caught.value))
        assert ["ok", "even"] == (await batcher.submit(step("even"))).reply
        await batcher.aclose()
        assert (1, 0) == (line.broken, line.lent)

    run(main())


@pytest.mark.parametrize("reply", [["ok"], errors.ResponseError("WRONGTYPE"), OSError("cut")])
def test_whatever_is_answered_to_a_cancelled_step_is_nobodys(reply: Any) -> None:
    async def main() -> None:
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

    run(main())


class Read(Line):
    """What comes together is read at once, by hiredis, as redis-py's connections do."""

    def __init__(self, *batches: bytes) -> None:
        super().__init__()
        hiredis = pytest.importorskip("hiredis")
        self._reader = hiredis.Reader(
            replyError=lambda said: kinds.get(said.split()[0], errors.ResponseError)(said),
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
    """Of so many steps that are submitted together: replies, and why there is none."""

    async def main() -> list[Any]:
        batcher = Batcher(line)
        waiting = [batcher.submit(step(f"t{n}")) for n in range(count)]
        found = await asyncio.gather(*waiting, return_exceptions=True)
        return [one.why if isinstance(one, Failure) else one.reply for one in found]

    return cast(list[Any], run(main()))


def test_an_error_among_replies_that_came_together_is_of_its_step() -> None:
    line = Read(b"*1\r\n:0\r\n-ERR no\r\n*1\r\n:2\r\n-WRONGTYPE no\r\n")
    assert [[0], "final", [2], "final"] == outcomes(line, 4)
    assert 1 == line.asked


def test_a_script_that_is_unknown_among_others_is_sent_whole() -> None:
    line = Read(b"*1\r\n:0\r\n-NOSCRIPT no\r\n*1\r\n:2\r\n", b"*1\r\n:1\r\n")
    assert [[0], [1], [2]] == outcomes(line, 3)
    assert [[False] * 3, [True]] == [[is_whole(c) for c in batch] for batch in line.sent]


def test_a_server_that_begins_to_load_among_replies_fails_what_follows() -> None:
    line = Read(b"*1\r\n:0\r\n-LOADING soon\r\n")
    assert ["busy", "busy"] == outcomes(line, 2)
    assert 1 == line.broken


def test_news_of_the_connection_among_replies_go_to_redis_py() -> None:
    line = Read(b"*1\r\n:0\r\n>2\r\n$6\r\nMOVING\r\n:7\r\n*1\r\n:1\r\n")
    assert [[0], [1]] == outcomes(line, 2)
    assert [[b"MOVING", 7]] == line.pushed


@pytest.mark.parametrize(
    ("where", "why"), [("get_connection", "unreachable"), ("send_packed_command", "unanswered")]
)
def test_what_failed_on_its_way_may_have_run_and_without_a_connection_nothing_was_sent(
    where: str, why: str
) -> None:
    async def fail(*_: Any) -> None:
        raise errors.ConnectionError("refused")

    async def main() -> None:
        line = Line()
        setattr(line, where, fail)
        with pytest.raises(Failure) as caught:
            await Batcher(line).submit(step("first"))
        assert why == caught.value.why

    run(main())


def test_what_was_asked_for_while_a_connection_failed_goes_over_the_next() -> None:
    class Failing(Line):
        tries = 0

        async def get_connection(self) -> Line:
            self.tries += 1
            if self.tries == 1:
                await asyncio.sleep(0.01)
                raise errors.ConnectionError("refused")
            return await super().get_connection()

    async def main() -> None:
        batcher = Batcher(Failing())
        first = batcher.submit(step("first"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = batcher.submit(step("second"))
        await asyncio.wait([first])
        assert isinstance(first.exception(), Failure)
        assert ["ok", "second"] == (await second).reply

    run(main())


def test_a_socket_timeout_of_the_project_that_is_shorter_rules() -> None:
    async def main() -> None:
        line = Line()
        line.silent, line.socket_timeout = True, 0.05
        with pytest.raises(Failure) as caught:
            await Batcher(line).submit(step("first", 10**6))
        assert ("unanswered", 1) == (caught.value.why, line.broken)

    run(main())


def test_a_script_that_is_unknown_as_a_whole_is_no_more_sent() -> None:
    async def main() -> None:
        line = Line(lambda c: errors.NoScriptError("no script"))
        with pytest.raises(Failure):
            await Batcher(line).submit(step("first"))
        assert [False, True] == [is_whole(one) for batch in line.sent for one in batch]

    run(main())


def test_what_is_under_way_when_its_loop_ends_is_answered_first() -> None:
    async def main() -> None:
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

    run(main())


def test_what_has_no_answer_when_its_loop_ends_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "END", 0.02)

    async def main() -> None:
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

    run(main())


# Patience


async def waited(seconds: float) -> float:
    began = time.monotonic()
    patience = LoopTimeout(seconds)
    with pytest.raises(asyncio.TimeoutError), patience:
        await asyncio.get_running_loop().create_future()
    return time.monotonic() - began


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.3])
def test_patience_ends_when_its_time_is_over(seconds: float) -> None:
    assert seconds <= run(waited(seconds)) < seconds + 5


def test_time_in_which_the_loop_was_blocked_does_not_count() -> None:
    async def main() -> float:
        waiting = asyncio.ensure_future(waited(0.3))
        for _ in range(3):
            await asyncio.sleep(0.01)
            time.sleep(0.5)
        return await waiting

    assert run(main()) >= 3 * 0.5 + 0.3 - 3 * loops.TICK - 0.05


def test_a_loop_that_is_never_on_time_has_an_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MAX_LATE", 0.5)

    async def main() -> float:
        waiting = asyncio.ensure_future(waited(0.2))
        while not waiting.done():
            time.sleep(0.1)
            await asyncio.sleep(0)
        return await waiting

    assert 0.2 <= run(main()) < 10


def test_who_is_cancelled_while_its_patience_is_over_is_cancelled() -> None:
    async def main() -> None:
        patience = LoopTimeout(0.0)
        while not patience._over:
            await asyncio.sleep(0.01)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with patience:
            await asyncio.get_running_loop().create_future()

    with pytest.raises(asyncio.CancelledError):
        run(main())


def test_patience_that_ended_while_nothing_waited_ends_the_next_wait() -> None:
    async def main() -> None:
        errors_of_the_loop: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors_of_the_loop.append(context))
        patience = LoopTimeout(0.02)
        await asyncio.sleep(0.1)
        with pytest.raises(asyncio.TimeoutError), patience:
            await loop.create_future()
        assert [] == errors_of_the_loop

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no task knows how often it was cancelled")
def test_patience_leaves_no_cancellation_to_the_task() -> None:
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError), LoopTimeout(0.01):
            await asyncio.sleep(PATIENCE)
        task = asyncio.current_task()
        assert task is not None and 0 == task.cancelling()  # type: ignore[attr-defined]

    run(main())


def test_patience_that_is_stopped_ends_nothing() -> None:
    async def main() -> None:
        patience = LoopTimeout(0.02)
        with patience:
            await asyncio.sleep(0)
        patience.stop()
        assert patience._timer.cancelled(), "no loop wakes for it any more"
        await asyncio.sleep(0.1)

    run(main())


# Wake-ups


class Radio:
    """In the place of a client: its Pub/Sub connection hears what the test says."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.tuned = 0

    def pubsub(self, **options: Any) -> Radio:
        return self

    subscribed, connection = True, None

    async def subscribe(self, channel: str) -> None:
        self.tuned += 1
        self.said.put_nowait({"type": "subscribe"})

    async def get_message(self, timeout: float | None = 0.0) -> Any:
        assert timeout is None, "asked again and again"
        message = await self.said.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def aclose(self) -> None: ...

    def say(self, text: str) -> None:
        self.said.put_nowait({"type": "message", "data": text.encode()})


async def listening() -> tuple[Radio, Hub]:
    radio = Radio()
    hub = Hub(radio, "test")
    await hub.ready(PATIENCE)
    return radio, hub


def test_a_message_before_its_waiter_is_kept_for_it() -> None:
    async def main() -> None:
        radio, hub = await listening()
        radio.say("mine 7 8 9")
        while not radio.said.empty():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting = hub.wait("mine", PATIENCE, "name")
        assert waiting.done() and "7 8 9" == waiting.result().reply
        assert not hub.wait("mine", PATIENCE, "name").done()  # once
        await hub.aclose()

    run(main())
