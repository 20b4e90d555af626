"""A heap of due times, which removes an entry only when it becomes due."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

#: Stale entries that the heap may have, in addition to as many as it has valid ones.
_STALE = 64


class Schedule:
    """The times at which tokens are due. From its `early` time on, a token may be taken together
    with one that is due.

    Any thread may call `drop`, also in a destructor, and `clear`. Only the owner's thread may call
    the other methods. A token that is dropped, or put again, leaves a stale entry in the heap,
    which is skipped when its time comes.
    """

    # Invariant: each token of _when is in the heap with the same pair, or was taken.
    def __init__(self) -> None:
        self._when: dict[str, tuple[float, float]] = {}
        self._heap: list[tuple[tuple[float, float], str]] = []

    def put(self, token: str, at: float, early: float) -> None:
        """Schedule a token, instead of its previous time."""
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
        """Return the tokens that are due at `now`, and those that may join them, most urgent first.

        Return none if no token is due. The caller must `put` or `drop` each.
        """
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
