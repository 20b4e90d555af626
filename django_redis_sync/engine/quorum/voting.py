"""Ask all servers of a quorum at once, count the answers, and remember who granted what."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from redis import exceptions as errors

from ...protocol.plans import UNDO_BUDGET
from ...protocol.scripts import said
from ...protocol.steps import Answer, Failure, Run
from ..clients import urls_of
from ..server import Members, async_server_of
from ..wire import clock

#: Seconds that a server may take at the most; seconds that late ones have after the majority.
PATIENCE, LATE = 1.0, 0.05
#: Seconds for which a server that came too late is not waited for at all.
SUSPECT = 5.0
#: How much faster than ours a server's clock may run, and milliseconds besides.
DRIFT, DRIFT_MS = 0.01, 2


class Votes(NamedTuple):
    """The answers and the failures, by alias; an alias in neither is late."""

    answers: dict[str, Answer]
    failures: dict[str, Failure]

    def saying(self, *words: str) -> dict[str, list[Any]]:
        return {
            alias: answer.reply
            for alias, answer in self.answers.items()
            if answer.reply[0] in words
        }


#: Of a vote that was not held.
NOBODY = Votes({}, {})


class Voters:
    """The servers of a quorum on an event loop, and which of them are waited for."""

    def __init__(self, quorum: Members) -> None:
        self.quorum = quorum
        self._suspects: dict[str, float] = {}

    async def ask(
        self,
        step: Run,
        wanted: tuple[str, ...],
        of: Callable[[str], Run | None] | None = None,
        *,
        late: Callable[[str, Answer], None] | None = None,
        all_of_them: bool = False,
    ) -> Votes:
        """Ask all servers, until enough answers are `wanted` or no longer can be, and LATE more.

        `of(alias)`: the step for a server, None to leave it out. `late`: told of later answers.
        `all_of_them`: a majority is not enough; but a server that was silent is not waited for.
        """
        asked: dict[asyncio.Future[Answer], str] = {}
        votes, end, need = Votes({}, {}), clock() + min(step.timeout, PATIENCE), self.quorum.need
        for alias in self.quorum.aliases:
            mine = step if of is None else of(alias)
            if mine is not None:
                mine = mine._replace(timeout=min(mine.timeout, PATIENCE))
                asked[async_server_of(alias).perform(mine)] = alias
        pending = set(asked)
        while pending:
            right = len(votes.saying(*wanted)) if wanted else len(votes.answers)
            decided = right >= need or right + len(pending) < need
            # A server that was silent lately is asked, but not waited for once the vote is
            # decided: else, while it is down, each undo would last PATIENCE.
            trusted = [f for f in pending if clock() >= self._suspects.get(asked[f], 0.0)]
            if not trusted and (decided or all_of_them):
                break
            # A moment more: the more grants are known, the more servers may fail later.
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
            # Silence is no refusal: the step may have run there, or run yet.
            silent = Failure(errors.TimeoutError("no reply in time"), clock(), "unanswered")
            votes.failures[asked[future]] = silent
            future.add_done_callback(partial(on_late_answer, asked[future], late))
        return votes

    def failure(self, votes: Votes) -> Failure:
        """Of the failures, that which says most about a possible effect."""
        failures = list(votes.failures.values())
        if not failures:
            return Failure(errors.ConnectionError("no majority"), clock(), "busy")
        worst = next((f for f in failures if f.why == "unanswered"), failures[0])
        count, of_them = len(votes.answers), len(self.quorum.aliases)
        words = f"{count} of {of_them} servers of the quorum answered; one failed with: {worst}"
        refused = isinstance(worst.cause, errors.ResponseError)
        cause = errors.ResponseError(words) if refused else errors.ConnectionError(words)
        return Failure(cause, clock(), worst.why)


def _count(future: asyncio.Future[Answer], alias: str, votes: Votes) -> None:
    error = None if future.cancelled() else future.exception()
    if future.cancelled() or error is not None:
        if not isinstance(error, (Failure, type(None))):
            raise error
        cancelled = Failure(errors.ConnectionError("cancelled"), clock(), "unanswered")
        votes.failures[alias] = error or cancelled
    else:
        votes.answers[alias] = future.result()


def on_late_answer(
    alias: str, late: Callable[[str, Answer], None] | None, future: asyncio.Future[Answer]
) -> None:
    if not future.cancelled() and future.exception() is None and late is not None:
        late(alias, future.result())


# The state of each acquisition on the servers

#: Acquisitions that are remembered before those that are over are thrown out; seconds for which
#: one that won nothing yet is.
MAX_REMEMBERED, FORGET = 1000, 300.0


class Held:
    """An acquisition as the servers know it, and the token there.

    `until`: when it is over and may be forgotten. `abandoned`: no caller waits for it any more.
    """

    __slots__ = ("abandoned", "ended", "fences", "tries", "until", "wire")

    def __init__(self, token: str) -> None:
        self.wire, self.tries = token, 0
        self.fences: dict[str, str] = {}
        self.ended: set[str] = set()
        self.until, self.abandoned = clock() + FORGET, False

    def again(self) -> None:
        """One more try: under a token of its own, for the last may be buried somewhere."""
        if self.tries:
            self.wire = secrets.token_hex(16)
        self.tries += 1
        self.fences.clear()
        self.until = clock() + FORGET


#: By quorum and token, for threads and loops alike: taken here, renewed there.
_known: dict[tuple[Members, str], Held] = {}


def held_of(quorum: Members, token: str) -> Held | None:
    """The record of a token; None: none."""
    return _known.get((quorum, token))


def remember(quorum: Members, token: str) -> Held:
    """As held_of; made when there is none."""
    if len(_known) > MAX_REMEMBERED:
        now = clock()
        for key in [key for key, held in list(_known.items()) if held.until < now]:
            _known.pop(key, None)
    return _known.setdefault((quorum, token), Held(token))


def forget(quorum: Members, token: str) -> None:
    _known.pop((quorum, token), None)


# Steps of a plan, as each server is asked them


def undo(step: Run, bury: int) -> Run:
    """The undo of all that the token of a step has, on a server."""
    keep = said(step.verb, step.argv)["keep"]
    return Run("release", step.keys, (step.argv[0], "0", keep, "undo", bury), UNDO_BUDGET)


def with_fence(step: Run, fence: str) -> Run:
    token, _, *rest = step.argv
    return step._replace(argv=(token, fence, *rest))


# The trust in the servers' leases


def check(members: Members) -> None:
    """ImproperlyConfigured when an alias can't be used, or two are the same server."""
    # A server under two aliases would have two votes, and a minority could grant.
    places = {str(urls_of(alias)) for alias in members.aliases}
    if len(places) < len(members.aliases):
        raise ImproperlyConfigured(f"Two of {members.aliases!r} have the same LOCATION.")


def stretched(ms: str) -> str:
    """The lease to ask servers for, so that `ms` may be believed in."""
    return ms if ms == "inf" else str(math.ceil(int(ms) * (1 + DRIFT)) + DRIFT_MS)


def deducted(ms: str) -> float:
    """The milliseconds of a server's lease of `ms` that may be believed in."""
    return math.inf if ms == "inf" else math.floor((int(ms) - DRIFT_MS) / (1 + DRIFT))
