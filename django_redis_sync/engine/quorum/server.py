"""Server objects for a quorum. They put each step to a vote of the quorum's servers.
AsyncQuorumServer does this on an event loop. QuorumServer is for sync code, and does this on an
event loop in a thread."""

from __future__ import annotations

import asyncio
import math
import os
import queue
import random
import threading
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from ...protocol.reasons import FULL, PAUSED
from ...protocol.scripts import arguments_of
from ...protocol.steps import Answer, Failure, Run, Sleep, Step, Wait
from ..hub import NoHub
from ..loops import BackgroundTasks
from ..renewal import renewer
from ..server import AsyncServer, Members, Server, async_server_of, server_of
from ..wire import ATTEMPT, clock
from . import voting


class QuorumServer(Server):
    """The server object of a quorum, in sync code. It carries out steps on an event loop in a
    separate thread. The process has one such loop."""

    def __init__(self, quorum: Members) -> None:
        super().__init__(quorum)
        self.quorum = quorum

    def pool(self) -> Any:
        """Return the pool of the first server."""
        return server_of(self.quorum.aliases[0]).pool()

    def run(self, step: Run, asking: bool = False) -> Answer:
        """Put a step to a vote. Return the answer. Raise Failure if there was no usable answer."""
        (answer,) = self.many([step])
        if isinstance(answer, Failure):
            raise answer
        return answer

    def many(self, steps: Sequence[Run]) -> list[Answer | Failure]:
        """Put several steps to a vote at the same time. Return an Answer or a Failure for each."""

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
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="redis-sync-quorum", daemon=True
        )
        try:
            self._thread.start()
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
            # The lambda runs after `begin`, so the task exists.
            self.loop.call_soon_threadsafe(lambda: begun[0].cancel())
            raise
        return task.result()


_loop: _Loop | None = None
#: This lock keeps two threads from making a loop at the same time. An interrupted thread may leave
#: it locked, so other threads wait for the lock for at most one second.
_making = threading.Lock()


def on_our_loop(body: Coroutine[Any, Any, Any]) -> Any:
    """Run `body` on the process's event loop for quorums, and return its result. Raise Failure if
    the loop's thread can't be started."""
    global _loop
    while _loop is None or not _loop.runs:
        first = _making.acquire(timeout=1)
        try:
            if _loop is None or not _loop.runs:
                _loop = _Loop()
        except RuntimeError as error:
            body.close()
            raise Failure(error, clock(), "unreachable") from error
        finally:
            if first:
                _making.release()
    return _loop.do(body)


#: Min and max milliseconds of the random pause before the next try of an acquire. SPLIT applies
#: after a vote in which no caller got a majority. HELD applies while another caller holds the name.
SPLIT, HELD = (2, 80), (20, 250)


class AsyncQuorumServer(AsyncServer):
    """The server object of a quorum, on an event loop. Lease durations count from the time at which
    the step was sent."""

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
        # The servers' queues are not used. So every request is sent to the servers with the mode
        # "try", also the repeated request of a waiter.
        step = step._replace(argv=(held.wire, voting.stretched(lease), "try", *rest))
        votes = held.votes = await self._voters.ask(step, ("ok",))
        oks = votes.saying("ok")
        if len(oks) >= self.quorum.need and not held.abandoned:
            left = self._agreed(reply[2] for reply in oks.values())
            # The vote took some time, so the lease may already have expired.
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
        # These replies report a mistake of the caller, so a retry can't succeed. A reply from one
        # server is enough.
        for reply in votes.saying("kind", "large").values():
            return reply
        if len(votes.answers) < self.quorum.need:
            raise self._voters.failure(votes)
        noes = list(votes.saying("no").values())
        if how == "try":
            return max(noes, key=lambda reply: reply[1] == PAUSED, default=["no", FULL, 0])
        # The pause is random, so that the callers that split this vote don't split the next vote.
        span = HELD if len(noes) >= self.quorum.need else SPLIT
        return ["wait", "0", str(random.randint(*span)), 0]

    async def _renew(self, step: Run) -> list[Any]:
        token, _, how, ms, *rest = step.argv
        held = voting.held_of(self.quorum, token)
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
                # Several renewals may be in flight, so keep the latest end.
                held.until = max(held.until, sent + left / 1000)
                return ["ok", _ms(left)]
        # `held.fences` still contains the servers that didn't answer, because they may have renewed
        # the lease. The lease is lost only if fewer servers than a majority may still have it.
        if len(held.fences) >= self.quorum.need:
            raise self._voters.failure(votes)
        await self._undo(step._replace(argv=(held.wire, *step.argv[1:])), held, voting.NOBODY)
        voting.forget(self.quorum, token)
        return ["lost"]

    async def _release(self, step: Run) -> list[Any]:
        token, how = step.argv[0], arguments_of(step.verb, step.argv)["how"]
        if how == "lost":
            return await self._by_majority(step)
        held = voting.held_of(self.quorum, token)
        if held is None or how == "giveup":  # nothing to undo: each failed try has
            voting.forget(self.quorum, token)
            return ["lost" if how == "release" else "gone"]
        step = step._replace(argv=(held.wire, *step.argv[1:]))
        if how == "release":
            return await self._give_back(step, token, held)
        held.abandoned = True  # if the acquire still runs, it must not return a grant
        await self._undo(step, held, voting.NOBODY)
        voting.forget(self.quorum, token)
        return ["gone"]

    async def _give_back(self, step: Run, token: str, held: voting.Held) -> list[Any]:
        def of(alias: str) -> Run | None:
            if alias in held.ended:
                # This server has released the lease already. It would now answer "lost".
                return None
            fence = held.fences.get(alias)
            argv = (held.wire, fence, *step.argv[2:])
            return voting.undo(step, 1) if fence is None else step._replace(argv=argv)

        votes = await self._voters.ask(step, ("ok",), of)
        held.ended.update(votes.saying("ok"))
        lost = {*self.quorum.aliases} - held.fences.keys() | votes.saying("lost").keys()
        lost -= held.ended
        done = len(held.ended) >= self.quorum.need
        # The servers that haven't lost the lease may still be a majority. So fail, and let the plan
        # repeat the release.
        if not done and len(lost) <= len(self.quorum.aliases) - self.quorum.need:
            raise self._voters.failure(votes)
        for alias in votes.failures:
            renewer(alias).later(voting.undo(step, 1))
        voting.forget(self.quorum, token)
        return ["ok" if done else "lost"]

    async def _inspect(self, step: Run) -> list[Any]:
        """Return the reply of one server, chosen by its number of holders. A majority of the
        servers has at least as many holders. Of the replies for which this is true, return the one
        with the most holders."""
        replies = await self._replies(step)
        views = sorted(replies, key=lambda reply: int(reply[7]))  # item 7: number of holders
        return views[-self.quorum.need]

    async def _by_majority(self, step: Run) -> list[Any]:
        """Run a script on all servers and return one of the replies."""
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
        """Return the milliseconds for which a majority of the servers has the lease. `leases`: the
        lease duration in milliseconds from each server's reply."""
        return sorted(map(voting.deducted, leases), reverse=True)[self.quorum.need - 1]

    async def _undo(self, step: Run, held: voting.Held, votes: voting.Votes) -> None:
        """Remove a token from all servers that may have it. If a server can't be reached, retry
        later. Write a tombstone on the servers that may still receive the token's acquire."""

        def of(alias: str) -> Run | None:
            answered = alias in votes.answers
            if answered and alias not in held.fences:
                return None  # this server answered, and has granted nothing
            return voting.undo(step, int(not answered))

        undone = await self._voters.ask(voting.undo(step, 1), (), of)
        held.votes = voting.NOBODY
        for alias in undone.failures:
            renewer(alias).later(voting.undo(step, 1))


def _ms(left: float) -> str:
    return "inf" if left == math.inf else str(int(left))
