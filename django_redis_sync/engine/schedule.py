"""Which lease is due when: a heap from which nothing is removed before its time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

#: Stale entries that the heap may hold besides as many as are scheduled.
_STALE = 64


class Schedule:
    """Times by token: due at `at`, and from `early` on taken along with others.

    `put` and `drop` are for any thread, in a destructor too; the rest is for the owner's. A token
    dropped or put anew leaves a stale entry in the heap, passed over when its time comes. A token
    that comes and goes between two looks never gets there.
    """

    # Invariant: a token of _when is in _fresh, or in the heap with that very pair, or was taken.
    def __init__(self) -> None:
        self._when: dict[str, tuple[float, float]] = {}
        self._fresh: dict[str, None] = {}
        self._heap: list[tuple[tuple[float, float], str]] = []

    def __len__(self) -> int:
        return len(self._when)

    @property
    def entries(self) -> int:
        """Of the heap, stale ones too."""
        return len(self._heap)

    def put(self, token: str, at: float, early: float) -> None:
        """Due then, and not when it was before."""
        self._when[token] = at, early
        self._fresh[token] = None

    def drop(self, token: str) -> None:
        self._fresh.pop(token, None)
        self._when.pop(token, None)

    def clear(self) -> None:
        self._when.clear()

    def take(self, now: float) -> Iterator[str]:
        """When any is due by `now`: it, and those that may be taken along, the most urgent first.
        The caller has to put or drop each."""
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
        """When the next is due."""
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
            except KeyError:  # dropped meanwhile
                return
            when = self._when.get(token)
            if when is not None:
                heapq.heappush(self._heap, (when, token))
        if len(self._heap) > 2 * len(self._when) + _STALE:
            self._heap = [(when, token) for token, when in self._when.copy().items()]
            heapq.heapify(self._heap)
