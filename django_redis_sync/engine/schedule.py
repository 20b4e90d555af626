"""A schedule of tokens, as a heap of the times at which they are due."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

#: If stale entries outnumber valid entries by more than this number, the heap is rebuilt without
#: stale entries.
_STALE = 64


class Schedule:
    """The times at which tokens are due. Each token also has a time `early`, from which it may be
    taken together with another token that is due.

    Any thread may call `clear` and `drop`, also in a destructor. Only one thread, the owner, may
    call the other methods. If a token is dropped or put again, its old entry in the heap becomes
    stale. A stale entry is skipped when it reaches the top of the heap.
    """

    # Invariant: Until a token in _when is taken, the heap has an entry with the token's two times.
    def __init__(self) -> None:
        self._when: dict[str, tuple[float, float]] = {}
        self._heap: list[tuple[tuple[float, float], str]] = []

    def put(self, token: str, at: float, early: float) -> None:
        """Schedule a token for the time `at`, in place of its previous time, if any. `early`: the
        time from which the token may be taken early."""
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
        """Yield the tokens that are due at `now`, earliest first. Then yield the next tokens, up to
        the first one whose `early` is after `now`. If no token is due, yield none. The caller must
        call `put` or `drop` for each token."""
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
