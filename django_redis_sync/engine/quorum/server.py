"""Server objects for a quorum. They send each step to all servers of the quorum, and a majority of
the answers decides. AsyncQuorumServer does this on the caller's event loop. QuorumServer is for
sync code, and does this on an event loop in a thread."""

from __future__ import annotations

import asyncio
import math
import os
import queue
import random
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from ...protocol.reasons import FULL, PAUSED
from ...protocol.scripts import arguments_of
from ...protocol.steps import Answer, Failure, Run, Sleep, Step, Wait
from ..hub import NoHub
from ..loops import BackgroundTasks
from ..mutex import Mutex, start_thread
from ..renewal import renewer
from ..server import AsyncServer, Members, Server, async_server_of, server_of
from ..wire import ATTEMPT, clock
from . import voting


class QuorumServer(Server):
    """Carries out steps on a quorum, in sync code. The steps run on an event loop in a separate
    thread. All quorums of the process share this event loop."""

    def __init__(self, quorum: Members) -> None:
        super().__init__(quorum)
        self.quorum = quorum

    def pool(self) -> Any:
        """Return the pool of the first server."""
        return server_of(self.quorum.aliases[0]).pool()

    def run(self, step: Run, asking: bool = False) -> Answer:
        """Run a script and return the majority's answer. Raise Failure if no majority answers."""
        (answer,) = self.many([step])
        if isinstance(answer, Failure):
            raise answer
        return answer

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """Send several steps at the same time. Return an Answer or a Failure for each step."""

        async def body() -> list[Any]:
            server = async_server_of(self.quorum)
            performed = map(server.perform, steps)
            return list(await asyncio.gather(*performed, return_exceptions=True))

        answers: list[Any] = on_our_loop(body()) if steps else []
        for answer in answers:
            if not isinstance(answer, (Answer, Failure)):
                raise answer
        return list(answers)

    def command(self, *args: Any, timeout: float = ATTEMPT, asking: bool = False) -> Any:
        """Send a command to all servers, one after the other. Return the first reply. Raise Failure
        if no server answers."""
        replies, failures = [], []
        timeout = min(timeout, voting.PATIENCE)
        for alias in self.quorum.aliases:
            try:
                replies.append(server_of(alias).command(*args, timeout=timeout))
            except Failure as failure:
                failures.append(failure)
        if not replies:
            raise failures[0]
        return replies[0]

    def wait(self, step: Wait) -> Answer:
        """Sleep for `step.seconds`, because a quorum sends no wake-up messages."""
        return self.perform(Sleep(step.seconds))


class _Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        """Start the thread. Raise RuntimeError if the thread can't be started."""
        self.pid, self.loop = os.getpid(), asyncio.new_event_loop()
        try:
            self._thread = start_thread(self.loop.run_forever, "redis-sync-quorum")
        except RuntimeError:
            self.loop.close()
            raise

    @property
    def runs(self) -> bool:
        return self.pid == os.getpid() and self._thread.is_alive()

    def do(self, body: Coroutine[Any, Any, Any]) -> Any:
        """Run `body` on this loop and return its result. If the calling thread is interrupted,
        cancel `body`."""
        # Don't use concurrent.futures.Future, because it has a lock. If a signal handler's
        # exception interrupts the caller, the lock may stay locked. The loop would then wait for
        # the lock forever.
        done: queue.SimpleQueue[asyncio.Task[Any]] = queue.SimpleQueue()
        begun: list[asyncio.Task[Any]] = []

        def begin() -> None:
            begun.append(self.loop.create_task(body))
            begun[0].add_done_callback(done.put)

        self.loop.call_soon_threadsafe(begin)
        try:
            task = done.get()
        except BaseException:
            # The loop runs this lambda after `begin`, so the task exists.
            self.loop.call_soon_threadsafe(lambda: begun[0].cancel())
            raise
        return task.result()


_loop: _Loop | None = None
_making = Mutex()


def on_our_loop(body: Coroutine[Any, Any, Any]) -> Any:
    """Run `body` on the process's event loop for quorums, and return its result. Raise Failure if
    the loop's thread can't be started."""
    while _loop is None or not _loop.runs:
        try:
            _making.run(_make_loop)
        except RuntimeError as error:
            body.close()
            raise Failure(error, clock(), "unreachable") from error
    return _loop.do(body)


def _make_loop() -> None:
    global _loop
    if _loop is None or not _loop.runs:
        _loop = _Loop()


#: Min and max milliseconds of the random pause before the next try of an acquire. SPLIT: if the
#: votes were split, so that no caller got a majority. HELD: if another caller holds the name.
SPLIT, HELD = (2, 80), (20, 250)


class AsyncQuorumServer(AsyncServer):
    """Carries out steps on a quorum, on an event loop. The duration of a lease counts from the time
    at which the acquire or the renewal was sent."""

    def __init__(self, quorum: Members) -> None:
        self.alias, self.quorum = quorum, quorum
        self.hub = NoHub()  # type: ignore[assignment]
        self._voters = voting.Voters(quorum)
        self._background = BackgroundTasks()
        voting.check(quorum)

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        """Carry out a step. Return a future of its Answer, or of a Failure if there was no usable
        answer. If the future is cancelled, the step is still carried out."""
        if type(step) is not Run:
            return super().perform(Sleep(step.seconds) if isinstance(step, Wait) else step)
        return self._background.start(self.run(step))

    async def aclose(self) -> None:
        """Wait until the running steps have ended. The servers of the quorum are closed
        separately."""
        await self._background.aclose()

    async def run(self, step: Run) -> Answer:
        """Run a script and return the majority's answer. Raise Failure if no majority answers."""
        sent = clock()
        reply = await getattr(self, f"_{step.verb}", self._by_majority)(step)
        return Answer(reply, sent, clock())

    # The scripts

    async def _acquire(self, step: Run) -> list[Any]:
        token, lease, how, *rest = step.argv
        sent, held = clock(), voting.remember(self.quorum, token)
        held.again()
        # No request is sent with the mode "wait", not even the repeated request of a waiter,
        # because a quorum does not use the servers' queues.
        mode = "skip" if how == "skip" else "try"
        step = step._replace(argv=(held.wire, voting.stretched(lease), mode, *rest))
        votes = held.votes = await self._voters.ask(step, ("ok",))
        oks = votes.saying("ok")
        if len(oks) >= self.quorum.need and not held.abandoned:
            left = self._agreed(reply[2] for reply in oks.values())
            # Return the grant only if the lease did not expire during the vote.
            if left / 1000 > clock() - sent:
                held.until = sent + left / 1000
                fence = str(max(int(reply[1]) for reply in oks.values()))
                return ["ok", fence, _ms(left)]
        # Undo the grants of this try, because they could keep another caller from a majority.
        await self._undo(step, held, votes)
        reply = self._rejection(votes, how)
        if reply[0] != "wait":
            voting.forget(self.quorum, token)
        return reply

    def _rejection(self, votes: voting.Votes, how: str) -> list[Any]:
        """Return the reply to an acquire that got no majority. Raise Failure if too few servers
        answered."""
        # The replies "kind" and "large" mean that the caller made a mistake, so a retry can't
        # succeed. One such reply is enough.
        for reply in votes.saying("kind", "large").values():
            return reply
        if len(votes.answers) < self.quorum.need:
            raise self._voters.failure(votes)
        noes = list(votes.saying("no").values())
        if how in ("try", "skip"):
            return max(noes, key=lambda reply: reply[1] == PAUSED, default=["no", FULL, 0])
        # The pause is random. If callers paused equally long, they would split the next vote too.
        span = HELD if len(noes) >= self.quorum.need else SPLIT
        return ["wait", "0", str(random.randint(*span)), 0]

    async def _renew(self, step: Run) -> list[Any]:
        token, _, how, ms, *rest = step.argv
        held = voting.remembered_of(self.quorum, token)
        if held is None:
            return ["lost"]
        asked, sent = voting.stretched(ms) if how == "set" else ms, clock()

        def of(alias: str) -> Run | None:
            fence = held.fences.get(alias)
            argv = (held.wire, fence, how, asked, *rest)
            return None if fence is None else step._replace(argv=argv)

        votes = await self._voters.ask(step, ("ok",), of)
        oks = votes.saying("ok")
        for alias in votes.saying("lost"):
            held.votes.answers.pop(alias, None)
        if len(oks) >= self.quorum.need:
            left = self._agreed(reply[1] for reply in oks.values())
            if left > 0:
                # Several renewals may be in flight, so keep the latest expiry.
                held.until = max(held.until, sent + left / 1000)
                return ["ok", _ms(left)]
        # `held.fences` has the servers that may still have the lease, including those that didn't
        # answer. The lease is lost only if `held.fences` has less than a majority of the servers.
        if len(held.fences) >= self.quorum.need:
            raise self._voters.failure(votes)
        await self._undo(step._replace(argv=(held.wire, *step.argv[1:])), held, voting.NOBODY)
        voting.forget(self.quorum, token)
        return ["lost"]

    async def _release(self, step: Run) -> list[Any]:
        token, how = step.argv[0], arguments_of(step.verb, step.argv)["how"]
        if how == "lost":
            return await self._by_majority(step)
        held = voting.remembered_of(self.quorum, token)
        # There is nothing to release after a wait, because a failed try undoes its grants.
        if held is None or how in ("giveup", "withdraw"):
            voting.forget(self.quorum, token)
            return ["lost" if how == "release" else "gone"]
        step = step._replace(argv=(held.wire, *step.argv[1:]))
        if how == "release":
            return await self._give_back(step, token, held)
        held.abandoned = True  # if the acquire still runs, it must not return a grant
        await self._undo(step, held, voting.NOBODY)
        voting.forget(self.quorum, token)
        return ["gone"]

    async def _give_back(self, step: Run, token: str, held: voting.Remembered) -> list[Any]:
        def of(alias: str) -> Run | None:
            if alias in held.ended:
                # This server has already released the lease. A repeated release would be answered
                # with "lost".
                return None
            fence = held.fences.get(alias)
            argv = (held.wire, fence, *step.argv[2:])
            return voting.undo(step, 1) if fence is None else step._replace(argv=argv)

        votes = await self._voters.ask(step, ("ok",), of)
        held.ended.update(votes.saying("ok"))
        lost = {*self.quorum.aliases} - held.fences.keys() | votes.saying("lost").keys()
        lost -= held.ended
        done = len(held.ended) >= self.quorum.need
        # If a majority of the servers has not lost the lease, but some of them didn't answer, raise
        # Failure, so that the plan repeats the release.
        if not done and len(lost) <= len(self.quorum.aliases) - self.quorum.need:
            raise self._voters.failure(votes)
        for alias in votes.failures:
            renewer(alias).later(voting.undo(step, 1))
        voting.forget(self.quorum, token)
        return ["ok" if done else "lost"]

    async def _inspect(self, step: Run) -> list[Any]:
        """Sort the servers' replies by number of holders, the largest number first. Return the
        reply at position `quorum.need`, so that a majority of the servers reports at least as many
        holders."""
        replies = await self._replies(step)
        views = sorted(replies, key=lambda reply: int(reply[7]))  # item 7: number of holders
        return views[-self.quorum.need]

    async def _by_majority(self, step: Run) -> list[Any]:
        """Run a script on all servers. Return any of the replies, if a majority answers."""
        return (await self._replies(step))[0]

    async def _replies(self, step: Run) -> list[list[Any]]:
        """Run a script on all servers and return the replies. Raise Failure if no majority
        answers."""
        votes = await self._voters.ask(step, ())
        if len(votes.answers) < self.quorum.need:
            raise self._voters.failure(votes)
        return [answer.reply for answer in votes.answers.values()]

    # Inside

    def _agreed(self, leases: Iterable[str]) -> float:
        """Return the lease duration that a majority of the servers grants, minus the safety margin.
        `leases`: the lease durations in the servers' replies. All are in milliseconds."""
        return sorted(map(voting.deducted, leases), reverse=True)[self.quorum.need - 1]

    async def _undo(self, step: Run, held: voting.Remembered, votes: voting.Votes) -> None:
        """Remove a token from all servers that may have it. On servers that did not answer the
        acquire, also write a tombstone, so that they reject the acquire if it arrives late. If a
        server can't be reached, retry in the background."""

        def of(alias: str) -> Run | None:
            answered = alias in votes.answers
            if answered and alias not in held.fences:
                return None  # this server answered, but granted nothing
            return voting.undo(step, int(not answered))

        undone = await self._voters.ask(voting.undo(step, 1), (), of)
        held.votes = voting.NOBODY
        for alias in undone.failures:
            renewer(alias).later(voting.undo(step, 1))


def _ms(left: float) -> str:
    return "inf" if left == math.inf else str(int(left))
