"""Several independent servers that grant together: what a majority says, holds.

To plans and keepers a quorum is one more server. Each step goes to all of them at once, under the
same token, and the answers are counted. There is no queue: who finds no majority gives back what it
got and tries again after a random while.

What keeps this safe: any two majorities share a server, and a server grants to one token at a time.
Belief in a lease ends when the first of the longest-lived majority may end. The servers are asked
for more than the holder believes in, so that clocks may run apart by DRIFT.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import random
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from redis import exceptions as errors

from ..protocol.plans import UNDO_BUDGET, Answer, Failure, Run, Sleep, Step, Wait
from ..protocol.reasons import FULL, PAUSED
from . import connections
from .keeper import keeper
from .wire import clock

#: How much faster than ours a server's clock may run, and milliseconds besides.
DRIFT, DRIFT_MS = 0.01, 2
#: Seconds that one server may take at the most; for what the majority is not waited for.
ATTEMPT, LATE = 1.0, 0.05
#: Seconds for which a server that came too late is not waited for at all.
SUSPECT = 5.0
#: Milliseconds until the next try: after votes that were split, and when somebody holds the name.
SPLIT, HELD = (2, 80), (20, 250)
#: Acquisitions that are remembered before those that are over are thrown out; seconds for which
#: one that won nothing yet is.
MOST_KNOWN, FORGET = 1000, 300.0


class Quorum(str):
    """The aliases of a quorum, in place of the one alias of a server."""

    __slots__ = ("aliases",)
    aliases: tuple[str, ...]

    def __new__(cls, aliases: Iterable[str]) -> Quorum:
        given = tuple(aliases)
        self = super().__new__(cls, "+".join(given))
        self.aliases = given
        return self

    @property
    def need(self) -> int:
        """How many are a majority."""
        return len(self.aliases) // 2 + 1

    def sync_server(self, _: str) -> QuorumServer:
        """For `connections.server`."""
        return QuorumServer(self)

    def async_server(self, _: str) -> AsyncQuorumServer:
        """For `connections.async_server`."""
        return AsyncQuorumServer(self)


def quorum_of(using: Any) -> Quorum:
    """The quorum of some aliases. TypeError, or ImproperlyConfigured with the reason."""
    if not isinstance(using, (list, tuple)) or not all(isinstance(one, str) for one in using):
        raise TypeError(f"using must be a cache alias or a list of them, not {using!r}")
    if len(set(using)) != len(using):
        raise ImproperlyConfigured(f"using={using!r} names a server twice: it has one vote.")
    if len(using) < 3:
        raise ImproperlyConfigured(
            f"using={using!r}: a quorum of fewer than three servers survives the loss of none."
        )
    return Quorum(using)


def stretched(ms: str) -> str:
    """The lease to ask servers for, so that `ms` may be believed in."""
    return ms if ms == "inf" else str(math.ceil(int(ms) * (1 + DRIFT)) + DRIFT_MS)


def deducted(ms: str) -> float:
    """What may be believed in of a server's lease."""
    return math.inf if ms == "inf" else math.floor((int(ms) - DRIFT_MS) / (1 + DRIFT))


class _Held:
    """What the servers know of one acquisition, and under which token.

    `until`: when it is over and may be forgotten. `abandoned`: nobody waits for it any more.
    """

    __slots__ = ("abandoned", "ended", "fences", "tries", "until", "wire")

    def __init__(self, token: str) -> None:
        self.wire, self.tries = token, 0
        self.fences: dict[str, str] = {}
        self.ended: set[str] = set()
        self.until, self.abandoned = clock() + FORGET, False

    def again(self) -> None:
        """One more try: under a token of its own, for the last one may be buried somewhere."""
        if self.tries:
            self.wire = secrets.token_hex(16)
        self.tries += 1
        self.fences.clear()
        self.until = clock() + FORGET


class _Votes(NamedTuple):
    """The answers, and what failed, by alias; who is in neither is late."""

    answers: dict[str, Answer]
    failures: dict[str, Failure]

    def saying(self, *words: str) -> dict[str, list[Any]]:
        return {
            alias: answer.reply
            for alias, answer in self.answers.items()
            if answer.reply[0] in words
        }


#: By quorum and token, for threads and loops alike: taken in one, renewed in another.
_known: dict[tuple[Quorum, str], _Held] = {}


class AsyncQuorumServer(connections.AsyncServer):
    """The servers of a quorum on one event loop. Belief in what it answers counts from the send."""

    def __init__(self, quorum: Quorum) -> None:
        self.alias, self.quorum = quorum, quorum
        self.hub = _NoHub()  # type: ignore[assignment]
        self._suspects: dict[str, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        _check(quorum)

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        """As on one server: a step is carried out even when its future is cancelled meanwhile."""
        if type(step) is not Run:
            return super().perform(Sleep(step.seconds) if isinstance(step, Wait) else step)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Answer] = loop.create_future()
        task = loop.create_task(self.run(step))
        self._tasks.add(task)

        def ended(task: asyncio.Task[Answer]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                done.cancel()
            elif (error := task.exception()) is None:
                if not done.done():
                    done.set_result(task.result())
            elif not done.done():
                done.set_exception(error)

        task.add_done_callback(ended)
        return done

    async def run(self, step: Run) -> Answer:
        """What a majority says of a verb. Failure when none of the majorities can be asked."""
        sent = clock()
        reply = await getattr(self, f"_{step.verb}", self._tell)(step)
        return Answer(reply, sent, clock())

    async def command(self, *args: Any, timeout: float = connections.ATTEMPT) -> Any:
        """Sent to all of them; the reply of the first that answers."""

        def one(alias: str) -> Any:
            return connections.server(alias).command(*args, timeout=min(timeout, ATTEMPT))

        pending = {asyncio.ensure_future(asyncio.to_thread(one, a)) for a in self.quorum.aliases}
        for future in pending:
            future.add_done_callback(partial(_heed, "", None))
        while True:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            good = [future for future in done if future.exception() is None]
            if good and pending:
                await asyncio.wait(pending, timeout=LATE)
            if good or not pending:
                return [*good, *done][0].result()

    # The verbs

    async def _acquire(self, step: Run) -> list[Any]:
        token, lease, permits, limit, kind, how, *rest = step.argv
        sent, held = clock(), self._remembered(token)
        held.again()
        # The servers' own queues are not used: "again" is one more try.
        argv = (held.wire, stretched(lease), permits, limit, kind, "try", *rest)
        step = step._replace(keys=_keys(step, token, held.wire), argv=argv)

        def late(alias: str, answer: Answer) -> None:
            if answer.reply[0] == "ok" and not held.abandoned:
                held.fences[alias] = answer.reply[1]

        votes = await self._vote(step, ("ok",), late=late)
        oks = votes.saying("ok")
        held.fences.update({alias: reply[1] for alias, reply in oks.items()})
        if len(oks) >= self.quorum.need and not held.abandoned:
            left = self._agreed(reply[2] for reply in oks.values())
            if left / 1000 > clock() - sent:
                held.until = sent + left / 1000
                fence = str(max(int(reply[1]) for reply in oks.values()))
                return ["ok", fence, _ms(left)]
        await self._undo(step, held, votes)
        reply = self._refused(votes, how)
        if reply[0] != "wait":
            _known.pop((self.quorum, token), None)
        return reply

    def _refused(self, votes: _Votes, how: str) -> list[Any]:
        """What to tell who did not get it. Failure when too few answered to say."""
        for reply in votes.saying("kind", "large").values():
            return reply
        if len(votes.answers) < self.quorum.need:
            raise self._failure(votes)
        noes = list(votes.saying("no").values())
        if how == "try":
            return max(noes, key=_is_paused, default=["no", FULL, 0])
        span = HELD if len(noes) >= self.quorum.need else SPLIT
        return ["wait", "0", str(random.randint(*span)), 0]

    async def _renew(self, step: Run) -> list[Any]:
        token, _, how, ms, *rest = step.argv
        held = _known.get((self.quorum, token))
        if held is None:
            return ["lost"]
        asked, sent = stretched(ms) if how == "set" else ms, clock()
        step = step._replace(keys=_keys(step, token, held.wire))

        def of(alias: str) -> Run | None:
            fence = held.fences.get(alias)
            argv = (held.wire, fence, how, asked, *rest)
            return None if fence is None else step._replace(argv=argv)

        votes = await self._vote(step, ("ok",), of)
        oks = votes.saying("ok")
        for alias in votes.saying("lost"):
            held.fences.pop(alias, None)
        if len(oks) >= self.quorum.need:
            left = self._agreed(reply[1] for reply in oks.values())
            if left > 0:
                held.until = sent + left / 1000
                return ["ok", _ms(left)]
        if len(held.fences) >= self.quorum.need:
            raise self._failure(votes)
        await self._undo(step._replace(argv=(held.wire, *step.argv[1:])), held, _NOBODY)
        _known.pop((self.quorum, token), None)
        return ["lost"]

    async def _release(self, step: Run) -> list[Any]:
        token, _, how, *_ = step.argv
        held = _known.get((self.quorum, token))
        if held is None or how == "giveup":  # a try that failed has left nothing
            _known.pop((self.quorum, token), None)
            return ["lost" if how == "release" else "gone"]
        step = step._replace(keys=_keys(step, token, held.wire), argv=(held.wire, *step.argv[1:]))
        if how == "release":
            return await self._give_back(step, token, held)
        held.abandoned = True  # an acquire of it may be on its way
        await self._undo(step, held, _NOBODY)
        _known.pop((self.quorum, token), None)
        return ["gone"]

    async def _give_back(self, step: Run, token: str, held: _Held) -> list[Any]:
        def of(alias: str) -> Run | None:
            if alias in held.ended:
                return None
            fence = held.fences.get(alias)
            return undo(step, 1) if fence is None else _with_fence(step, fence)

        votes = await self._vote(step, ("ok",), of)
        held.ended.update(votes.saying("ok"))
        over = {
            alias
            for alias in self.quorum.aliases
            if alias not in held.fences or alias in votes.saying("lost")
        } - held.ended
        done = len(held.ended) >= self.quorum.need
        if not done and len(over) <= len(self.quorum.aliases) - self.quorum.need:
            raise self._failure(votes)
        for alias in votes.failures:
            keeper(alias).later(undo(step, 1))
        _known.pop((self.quorum, token), None)
        return ["ok" if done else "lost"]

    async def _inspect(self, step: Run) -> list[Any]:
        """The view of a server such that a majority shows no fewer holders."""
        votes = await self._vote(step, ())
        if len(votes.answers) < self.quorum.need:
            raise self._failure(votes)
        views = sorted((answer.reply for answer in votes.answers.values()), key=_holding)
        return list(views[-self.quorum.need])

    async def _tell(self, step: Run) -> list[Any]:
        """An operator's verb: done by a majority, or a Failure."""
        votes = await self._vote(step, ())
        if len(votes.answers) < self.quorum.need:
            raise self._failure(votes)
        return list(next(iter(votes.answers.values())).reply)

    # Inside

    def _remembered(self, token: str) -> _Held:
        if len(_known) > MOST_KNOWN:
            now = clock()
            for key in [key for key, held in list(_known.items()) if held.until < now]:
                _known.pop(key, None)
        return _known.setdefault((self.quorum, token), _Held(token))

    def _agreed(self, leases: Iterable[str]) -> float:
        """Milliseconds for which a majority holds."""
        return sorted(map(deducted, leases), reverse=True)[self.quorum.need - 1]

    async def _vote(
        self,
        step: Run,
        wanted: tuple[str, ...],
        of: Callable[[str], Run | None] | None = None,
        *,
        late: Callable[[str, Answer], None] | None = None,
        all_of_them: bool = False,
    ) -> _Votes:
        """Ask all servers, until enough said what is `wanted` or no longer can, and LATE more.

        `of(alias)`: the step for one of them, None to leave it out. `late`: told what comes later.
        `all_of_them`: a majority is not enough; but a server that was silent is not waited for.
        """
        asked: dict[asyncio.Future[Answer], str] = {}
        votes, end, need = _Votes({}, {}), clock() + min(step.timeout, ATTEMPT), self.quorum.need
        for alias in self.quorum.aliases:
            mine = step if of is None else of(alias)
            if mine is not None:
                mine = mine._replace(timeout=min(mine.timeout, ATTEMPT))
                asked[_submit(alias, mine)] = alias
        pending = set(asked)
        while pending:
            right = len(votes.saying(*wanted)) if wanted else len(votes.answers)
            decided = right >= need or right + len(pending) < need
            trusted = [f for f in pending if clock() >= self._suspects.get(asked[f], 0.0)]
            if not trusted and (decided or all_of_them):
                break
            if decided and not all_of_them:
                end = min(end, clock() + LATE)
            if clock() >= end:
                break
            done, pending = await asyncio.wait(
                pending, timeout=end - clock(), return_when=asyncio.FIRST_COMPLETED
            )
            for future in done:
                _count(future, asked[future], votes)
        for future in pending:
            self._suspects[asked[future]] = clock() + SUSPECT
            silent = Failure(errors.TimeoutError("no reply in time"), clock(), "unanswered")
            votes.failures[asked[future]] = silent
            future.add_done_callback(partial(_heed, asked[future], late))
        return votes

    async def _undo(self, step: Run, held: _Held, votes: _Votes) -> None:
        """Leave nothing of a token anywhere; who can't be told now is told later.

        Buried where an acquire may still be on its way.
        """

        def of(alias: str) -> Run | None:
            answered = alias in votes.answers
            if answered and alias not in held.fences:
                return None  # it granted nothing
            return undo(step, int(not answered))

        undone = await self._vote(undo(step, 1), (), of, all_of_them=True)
        held.fences.clear()
        for alias in undone.failures:
            keeper(alias).later(undo(step, 1))

    def _failure(self, votes: _Votes) -> Failure:
        """Of those there are, the one that says most about what may have been done."""
        failures = list(votes.failures.values())
        if not failures:
            return Failure(errors.ConnectionError("no majority"), clock(), "busy")
        worst = next((f for f in failures if f.why == "unanswered"), failures[0])
        count, of_them = len(votes.answers), len(self.quorum.aliases)
        words = f"{count} of {of_them} servers of the quorum answered; one failed with: {worst}"
        refused = isinstance(worst.cause, errors.ResponseError)
        cause = errors.ResponseError(words) if refused else errors.ConnectionError(words)
        return Failure(cause, clock(), worst.why)


class QuorumServer(connections.Server):
    """The sync side: carried out on an event loop of this process, on a thread of its own."""

    def __init__(self, quorum: Quorum) -> None:
        super().__init__(quorum)
        self.quorum = quorum
        _check(quorum)

    def pool(self) -> Any:
        """That of the first server."""
        return connections.server(self.quorum.aliases[0]).pool()

    def run(self, step: Run) -> Answer:
        """As on one server."""

        async def body() -> Answer:
            return await connections.async_server(self.quorum).perform(step)

        answer: Answer = _on_our_loop(body())
        return answer

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """All at once; what failed stands in its place."""

        async def body() -> list[Any]:
            server = connections.async_server(self.quorum)
            performed = map(server.perform, steps)
            return list(await asyncio.gather(*performed, return_exceptions=True))

        answers: list[Any] = _on_our_loop(body()) if steps else []
        for answer in answers:
            if not isinstance(answer, (Answer, Failure)):
                raise answer
        return list(answers)

    def command(self, *args: Any, timeout: float = connections.ATTEMPT) -> Any:
        """As AsyncQuorumServer's."""

        async def body() -> Any:
            server = connections.async_server(self.quorum)
            assert isinstance(server, AsyncQuorumServer)
            return await server.command(*args, timeout=timeout)

        return _on_our_loop(body())

    def _wait(self, step: Wait) -> Answer:
        sent = clock()
        threading.Event().wait(step.seconds)
        return Answer(None, sent, clock())


class _NoHub:
    """Nobody is woken: all ask again."""

    async def ready(self, timeout: float) -> str:
        return "-"


_NOBODY = _Votes({}, {})


def undo(step: Run, bury: int) -> Run:
    """The undo of whatever the token of a step has, on one server."""
    token, keep = step.argv[0], step.argv[-1]
    return Run("release", step.keys, (token, "0", "undo", bury, 0, keep), UNDO_BUDGET)


def _with_fence(step: Run, fence: str) -> Run:
    token, _, *rest = step.argv
    return step._replace(argv=(token, fence, *rest))


def _submit(alias: str, step: Run) -> asyncio.Future[Answer]:
    return connections.async_server(alias).perform(step)


def _count(future: asyncio.Future[Answer], alias: str, votes: _Votes) -> None:
    error = None if future.cancelled() else future.exception()
    if future.cancelled() or error is not None:
        if not isinstance(error, (Failure, type(None))):
            raise error
        cancelled = Failure(errors.ConnectionError("cancelled"), clock(), "unanswered")
        votes.failures[alias] = error or cancelled
    else:
        votes.answers[alias] = future.result()


def _heed(
    alias: str, late: Callable[[str, Answer], None] | None, future: asyncio.Future[Answer]
) -> None:
    if not future.cancelled() and future.exception() is None and late is not None:
        late(alias, future.result())


def _keys(step: Run, token: str, wire: str) -> tuple[str, ...]:
    """The step's keys for another token: only the wake list's ends with it."""
    return tuple(
        key[: -len(token)] + wire if token and key.endswith(f":{token}") else key
        for key in step.keys
    )


def _ms(left: float) -> str:
    return "inf" if left == math.inf else str(int(left))


def _is_paused(reply: Sequence[Any]) -> bool:
    return bool(reply[1] == PAUSED)


def _holding(reply: Sequence[Any]) -> int:
    return int(reply[7])


def _check(quorum: Quorum) -> None:
    """ImproperlyConfigured when one of the aliases can't be used, or two are one server."""
    places = {str(connections.backend_of(alias)._server) for alias in quorum.aliases}
    if len(places) < len(quorum.aliases):
        raise ImproperlyConfigured(f"Two of {quorum.aliases!r} have the same LOCATION.")


# The event loop on which sync code's steps are carried out


class _Loop:
    def __init__(self) -> None:
        self.pid, self.loop = os.getpid(), asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="redis-sync-quorum", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        if self.pid == os.getpid() and self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(1.0)


_loop: _Loop | None = None
_making = threading.Lock()


def _on_our_loop(body: Coroutine[Any, Any, Any]) -> Any:
    """What `body` returns or raises. Interrupted: it is cancelled."""
    global _loop
    with _making:
        if _loop is None or _loop.pid != os.getpid():
            _loop = _Loop()
            atexit.register(_loop.stop)
    future = asyncio.run_coroutine_threadsafe(body, _loop.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
