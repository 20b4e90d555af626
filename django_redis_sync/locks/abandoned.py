"""Leases that tasks took whose event loop has ended.

A task that will never go on is a circle (task, coroutine, future, callback), and with it all it
holds: the keeper would renew its leases until the garbage collector comes by. So that is sent for.
A lease that other code still refers to stays as it is.
"""

from __future__ import annotations

import asyncio
import gc
import weakref

from ..engine.courier import tell
from ..engine.wire import clock

Loop = weakref.ref[asyncio.AbstractEventLoop]

#: Seconds between two collections: each stops all threads for a moment.
PAUSE = 5.0
_next = [0.0]


def collected(loop: Loop) -> bool:
    """Whether the garbage collector was sent for, as the loop has ended and it is time."""
    living = loop()
    if (living is not None and not living.is_closed()) or clock() < _next[0]:
        return False
    _next[0] = clock() + PAUSE
    tell(gc.collect)
    return True
