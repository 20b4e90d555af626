"""Steps that failed when they were due, as an undo while the server hung: done later."""

from __future__ import annotations

import logging
import math
from collections import deque

from django.core.exceptions import ImproperlyConfigured

from ..protocol.plans import Failure, Run
from .server import server_of
from .threads import Worker
from .wire import RETRY, ROUND, clock

logger = logging.getLogger("django_redis_sync")

#: Seconds after which a failed step is given up: its lease is over then.
GIVE_UP = 120.0
#: Steps in a round trip at the most.
BATCH = 256


class Errands:
    """The steps of an alias that failed, tried again until they are done. `send` is for any
    thread, in a destructor too."""

    # Invariant: only the thread touches _failed and _retry_at.
    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._fresh: deque[tuple[Run, float]] = deque()
        self._failed: deque[tuple[Run, float]] = deque()
        self._retry_at, self._doing = math.inf, False
        self._worker = Worker(f"redis-sync-errands-{alias}", self._turn, self._earliest)

    @property
    def busy(self) -> bool:
        return self._doing or bool(self._fresh or self._failed)

    def send(self, step: Run) -> None:
        """Do `step` as soon as the server answers."""
        self._fresh.append((step, clock() + GIVE_UP))
        self._worker.rouse()

    def hurry(self) -> None:
        """Try now the steps that failed."""
        self._retry_at = 0.0
        if self.busy:
            self._worker.rouse()

    def let_go(self) -> None:
        self._fresh.clear()
        self._failed.clear()

    def _earliest(self) -> float:
        if self._fresh:
            return -math.inf
        return self._retry_at if self._failed else math.inf

    def _turn(self) -> float:
        self._doing = True
        if self._failed and clock() >= self._retry_at:
            self._fresh.extendleft(reversed(self._failed))
            self._failed.clear()
        todo = [self._fresh.popleft() for _ in range(min(BATCH, len(self._fresh)))]
        try:
            self._try(todo)
        except ImproperlyConfigured as error:
            # The alias is gone, as after a test's override_settings: nothing can be done there.
            logger.warning("on %r nothing is finished later: %s", self._alias, error)
            self.let_go()
        except BaseException:
            logger.exception("finishing on %r met an error, and is tried again", self._alias)
            self._put_off(todo)
        self._doing = False
        return self._earliest()

    def _try(self, todo: list[tuple[Run, float]]) -> None:
        if not todo:
            return
        steps = [step._replace(timeout=ROUND) for step, _ in todo]
        answers = server_of(self._alias).many(steps)
        for order, answer in zip(todo, answers, strict=True):
            if isinstance(answer, Failure):
                if clock() < order[1]:
                    self._put_off([order])
                else:
                    logger.error("gave up undoing on %s: %s", order[0].keys[0], answer)

    def _put_off(self, todo: list[tuple[Run, float]]) -> None:
        if not self._failed:
            self._retry_at = clock() + RETRY
        self._failed.extend(todo)
