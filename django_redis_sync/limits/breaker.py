"""The circuit breaker of a cache alias. While Redis is down, requests don't contact Redis."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from functools import partial

from .. import conf
from ..engine.mutex import Mutex, start_thread
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
        self._changing, self._notifying = Mutex(), Mutex()
        self._notified = 0  # the generation that the last signal reported
        # The generations in which a probe was answered and no request has made a trial since.
        self._trials: deque[int] = deque(maxlen=1)
        self._prober: object | None = None  # identifies the thread that probes Redis
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
        self._ensure_prober()
        with contextlib.suppress(IndexError):  # if there is no trial, or another request makes it
            if self._trials.pop() == generation:
                return generation
        generation = self.generation
        return None if generation % 2 else generation

    def succeeded(self, generation: int) -> None:
        """Record that Redis answered a request. If the breaker allowed the request as a trial in
        the present outage, close the breaker. `generation`: what `allow()` returned for the
        request."""
        if generation % 2 == 1 and self._changes(generation):
            message = "Redis for cache %r is available again, and applies request limits"
            logger.warning(message, self.alias)
            run_callbacks(self._notify)

    def failed(self, generation: int, error: BaseException) -> None:
        """Record that Redis did not answer a request, because of `error`. If the breaker is closed,
        open it. `generation`: what `allow()` returned for the request. If the breaker has opened or
        closed since that call, do nothing."""
        if generation % 2 == 1:
            if generation == self.generation:
                self._log(error, changed=False)
        elif self._changes(generation):
            self._logged = ""
            self._ensure_prober()
            self._log(error, changed=True)
            run_callbacks(self._notify)

    def close(self) -> None:
        """Stop probing Redis. Called after the settings have changed."""
        if self.down:
            self._changes(self.generation)

    def _changes(self, generation: int) -> bool:
        """Open or close the breaker, if it still has this generation. Return True if it had."""

        def change() -> bool:
            changed = generation == self.generation
            self.generation += changed
            return changed

        return self._changing.run(change)

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
        if self.down and self._prober is None:
            self._changing.run(self._start_prober)

    def _start_prober(self) -> None:
        if self._prober is not None:
            return
        try:
            me = self._prober = object()
            start_thread(partial(self._probe, me), f"redis-sync-probe-{self.alias}")
        except BaseException as error:
            self._prober = None
            if not isinstance(error, RuntimeError):  # for example, from a signal handler
                raise

    def _probe(self, me: object) -> None:
        try:
            while self.down and self._prober is me:
                time.sleep(PROBE_INTERVAL)
                if self.down and self.generation not in self._trials:
                    self._ask(self.generation)
        finally:
            if self._prober is me:
                self._prober = None

    def _ask(self, generation: int) -> None:
        try:
            server_of(self.alias).command("PING", timeout=PROBE_TIMEOUT)
        except Failure as failure:
            self._log(failure.cause, changed=False)
        except Exception:  # for example, after a change of the settings
            logger.exception("probing the Redis of cache %r failed", self.alias)
        else:
            self._trials.append(generation)

    def _notify(self) -> None:
        """Send `outage_changed` for each change that was not sent yet, in order."""

        def send() -> None:
            while self._notified < self.generation:
                self._notified += 1
                down = self._notified % 2 == 1
                outage_changed.send_robust(Breaker, alias=self.alias, down=down)

        self._notifying.run(send)


_breakers: dict[str, Breaker] = forgotten_in_forks({})


def breaker(alias: str) -> Breaker:
    """Return this process's breaker of a cache alias."""
    return _breakers.get(alias) or made_once(_breakers, alias, lambda: Breaker(alias))


@conf.on_change
def forget_breakers() -> None:
    """Forget all outages that this process knows of."""
    while _breakers:
        _breakers.popitem()[1].close()
