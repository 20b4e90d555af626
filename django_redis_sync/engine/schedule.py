"""A heap of due times. An entry that is no longer valid stays in the heap until it is due."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

#: Max stale entries in the heap, in addition to the number of its valid entries.
_STALE = 64


class Schedule:
    """The times at which tokens are due. Each token also has an `early` time. Once this has passed,
    the token may be taken together with another token that is due.

    Any thread may call `drop`, also in a destructor, and `clear`. Only the owner's thread may call
    the other methods. If a token is dropped or put again, the heap keeps a stale entry, which is
    skipped when its time comes.
    """

    # Invariant: for each token of _when that was not taken, the heap has an entry with its pair of
    # times.
    def __init__(self) -> None:
        self._when: dict[str, tuple[float, float]] = {}
        self._heap: list[tuple[tuple[float, float], str]] = []

    def put(self, token: str, at: float, early: float) -> None:
        """Schedule a token. Its previous time, if any, is no longer valid."""
        self._when[token] = when = at, early
        heapq.heappush(self._heap, (when, token))
        if len(self._heap) > 2 * len(self._when) + _STALE:
            self._heap = [(when, token) for token, when in self._when.copy().items()]
            heapq.heapify(self._heap)

    def drop(self, token: str) -> None:
        self._when.pop(token, None)

    def clear(self) -> None:
        self._when.clear()

    def take(self, now: float) -> Iterator[str]:
        """Yield the tokens that are due at `now`, and those that may be taken together with them.
        The most urgent token comes first. Yield none if no token is due. The caller must `put` or
        `drop` each."""
        if self.earliest() > now:
            return
        while self._heap and self._heap[0][0][1] <= now:
            yield heapq.heappop(self._heap)[1]
            self.earliest()

    def earliest(self) -> float:
        """Return when the next token is due. Remove stale entries from the top of the heap."""
        while self._heap:
            when, token = self._heap[0]
            if self._when.get(token) is when:
                return when[0]
            heapq.heappop(self._heap)
        return math.inf
