"""The async side of a quorum: its verbs, each a vote."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from ...protocol.plans import Answer, Run, Sleep, Step, Wait
from ...protocol.reasons import FULL, PAUSED
from ...protocol.scripts import said
from ..keeper import keeper
from ..loops import Errands
from ..server import AsyncServer, server_of
from ..wire import ATTEMPT, clock
from .held import Held, forget, held_of, remember
from .members import Members, check, deducted, stretched
from .steps import undo, with_fence
from .voting import LATE, NOBODY, PATIENCE, Voters, Votes, heed

#: Milliseconds until the next try: after votes that were split, and when another holds the name.
SPLIT, HELD = (2, 80), (20, 250)


class AsyncQuorumServer(AsyncServer):
    """The servers of a quorum on an event loop. Belief in an answer counts from the send."""

    def __init__(self, quorum: Members) -> None:
        self.alias, self.quorum = quorum, quorum
        self.hub = NoHub()  # type: ignore[assignment]
        self._voters = Voters(quorum)
        self._errands = Errands()
        check(quorum)

    def perform(self, step: Step) -> asyncio.Future[Answer]:
        """As on a single server: a step is carried out even if its future is cancelled."""
        if type(step) is not Run:
            return super().perform(Sleep(step.seconds) if isinstance(step, Wait) else step)
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._errands.start(self.run(step), done)
        return done

    async def aclose(self) -> None:
        """As of a single server: those of the quorum are closed by themselves."""
        await self._errands.aclose()

    def drop(self) -> None:
        """As of one server."""
        self._errands.drop()

    async def run(self, step: Run) -> Answer:
        """The majority's answer to a verb. Failure when none of the majorities can be asked."""
        sent = clock()
        reply = await getattr(self, f"_{step.verb}", self._tell)(step)
        return Answer(reply, sent, clock())

    async def command(self, *args: Any, timeout: float = ATTEMPT) -> Any:
        """Sent to all of them; the reply of the first that answers."""

        def one(alias: str) -> Any:
            return server_of(alias).command(*args, timeout=min(timeout, PATIENCE))

        pending = {asyncio.ensure_future(asyncio.to_thread(one, a)) for a in self.quorum.aliases}
        for future in pending:
            future.add_done_callback(partial(heed, "", None))
        while True:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            good = [future for future in done if future.exception() is None]
            if good and pending:
                await asyncio.wait(pending, timeout=LATE)
            if good or not pending:
                return [*good, *done][0].result()

    # The verbs

    async def _acquire(self, step: Run) -> list[Any]:
        token, lease, how, *rest = step.argv
        sent, held = clock(), remember(self.quorum, token)
        held.again()
        # The servers' own queues are not used: "again" is one more try.
        step = step._replace(argv=(held.wire, stretched(lease), "try", *rest))

        # A grant after the vote does not decide it, but renewals and the release go there too.
        def late(alias: str, answer: Answer) -> None:
            if answer.reply[0] == "ok" and not held.abandoned:
                held.fences[alias] = answer.reply[1]

        votes = await self._voters.ask(step, ("ok",), late=late)
        oks = votes.saying("ok")
        held.fences.update({alias: reply[1] for alias, reply in oks.items()})
        if len(oks) >= self.quorum.need and not held.abandoned:
            left = self._agreed(reply[2] for reply in oks.values())
            # The vote itself took time: a lease that is over by its end is no grant.
            if left / 1000 > clock() - sent:
                held.until = sent + left / 1000
                fence = str(max(int(reply[1]) for reply in oks.values()))
                return ["ok", fence, _ms(left)]
        # The grants of a minority would keep every other caller from a majority until they end.
        await self._undo(step, held, votes)
        reply = self._refused(votes, how)
        if reply[0] != "wait":
            forget(self.quorum, token)
        return reply

    def _refused(self, votes: Votes, how: str) -> list[Any]:
        """The refusal of an ask without a majority. Failure when too few answered to say."""
        # A single server's word is enough: these are mistakes of the caller that no retry mends.
        for reply in votes.saying("kind", "large").values():
            return reply
        if len(votes.answers) < self.quorum.need:
            raise self._voters.failure(votes)
        noes = list(votes.saying("no").values())
        if how == "try":
            return max(noes, key=_is_paused, default=["no", FULL, 0])
        # Random, or rivals that split this vote would meet again at the next.
        span = HELD if len(noes) >= self.quorum.need else SPLIT
        return ["wait", "0", str(random.randint(*span)), 0]

    async def _renew(self, step: Run) -> list[Any]:
        token, _, how, ms, *rest = step.argv
        held = held_of(self.quorum, token)
        if held is None:
            return ["lost"]
        asked, sent = stretched(ms) if how == "set" else ms, clock()

        def of(alias: str) -> Run | None:
            fence = held.fences.get(alias)
            argv = (held.wire, fence, how, asked, *rest)
            return None if fence is None else step._replace(argv=argv)

        votes = await self._voters.ask(step, ("ok",), of)
        oks = votes.saying("ok")
        for alias in votes.saying("lost"):
            held.fences.pop(alias, None)
        if len(oks) >= self.quorum.need:
            left = self._agreed(reply[1] for reply in oks.values())
            if left > 0:
                # Renewals overlap: it may be forgotten after the last of them.
                held.until = max(held.until, sent + left / 1000)
                return ["ok", _ms(left)]
        # Silent servers may have renewed it: lost only when no majority can have it any more.
        if len(held.fences) >= self.quorum.need:
            raise self._voters.failure(votes)
        await self._undo(step._replace(argv=(held.wire, *step.argv[1:])), held, NOBODY)
        forget(self.quorum, token)
        return ["lost"]

    async def _release(self, step: Run) -> list[Any]:
        token, how = step.argv[0], said(step.verb, step.argv)["how"]
        held = held_of(self.quorum, token)
        if held is None or how == "giveup":  # a try that failed has left nothing
            forget(self.quorum, token)
            return ["lost" if how == "release" else "gone"]
        step = step._replace(argv=(held.wire, *step.argv[1:]))
        if how == "release":
            return await self._give_back(step, token, held)
        held.abandoned = True  # an acquire of it may be on its way
        await self._undo(step, held, NOBODY)
        forget(self.quorum, token)
        return ["gone"]

    async def _give_back(self, step: Run, token: str, held: Held) -> list[Any]:
        def of(alias: str) -> Run | None:
            if alias in held.ended:  # asked again after a failure, it would say "lost"
                return None
            fence = held.fences.get(alias)
            return undo(step, 1) if fence is None else with_fence(step, fence)

        votes = await self._voters.ask(step, ("ok",), of)
        held.ended.update(votes.saying("ok"))
        over = {
            alias
            for alias in self.quorum.aliases
            if alias not in held.fences or alias in votes.saying("lost")
        } - held.ended
        done = len(held.ended) >= self.quorum.need
        # Over on a minority proves nothing: the others may have it still, and make a majority.
        if not done and len(over) <= len(self.quorum.aliases) - self.quorum.need:
            raise self._voters.failure(votes)
        for alias in votes.failures:
            keeper(alias).later(undo(step, 1))
        forget(self.quorum, token)
        return ["ok" if done else "lost"]

    async def _inspect(self, step: Run) -> list[Any]:
        """The view of a server such that a majority shows no fewer holders."""
        votes = await self._voters.ask(step, ())
        if len(votes.answers) < self.quorum.need:
            raise self._voters.failure(votes)
        views = sorted((answer.reply for answer in votes.answers.values()), key=_holding)
        return list(views[-self.quorum.need])

    async def _tell(self, step: Run) -> list[Any]:
        """An operator's verb: done by a majority, or a Failure."""
        votes = await self._voters.ask(step, ())
        if len(votes.answers) < self.quorum.need:
            raise self._voters.failure(votes)
        return list(next(iter(votes.answers.values())).reply)

    # Inside

    def _agreed(self, leases: Iterable[str]) -> float:
        """Milliseconds for which a majority holds."""
        return sorted(map(deducted, leases), reverse=True)[self.quorum.need - 1]

    async def _undo(self, step: Run, held: Held, votes: Votes) -> None:
        """Leave nothing of a token anywhere; an unreachable server is told later.

        Buried where an acquire may still be on its way.
        """

        def of(alias: str) -> Run | None:
            answered = alias in votes.answers
            if answered and alias not in held.fences:
                return None  # it granted nothing
            return undo(step, int(not answered))

        undone = await self._voters.ask(undo(step, 1), (), of, all_of_them=True)
        held.fences.clear()
        for alias in undone.failures:
            keeper(alias).later(undo(step, 1))


class NoHub:
    """No waiter is woken: all ask again."""

    async def ready(self, timeout: float) -> str:
        return "-"


def _ms(left: float) -> str:
    return "inf" if left == math.inf else str(int(left))


def _is_paused(reply: Sequence[Any]) -> bool:
    return bool(reply[1] == PAUSED)


def _holding(reply: Sequence[Any]) -> int:
    return int(reply[7])
