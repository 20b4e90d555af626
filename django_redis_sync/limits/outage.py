"""Redis down: noticing it, and probing until it is back."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from functools import partial
from typing import Any

from django.core.signals import setting_changed

from .. import conf
from ..engine.courier import tell
from ..engine.server import server_of
from ..engine.threads import forgotten_in_forks, made_once
from ..engine.wire import clock, turned_away
from ..logs import logger
from ..protocol.plans import Failure
from ..signals import outage_changed

#: Seconds between two probes while Redis is down, and that a probe may take.
WINDOW, PROBE = 1.0, 0.5
#: Seconds after which it is said again that Redis turns us away: that does not end by itself.
REMIND = 300.0


class Breaker:
    """Whether requests may ask the Redis of an alias: none waits for a server known to be down.

    Up: all may. Down: none; a thread probes once per window. Half open, when a probe was answered:
    a single request tries, and its outcome decides for all.
    """

    # Invariant: _era grows with each change, and is odd while Redis is down. What a request reports
    # counts in the era in which it asked: an answer of before the outage says nothing of its end.

    def __init__(self, alias: str) -> None:
        self.alias, self.pid = alias, os.getpid()
        self._lock = threading.Lock()
        self._era = 0
        self._answered = False
        self._prober: threading.Thread | None = None
        self._told, self._remind_at = "", 0.0

    @property
    def down(self) -> bool:
        return self._era % 2 == 1

    @property
    def era(self) -> int:
        """The era to report with, of a call that is made anyhow."""
        return self._era

    def ask(self) -> int | None:
        """The era in which this request asks Redis, and has to report the outcome; None when it
        may not ask."""
        era = self._era
        if era % 2 == 0:
            return era
        with self._lock:
            self._look_after_probes()
            trial, self._answered = self._answered, False
            return self._era if trial or not self.down else None

    def succeeded(self, era: int) -> None:
        if era % 2 == 0:
            return
        with self._lock:
            changed = era == self._era
            self._era += changed
        if changed:
            logger.warning("Redis of the cache %r is back: limits hold again", self.alias)
            self._tell(down=False)

    def failed(self, era: int, error: BaseException) -> None:
        with self._lock:
            if era != self._era:
                return
            changed = not self.down
            if changed:
                self._era, self._answered, self._told = era + 1, False, ""
                self._look_after_probes()
        self._explain(error, changed)
        if changed:
            self._tell(down=True)

    def abandoned(self, era: int) -> None:
        """The request was cancelled before it knew: if it was the try, another request may."""
        if era % 2 == 1:
            with self._lock:
                self._answered = self._answered or era == self._era

    def retire(self) -> None:
        """Ends the probing: the settings changed."""
        with self._lock:
            self._era += self.down

    def _explain(self, error: BaseException, changed: bool) -> None:
        """One line per outage. A fault that the settings must mend is logged again at intervals."""
        why = turned_away(error)
        if why and (why != self._told or clock() >= self._remind_at):
            self._told, self._remind_at = why, clock() + REMIND
            logger.error(
                "Redis of the cache %r turns us away, %s: %s. No outage that ends by itself; "
                "on_outage rules until the settings are mended (manage.py locks doctor)",
                self.alias,
                why,
                error,
            )
        elif changed:
            logger.error("Redis of the cache %r is down (%s): on_outage rules", self.alias, error)

    # The probes

    def _look_after_probes(self) -> None:
        """See to it that a thread probes; where none can be started, the next request tries to."""
        if self.down and (self._prober is None or not self._prober.is_alive()):
            name = f"redis-sync-probe-{self.alias}"
            thread = threading.Thread(target=self._probe, name=name, daemon=True)
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._prober = thread

    def _probe(self) -> None:
        while self.down:
            time.sleep(WINDOW)
            era = self._era
            if self.down and not self._answered and self._is_there():
                with self._lock:
                    self._answered = era == self._era

    def _is_there(self) -> bool:
        try:
            server_of(self.alias).command("PING", timeout=PROBE)
        except Failure as failure:
            self._explain(failure.cause, changed=False)
            return False
        except Exception:  # the settings changed under us
            logger.exception("probing the Redis of the cache %r failed", self.alias)
            return False
        return True

    def _tell(self, down: bool) -> None:
        tell(partial(outage_changed.send_robust, Breaker, alias=self.alias, down=down))


_breakers: dict[str, Breaker] = forgotten_in_forks({})


def breaker(alias: str) -> Breaker:
    """The breaker of an alias in this process; a fork starts with none."""
    found = _breakers.get(alias)
    if found is None or found.pid != os.getpid():
        found = made_once(_breakers, alias, lambda: Breaker(alias))
    return found


def _forget(*, setting: str, **_: Any) -> None:
    if setting in (conf.SETTING, "CACHES"):
        while _breakers:
            _breakers.popitem()[1].retire()


setting_changed.connect(_forget, dispatch_uid="django_redis_sync.limits.outage")
