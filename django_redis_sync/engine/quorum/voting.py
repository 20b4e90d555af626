"""Votes: send a step to all servers of a quorum, count the answers, and record the grants."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from django.core.exceptions import ImproperlyConfigured
from redis import exceptions as errors

from ...protocol.plans import UNDO_BUDGET
from ...protocol.scripts import arguments_of
from ...protocol.steps import Answer, Failure, Run
from ..backends import backend_of
from ..server import Members, async_server_of
from ..wire import clock

#: Max seconds that a server may take to answer.
PATIENCE = 1.0
#: Max seconds to wait for further answers after a vote is decided.
LATE = 0.05
#: Seconds for which a server counts as suspect after it didn't answer in time. A vote that is
#: decided doesn't wait for suspect servers.
SUSPECT = 5.0
#: The safety margin of a lease, because clocks may run at different rates: DRIFT times the lease
#: duration, plus DRIFT_MS milliseconds.
DRIFT, DRIFT_MS = 0.01, 2


class Votes(NamedTuple):
    """The answers and the failures of the servers, by alias. If the step was not sent to a server,
    the server is in neither dict. An answer that arrives after the vote is added to `answers`."""

    answers: dict[str, Answer]
    failures: dict[str, Failure]

    def saying(self, *words: str) -> dict[str, list[Any]]:
        """Return the replies that begin with one of `words`, by alias."""
        return {
            alias: answer.reply
            for alias, answer in self.answers.items()
            if answer.reply[0] in words
        }


#: The votes on a step that was not sent to any server.
NOBODY = Votes({}, {})


class Voters:
    """Sends steps to the servers of a quorum, on an event loop. Records which servers are suspect,
    because they didn't answer in time."""

    def __init__(self, quorum: Members) -> None:
        self.quorum = quorum
        self._suspects: dict[str, float] = {}

    async def ask(
        self, step: Run, wanted: tuple[str, ...], of: Callable[[str], Run | None] | None = None
    ) -> Votes:
        """Send a step to all servers, and return their answers. Wait until the vote is decided, and
        then at most LATE seconds for further answers. A vote is decided when a majority has given a
        `wanted` answer, or when this has become impossible.

        `wanted`: the first words of the answers that count. If it is empty, all answers count.
        `of(alias)`: returns the step for the server `alias`, or None to send nothing to it.
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
            # Suspect servers get the step too. But after the vote is decided, don't wait for their
            # answers. Otherwise, each undo would take PATIENCE seconds while a server is down.
            trusted = [f for f in pending if clock() >= self._suspects.get(asked[f], 0.0)]
            if not trusted and decided:
                break
            # Wait a little longer, because a lease with more grants survives more failures.
            if decided:
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
            # The server did not answer. It may have run the step, or may run it later.
            silent = Failure(errors.TimeoutError("no reply in time"), clock(), "unanswered")
            votes.failures[asked[future]] = silent
            future.add_done_callback(partial(_count_late, asked[future], votes))
        return votes

    def failure(self, votes: Votes) -> Failure:
        """Return a Failure for a vote without a majority. Its `why` is "unanswered" if a server may
        have run the step without answering."""
        failures = list(votes.failures.values())
        if not failures:
            return Failure(errors.ConnectionError("no majority"), clock(), "busy")
        worst = next((f for f in failures if f.why == "unanswered"), failures[0])
        count, of_them = len(votes.answers), len(self.quorum.aliases)
        words = f"{count} of {of_them} servers of the quorum answered; one failed with: {worst}"
        is_reply = isinstance(worst.cause, errors.ResponseError)
        kind = errors.ResponseError if is_reply else errors.ConnectionError
        return Failure(kind(words), clock(), worst.why)


def _count(future: asyncio.Future[Answer], alias: str, votes: Votes) -> None:
    try:
        votes.answers[alias] = future.result()
    except Failure as failure:
        votes.failures[alias] = failure
    except asyncio.CancelledError:  # the event loop ends
        cancelled = errors.ConnectionError("cancelled")
        votes.failures[alias] = Failure(cancelled, clock(), "unanswered")


def _count_late(alias: str, votes: Votes, future: asyncio.Future[Answer]) -> None:
    with contextlib.suppress(Failure, asyncio.CancelledError):
        votes.answers[alias] = future.result()


# What this process remembers of each token

#: Number of remembered tokens above which the process forgets outdated tokens.
MAX_REMEMBERED = 1000
#: Seconds after which a token without a grant is outdated.
FORGET = 300.0


class Remembered:
    """What this process remembers of a token.

    - `wire`: the token that is sent to the servers. Each new try of the acquire uses a new token.
    - `tries`: number of tries of the acquire. `votes`: the votes of the last try.
    - `ended`: the aliases of the servers that have released the lease.
    - `until`: when this process may forget the token.
    - `abandoned`: True if the caller no longer waits for the acquire.
    """

    def __init__(self, token: str) -> None:
        self.wire, self.tries, self.votes = token, 0, NOBODY
        self.ended: set[str] = set()
        self.until, self.abandoned = clock() + FORGET, False

    @property
    def fences(self) -> dict[str, str]:
        """The fencing tokens of the grants, by alias. This includes grants that arrived after the
        vote. Such a grant didn't count in the vote, but must be renewed and released."""
        return {alias: reply[1] for alias, reply in self.votes.saying("ok").items()}

    def again(self) -> None:
        """Begin a try of the acquire. From the second try on, use a new token, because servers may
        reject the previous token."""
        if self.tries:
            self.wire = secrets.token_hex(16)
        self.tries += 1
        self.votes = NOBODY
        self.until = clock() + FORGET


#: What this process remembers of each token of a quorum. All threads and event loops share this
#: dict, because a lease may be acquired on one thread and renewed on another.
_known: dict[tuple[Members, str], Remembered] = {}


def remembered_of(quorum: Members, token: str) -> Remembered | None:
    """Return what this process remembers of a token, or None."""
    return _known.get((quorum, token))


def remember(quorum: Members, token: str) -> Remembered:
    """Return the Remembered object of a token. If the process has none yet, make one."""
    if len(_known) > MAX_REMEMBERED:
        now = clock()
        for key in [key for key, held in list(_known.items()) if held.until < now]:
            _known.pop(key, None)
    return _known.setdefault((quorum, token), Remembered(token))


def forget(quorum: Members, token: str) -> None:
    """Remove the Remembered object of a token."""
    _known.pop((quorum, token), None)


# Steps that are sent to a server


def undo(step: Run, tombstone: int) -> Run:
    """Return a step that removes the token of `step` and the token's lease from a server.
    `tombstone`: 1 to also write a tombstone, so that the server rejects a late acquire; else 0."""
    keep = arguments_of(step.verb, step.argv)["keep"]
    return Run("release", step.keys, (step.argv[0], "0", keep, "undo", tombstone), UNDO_BUDGET)


# Margins


def check(members: Members) -> None:
    """Raise ImproperlyConfigured if an alias can't be used, or if two aliases have the same
    LOCATION."""
    # If two aliases had the same server, this server would have two votes.
    places = {str(backend_of(alias).urls) for alias in members.aliases}
    if len(places) < len(members.aliases):
        raise ImproperlyConfigured(f"Two of {members.aliases!r} have the same LOCATION.")


def stretched(ms: str) -> str:
    """Return the lease duration to request from servers, in milliseconds: `ms` plus the safety
    margin that `deducted` subtracts."""
    return ms if ms == "inf" else str(math.ceil(int(ms) * (1 + DRIFT)) + DRIFT_MS)


def deducted(ms: str) -> float:
    """Return how long a holder may use a lease, in milliseconds: `ms`, the duration of the lease on
    a server, minus the safety margin."""
    return math.inf if ms == "inf" else math.floor((int(ms) - DRIFT_MS) / (1 + DRIFT))
