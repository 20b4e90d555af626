"""Cool-downs: a name grants nothing for some seconds, because a service asked for that. And what a
rate gets back."""

from __future__ import annotations

from .. import conf, values
from ..engine import drivers
from ..engine.names import write_label
from ..engine.overrides import operating
from ..engine.server import async_server_of, server_of
from ..engine.wire import clock
from ..protocol.steps import Plan, milliseconds, once
from .lease import Lease
from .options import Acquirer

#: The `min_hold` of a lease whose permits the rate gets back. The script `release` gets it in ms.
_NOT_USED = -0.001


class Cooling(Acquirer):
    """The part of a semaphore that begins a cool-down of its name."""

    def cool_down(self, seconds: float) -> None:
        """Grant no permit of the name for `seconds`, for example because a service answered with
        "429 Too Many Requests" and Retry-After. Leases stay, and callers wait or are rejected with
        the reason "rate". Then waiters are served again, without further calls.

        If there are several cool-downs, the longest applies. A pause of an operator stays. Raise
        Unavailable if Redis can't be reached.
        """
        self._check_may_wait("cool_down")
        drivers.drive(self._cooling(seconds), server_of(self.alias()))

    async def acool_down(self, seconds: float) -> None:
        """Async version of `cool_down()`."""
        await drivers.adrive(self._cooling(seconds), async_server_of(self.alias()))

    def _cooling(self, seconds: float) -> Plan:
        """Return the plan that begins the cool-down."""
        ms, label = milliseconds(values.positive("seconds", seconds)), write_label(self.label or "")
        return once(operating(self._keys(), "cool", f"{ms} {label}"), clock())

    def _not_used(self, lease: Lease) -> None:
        """Let the release of a lease give its permits back to the rate, because its caller has not
        got it."""
        if self._rate(self._options(conf.current()), 1):
            lease._state.settings = lease._settings._replace(min_hold=_NOT_USED)
