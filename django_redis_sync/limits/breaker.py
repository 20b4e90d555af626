"""The circuit breaker of a cache alias. While Redis is down, requests don't contact Redis."""

from __future__ import annotations

import contextlib
import os
import threading
import time

from .. import conf
from ..engine.server import server_of
from ..engine.threads import forgotten_in_forks, made_once, run_callbacks
from ..engine.wire import clock, configuration_error
from ..logs import logger
from ..protocol.steps import Failure
from ..signals import outage_changed

#: Seconds between two probes while Redis is down.
PROBE_INTERVAL = 1.0
#: Max seconds that a probe may take.
PROBE_TIMEOUT = 0.5
#: Seconds between two log lines about the same configuration error.
REMINDER_INTERVAL = 300.0


class Breaker:
    """The circuit breaker of a cache alias.

    While the breaker is closed, every request may contact Redis. While it is open, a thread probes
    Redis every `PROBE_INTERVAL` seconds. Requests must not contact Redis then, except for one trial
    request after each answered probe. If Redis answers the trial, the breaker closes. Otherwise,
    the next answered probe permits another trial.
    """

    # Invariant: `generation` grows by 1 when the breaker opens or closes. It is odd while the
    # breaker is open. A request reports its outcome with the generation in which the request began.
    # So a late answer to a request from before an outage does not end the outage.

    def __init__(self, alias: str) -> None:
        self.alias, self.pid = alias, os.getpid()  # `made_once` checks `pid` after a fork
        self.generation = 0
        self._lock = threading.Lock()
        self._notifying = threading.Lock()
        self._notified = 0  # the generation that the last signal reported
        self._probe_answered = False
        self._prober: threading.Thread | None = None
        self._logged, self._remind_at = "", 0.0

    @property
    def down(self) -> bool:
        """True while Redis counts as down, because the breaker is open."""
        return self.generation % 2 == 1

    def allow(self) -> int | None:
        """Return the present generation. The request must pass it to `succeeded()` or `failed()`.

        Return None if the request must not contact Redis. While the breaker is open, only one
        request after each answered probe gets a generation.
        """
        generation = self.generation
        if generation % 2 == 0:
            return generation
        with self._lock:
            self._ensure_prober()
            trial, self._probe_answered = self._probe_answered, False
            return self.generation if trial or not self.down else None

    def succeeded(self, generation: int) -> None:
        """Record that Redis answered a request. If the breaker allowed the request as a trial in
        the present outage, close the breaker. `generation`: what `allow()` returned for the
        request."""
        if generation % 2 == 0:
            return
        with self._lock:
            changed = generation == self.generation
            self.generation += changed
        if changed:
            message = "Redis for cache %r is available again, and applies request limits"
            logger.warning(message, self.alias)
            run_callbacks(self._notify)

    def failed(self, generation: int, error: BaseException) -> None:
        """Record that Redis did not answer a request, because of `error`. If the breaker is closed,
        open it. `generation`: what `allow()` returned for the request. If the breaker has opened or
        closed since that call, do nothing."""
        with self._lock:
            if generation != self.generation:
                return
            changed = not self.down
            if changed:
                self.generation, self._probe_answered, self._logged = generation + 1, False, ""
                self._ensure_prober()
        self._log(error, changed)
        if changed:
            run_callbacks(self._notify)

    def close(self) -> None:
        """Stop probing Redis. Called after the settings have changed."""
        with self._lock:
            self.generation += self.down

    def _log(self, error: BaseException, changed: bool) -> None:
        """Log why Redis does not answer. `changed`: True if this error began the outage.

        Log a configuration error when it is new, and again every REMINDER_INTERVAL seconds. Log any
        other error only if it began the outage.
        """
        why = configuration_error(error)
        if why and (why != self._logged or clock() >= self._remind_at):
            self._logged, self._remind_at = why, clock() + REMINDER_INTERVAL
            logger.error(
                "Redis for cache %r is misconfigured (%s): %s. This outage does not end by itself. "
                "Until the settings are corrected, on_outage decides about limited requests. "
                "For help, run `manage.py locks doctor`",
                self.alias,
                why,
                error,
            )
        elif changed:
            message = "Redis for cache %r is down (%s): request limits follow on_outage"
            logger.error(message, self.alias, error)

    def _ensure_prober(self) -> None:
        """If the breaker is open and no thread probes Redis, start a thread for this. If the start
        fails, the next request tries again."""
        if self.down and (self._prober is None or not self._prober.is_alive()):
            name = f"redis-sync-probe-{self.alias}"
            thread = threading.Thread(target=self._probe, name=name, daemon=True)
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._prober = thread

    def _probe(self) -> None:
        while self.down:
            time.sleep(PROBE_INTERVAL)
            generation = self.generation
            if not self.down or self._probe_answered:
                continue
            try:
                server_of(self.alias).command("PING", timeout=PROBE_TIMEOUT)
            except Failure as failure:
                self._log(failure.cause, changed=False)
            except Exception:  # for example, after a change of the settings
                logger.exception("probing the Redis of cache %r failed", self.alias)
            else:
                with self._lock:
                    self._probe_answered = generation == self.generation

    def _notify(self) -> None:
        """Send `outage_changed` for each change that was not sent yet, in order."""
        with self._notifying:
            while self._notified < self.generation:
                self._notified += 1
                down = self._notified % 2 == 1
                outage_changed.send_robust(Breaker, alias=self.alias, down=down)


_breakers: dict[str, Breaker] = forgotten_in_forks({})


def breaker(alias: str) -> Breaker:
    """Return this process's breaker of a cache alias."""
    return _breakers.get(alias) or made_once(_breakers, alias, lambda: Breaker(alias))


@conf.on_change
def _forget_breakers() -> None:
    while _breakers:
        _breakers.popitem()[1].close()
