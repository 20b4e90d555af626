"""Report a lost lease: the signal, the option `on_lost`, the statistics, and the log line. Also
report the error of a release at the end of a block.

Nothing that a project passes can suppress the signal or the log line: neither a callback or
receiver that fails, nor a handler of the log that fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable
from functools import partial
from typing import Any

from ..engine.threads import run_callbacks
from ..exceptions import LeaseLost
from ..logs import logger
from ..protocol.plans import counting_loss
from ..signals import lease_lost

# Why a lease is lost: `LeaseLost`, the signal `lease_lost`, and the log line say one of these
# texts.
GONE = "Redis no longer has the lease"
HELD_TOO_LONG = "max_hold has passed"
NOT_RENEWED = "the lease could not be renewed"
RENEWED_TOO_LATE = "the lease expired before a renewal"
EXPIRED = "the lease expired"
LOOP_CLOSED = "its event loop was closed before its task was done"


def not_adopted(name: str) -> LeaseLost:
    """Return the error of an adoption. `name`: the name of the lease."""
    return LeaseLost(f"the lease of {name!r} ended, or was adopted before", name)


def report(sender: type[Any], lease: Any, reason: str) -> None:
    """Report that `lease` is lost. Signal receivers and `on_lost` run on another thread. `sender`:
    the sender of the signal."""
    state, renewer = lease._state, lease._renewer
    callbacks: list[Any] = [partial(lease_lost.send_robust, sender, lease=lease, reason=reason)]
    if state.settings.on_lost is not None:
        callbacks.append(partial(_call, state.settings.on_lost, lease))
    run_callbacks(*callbacks)
    renewer.housekeeper.count(state.settings, "l", 0)
    if state.settings.keys.keep:
        renewer.later(counting_loss(state.settings.keys, state.grant))
    with contextlib.suppress(Exception):  # raised by a handler of the log
        lease._log_lost(reason)  # last, because a handler of the log may be slow


def _call(on_lost: Any, lease: Any) -> None:
    """Call `on_lost`. If it is async, run it to its end on an event loop of its own."""
    result = on_lost(lease)
    if inspect.isawaitable(result):
        asyncio.run(_awaited(result))


async def _awaited(awaitable: Awaitable[Any]) -> None:
    await awaitable


def raise_or_log(
    lease: Any, error: Exception, kind: type[BaseException] | None, lenient: bool
) -> None:
    """Raise or log the error of a release at the end of a block. `kind`: the type of the block's
    exception, or None. If the block itself raised an exception, log the error, so that the caller
    gets the exception of the block. `lenient`: log that the lease was lost."""
    if kind is not None:
        message = "the block of %r raised an exception, and then the release failed: %s"
        logger.error(message, lease.name, error)
    elif lenient and isinstance(error, LeaseLost):
        message = "the release of %r at the end of its block failed: %s"
        logger.warning(message, lease.name, error)
    else:
        raise error
