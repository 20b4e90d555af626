"""The state of each acquisition on the servers of a quorum."""

from __future__ import annotations

import secrets

from ..wire import clock
from .members import Members

#: Acquisitions that are remembered before those that are over are thrown out; seconds for which
#: one that won nothing yet is.
MOST_KNOWN, FORGET = 1000, 300.0


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
    if len(_known) > MOST_KNOWN:
        now = clock()
        for key in [key for key, held in list(_known.items()) if held.until < now]:
            _known.pop(key, None)
    return _known.setdefault((quorum, token), Held(token))


def forget(quorum: Members, token: str) -> None:
    _known.pop((quorum, token), None)
