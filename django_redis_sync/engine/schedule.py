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

    Any thread may call `put` and `drop`, also in a destructor. Only the owner's thread may call the
    other methods. A token that is dropped, or put again, leaves a stale entry in the heap, which is
    skipped when its time comes. A token that is dropped soon enough never enters the heap.
    """

    # Invariant: each token of _when is in _fresh, or in the heap with the same pair, or was taken.
    def __init__(self) -> None:
        self._when: dict[str, tuple[float, float]] = {}
        self._fresh: dict[str, None] = {}
        self._heap: list[tuple[tuple[float, float], str]] = []

    def __len__(self) -> int:
        return len(self._when)

    @property
    def entries(self) -> int:
        """The number of entries of the heap, stale ones included."""
        return len(self._heap)

    def put(self, token: str, at: float, early: float) -> None:
        """Schedule a token, instead of its previous time."""
        self._when[token] = at, early
        self._fresh[token] = None

    def drop(self, token: str) -> None:
        self._fresh.pop(token, None)
        self._when.pop(token, None)

    def clear(self) -> None:
        self._when.clear()

    def take(self, now: float) -> Iterator[str]:
        """Return the tokens that are due at `now`, and those that may join them, most urgent first.

        Return none if no token is due. The caller must `put` or `drop` each.
        """
        if self.earliest() > now:
            return
        while self._heap:
            when, token = self._heap[0]
            live = self._when.get(token) is when
            if live and when[1] > now:
                return
            heapq.heappop(self._heap)
            if live:
                yield token

    def earliest(self) -> float:
        """Return when the next token is due."""
        self._sort()
        while self._heap:
            when, token = self._heap[0]
            if self._when.get(token) is when:
                return when[0]
            heapq.heappop(self._heap)
        return math.inf

    def _sort(self) -> None:
        while self._fresh:
            try:
                token, _ = self._fresh.popitem()
            except KeyError:  # another thread dropped it
                return
            when = self._when.get(token)
            if when is not None:
                heapq.heappush(self._heap, (when, token))
        if len(self._heap) > 2 * len(self._when) + _STALE:
            self._heap = [(when, token) for token, when in self._when.copy().items()]
            heapq.heapify(self._heap)
